"""The environments on this node, by their keys: each is made once, in a directory that is never used again.

`KEY-SERIAL/` is an environment, `KEY.json` the record that makes it valid, `KEY-SERIAL.tmp/` what is needed
while it is made. A virtual environment cannot be moved, so it is made in its place: a directory without a
record is never used. After a boot its files are compared with the record once: a power cut may have torn
them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from agent.code import unpack
from agent.code.unpack import Manifest, Unpacked
from agent.environments import packed
from agent.environments.install import MOST_BYTES, Installer, read_requirements
from recovery.io.files import mapped_errors
from recovery.io.trees import remove_tree
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Logger
from supervisor.contract.code import is_digest
from supervisor.contract.errors import BadArchive, Refused, TfSupervisorError, Unreachable
from supervisor.contract.job.environment import Requirement, needs_zstd, normal_name
from supervisor.contract.job.spec import EnvironmentRef

PATIENCE_S = 10.0
"""Seconds for which a call waits; the work goes on. A launcher that waits for 30 s is given up."""

AGAIN_S = 15.0
"""Seconds before the next try after a failure."""

KEPT_UNUSED = 2
_RECORD, _SCRATCH = ".json", ".tmp"


class Files(Protocol):
    """Files of users, by their URI (`agent.environments.files`)."""

    async def names(self, uri: str) -> Mapping[str, int]:
        """The plain files of a directory, with their sizes."""

    async def fetch(self, uri: str, target: Path, most_bytes: int) -> str:
        """Copy a file to the new file `target`; returns its sha256."""


_Order = tuple[EnvironmentRef, str]
"""An environment, and the working directory with its lock. One job's failure is not another's."""


@dataclass(frozen=True, slots=True)
class _Failure:
    error: TfSupervisorError
    until_s: float


class NodeEnvironments:
    """`Environments` over a directory of this agent's own. `boot_id`: this boot of the machine."""

    def __init__(
        self, directory: Path, files: Files, installer: Installer, sink: Logger, boot_id: str
    ) -> None:
        self._directory = directory
        self._files = files
        self._installer = installer
        self._sink = sink
        self._boot_id = boot_id
        self._known: dict[str, Path] = {}
        """Environments that were found whole in this life of the agent."""
        self._making: dict[_Order, asyncio.Task[Path]] = {}
        self._made_in: dict[_Order, str] = {}
        """The directory in which each of them is being made."""
        self._failed: dict[_Order, _Failure] = {}
        self._in_use: frozenset[str] = frozenset()
        self._sweeping = asyncio.Lock()

    async def ensure(self, ref: EnvironmentRef, workdir: str) -> str:
        """Make it if necessary; see `Environments`."""
        self._in_use |= {ref.key}  # for a sweep that has begun before the task was wanted
        known = self._known.get(ref.key)
        if known is not None and await asyncio.to_thread(os.access, known / "bin" / "python", os.X_OK):
            return str(known)
        order = (ref, workdir)
        work = self._making.get(order)
        if work is None:
            self._raise_failure(order)
            work = self._making[order] = asyncio.create_task(self._make(order))
            work.add_done_callback(partial(self._ended, order))
        await asyncio.wait({work}, timeout=PATIENCE_S)
        if not work.done():
            what = "unpacked" if ref.archive else "installed"
            raise Unreachable(f"its packages are being {what}, which can take minutes")
        return str(work.result())

    async def keep(self, in_use: frozenset[str]) -> None:
        """Remove unused environments, except the few used last. Raises Refused, Unreachable."""
        self._in_use = in_use
        async with self._sweeping:
            await asyncio.to_thread(self._sweep)

    def _raise_failure(self, order: _Order) -> None:
        failed = self._failed.get(order)
        if failed is not None and asyncio.get_running_loop().time() < failed.until_s:
            raise failed.error

    def _ended(self, order: _Order, work: asyncio.Task[Path]) -> None:
        del self._making[order]
        self._made_in.pop(order, None)
        self._failed.pop(order, None)
        if work.cancelled():
            return
        error = work.exception()
        if error is None:
            self._known[order[0].key] = work.result()
        elif isinstance(error, TfSupervisorError):
            self._failed[order] = _Failure(error, asyncio.get_running_loop().time() + AGAIN_S)

    async def _make(self, order: _Order) -> Path:
        ref, workdir = order
        whole = await asyncio.to_thread(self._find, ref.key)
        if whole is not None:
            return whole
        name = f"{ref.key}-{secrets.token_hex(4)}"
        self._made_in[order] = name
        tree, scratch = self._directory / name, self._directory / f"{name}{_SCRATCH}"
        done = False
        try:
            await asyncio.to_thread(self._begin, scratch)
            python = await self._installer.interpreter(ref.python, scratch)
            if ref.archive:
                archive = await self._fetch_archive(ref, scratch)
                if plain := needs_zstd(ref):
                    archive = await self._installer.decompress(archive, scratch)
                with mapped_errors(f"unpack {ref.archive} into {tree}"), effect("environment.unpack"):
                    manifest = await asyncio.to_thread(packed.unpack, archive, tree, python, plain=plain)
            else:
                path = Path(workdir, ref.requirements)
                requirements = await asyncio.to_thread(read_requirements, path, ref.digest)
                wheels = await self._fetch_wheels(ref.wheelhouse, requirements, scratch)
                await self._installer.install(python, tree, requirements, scratch, wheels)
                with mapped_errors(f"seal {tree}"), effect("environment.seal"):
                    manifest = await asyncio.to_thread(_seal, tree)
            await asyncio.to_thread(self._record, ref.key, name, manifest)
            done = True
        finally:
            # It may be what has filled the disk. What cannot be removed now goes with the next sweep.
            removal = asyncio.to_thread(self._clear, scratch, None if done else tree)
            await asyncio.shield(removal)
        self._sink.info("environment made", key=ref.key, directory=str(tree), files=len(manifest))
        return tree

    async def _fetch_archive(self, ref: EnvironmentRef, scratch: Path) -> Path:
        archive = scratch / "archive"
        found = await self._files.fetch(ref.archive, archive, MOST_BYTES)
        if found != ref.digest:
            raise Refused(
                f"{ref.archive} has the sha256 {found}, not {ref.digest}: it is another file than "
                "the job was submitted with"
            )
        return archive

    async def _fetch_wheels(
        self, uri: str, requirements: Sequence[Requirement], scratch: Path
    ) -> Path | None:
        """Copies of the wheels of these packages, in a directory; None without a wheelhouse."""
        if not uri:
            return None
        wheels, left = scratch / "wheels", MOST_BYTES
        with mapped_errors(f"make {wheels}"), effect("environment.wheels"):
            wheels.mkdir(mode=0o755)
            wheels.chmod(0o755)
        wanted = {(each.name, each.version.replace("_", "-")) for each in requirements}
        for name, size in sorted((await self._files.names(uri)).items()):
            parts = name.removesuffix(".whl").split("-")
            of = (normal_name(parts[0]), parts[1].replace("_", "-")) if len(parts) > 2 else None
            if not name.endswith(".whl") or of not in wanted:
                continue
            left -= size
            if left < 0:
                raise BadArchive(f"the wheels in {uri} take more than {MOST_BYTES >> 30} GiB")
            await self._files.fetch(f"{uri.rstrip('/')}/{name}", wheels / name, MOST_BYTES)
        with mapped_errors(f"open {wheels}"), effect("environment.open_wheels"):
            for copy in wheels.iterdir():
                copy.chmod(0o644)
        return wheels

    # In threads.

    def _find(self, key: str) -> Path | None:
        """The valid environment of this key, compared with its record if the machine has booted since."""
        path = self._directory / f"{key}{_RECORD}"
        with mapped_errors(f"read {path}"):
            try:
                record = json.loads(path.read_text())
                name, boot_id, files = str(record["directory"]), str(record["boot_id"]), str(record["files"])
            except FileNotFoundError:
                return None
            except (ValueError, KeyError, TypeError):
                return None  # torn by a power cut
            manifest, tree = unpack.from_json(files), self._directory / name
            if manifest is None or not name.startswith(f"{key}-") or "/" in name:
                return None
            if boot_id != self._boot_id:
                if not unpack.is_whole(tree, manifest):
                    self._sink.warning("an environment is damaged; it is made again", directory=str(tree))
                    return None
                self._record(key, name, manifest)
            if not os.access(tree / "bin" / "python", os.X_OK):
                return None
            os.utime(path)
            return tree

    def _begin(self, scratch: Path) -> None:
        with mapped_errors(f"make {scratch}"), effect("environment.begin"):
            self._directory.mkdir(mode=0o711, parents=True, exist_ok=True)
            scratch.mkdir(mode=0o700)
            self._installer.give(scratch)

    def _record(self, key: str, name: str, manifest: Manifest) -> None:
        """Make the environment valid; from here on it is used."""
        path = self._directory / f"{key}{_RECORD}"
        fresh = path.with_suffix(".new")
        record = {"directory": name, "boot_id": self._boot_id, "files": unpack.to_json(manifest)}
        with mapped_errors(f"write {path}"), effect("environment.record"):
            fresh.write_text(json.dumps(record))
            fresh.rename(path)

    def _clear(self, *directories: Path | None) -> None:
        with suppress(OSError):
            for each in filter(None, directories):
                with effect("environment.clear"):
                    remove_tree(each, most_s=math.inf)

    def _sweep(self) -> None:
        with mapped_errors(f"clear {self._directory}"):
            if not self._directory.is_dir():
                return
            records = [each for each in self._directory.iterdir() if each.suffix == _RECORD]
            records.sort(key=lambda path: -path.stat().st_mtime_ns)
            unused = [each for each in records if self._is_idle(each.stem)]
            for path in unused[KEPT_UNUSED:]:
                if not self._is_idle(path.stem):
                    continue
                with effect("environment.forget"):
                    self._known.pop(path.stem, None)
                    path.unlink(missing_ok=True)
            valid = {self._directory_in(each) for each in records if each.exists()}
            found = [each for each in self._directory.iterdir() if each.is_dir()]
            begun = {each.name.removesuffix(_SCRATCH) for each in found if each.name.endswith(_SCRATCH)}
            for path in found:
                name = path.name.removesuffix(_SCRATCH)
                key = name.partition("-")[0]
                if not is_digest(key) or name in list(self._made_in.values()):
                    continue
                if path.name != name or (name not in valid and (name in begun or self._is_idle(key))):
                    with effect("environment.remove"):
                        remove_tree(path, most_s=math.inf)

    def _directory_in(self, record: Path) -> str:
        try:
            return str(json.loads(record.read_text())["directory"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def _is_idle(self, key: str) -> bool:
        return key not in self._in_use and all(ref.key != key for ref, _ in list(self._making))


def _seal(tree: Path) -> Manifest:
    """Make an environment read-only; returns what is in it."""
    manifest: Manifest = {}
    for directory, directories, files in os.walk(tree, topdown=False):
        for name in (*files, *directories):
            path = Path(directory, name)
            relative, status = str(path.relative_to(tree)), path.lstat()
            if stat.S_ISLNK(status.st_mode):
                manifest[relative] = Unpacked("link", str(path.readlink()))
            elif stat.S_ISDIR(status.st_mode):
                manifest[relative] = Unpacked("directory")
            elif stat.S_ISREG(status.st_mode):
                executable = bool(status.st_mode & 0o100)
                path.chmod(0o555 if executable else 0o444)
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                manifest[relative] = Unpacked("file", digest, executable)
        Path(directory).chmod(0o555)
    return manifest
