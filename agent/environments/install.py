"""Makes a virtual environment from a lock file, by Python's own `venv` and `pip`, in child processes.

Wheels of users are hostile input. No program of theirs runs here: source packages are refused, the lock is
written anew from what was read of it, and pip is started from outside of the environment. Where tasks have
users of their own, the children run as a user of no job.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.host.ownership import TASK_UMASK, give, give_tree
from agent.host.task_users import User
from recovery.io.files import mapped_errors, read_small
from recovery.io.trees import TooMany, space_below
from supervisor.adapters.children import bounded
from supervisor.adapters.children.bounded import Child, Ended
from supervisor.adapters.failpoints import effect
from supervisor.contract.errors import BadArchive, Refused, TfSupervisorError, Unreachable, UserError
from supervisor.contract.job.environment import MAX_LOCK_BYTES, Requirement, read_lock

MOST_BYTES = 16 << 30
MOST_FILES = 400_000
"""The most that one environment takes on a node's disk."""

LONGEST_S = 1800.0
LOOK_S = 2.0
"""How often the growing environment is measured."""

NICE = 10
MOST_LINES, MOST_LINE = 6, 300
_OUTPUT_BYTES = 1 << 20
_INSTALL = (
    "install --require-hashes --only-binary :all: --no-cache-dir --no-input --no-color --progress-bar off "
    "--disable-pip-version-check --no-warn-script-location --retries 2"
)
_NETWORK = re.compile(
    r"Retrying \(Retry|connection broken by|Max retries exceeded|Temporary failure in name resolution|"
    r"Connection(?:Error| refused| reset| timed out)|ReadTimeout|ProxyError|No route to host"
)
_SAME_EVERYWHERE = re.compile(
    r"DO NOT MATCH THE HASHES|In --require-hashes mode, all requirements must have their versions pinned|"
    r"^(?:zstd: )?archive ?: (?:Read error \(39\)|Decoding error|unknown|unsupported|unexpected)",
    re.MULTILINE,
)
_PASSED_ON = re.compile(
    r"PIP_\w+|(?i:https?_proxy|no_proxy|all_proxy)|SSL_CERT_(?:FILE|DIR)|REQUESTS_CA_BUNDLE|LD_LIBRARY_PATH"
)
_ASK = (
    "import json, os, sys; base = getattr(sys, '_base_executable', sys.executable); "
    "print(json.dumps([os.path.realpath(base), '%d.%d' % sys.version_info[:2]]))"
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python of this node, outside of any environment: its file, and its version as MAJOR.MINOR."""

    path: str
    version: str


_OWN = Interpreter(os.path.realpath(sys.executable), f"{sys.version_info[0]}.{sys.version_info[1]}")


@dataclass(frozen=True, slots=True)
class Installer:
    """Makes environments. `user`: as whom children run; None: as this agent's own user."""

    user: User | None = None

    async def interpreter(self, name: str, scratch: Path) -> Interpreter:
        """The Python of this name in the agent's PATH; empty: the one that runs the agent. Raises Refused."""
        if not name:
            return _OWN
        found = shutil.which(name)
        if found is None:
            raise Refused(f"there is no {name} in the PATH of this node's agent; install it, or name another")
        said = await self._run([found, "-I", "-S", "-c", _ASK], scratch, scratch)
        try:
            path, version = json.loads(said)
            return Interpreter(str(path), str(version))
        except ValueError as error:
            raise Refused(f"{found} is no Python: it says {said[:MOST_LINE]!r}") from error

    async def install(
        self,
        python: Interpreter,
        tree: Path,
        requirements: Sequence[Requirement],
        scratch: Path,
        wheels: Path | None,
    ) -> None:
        """Make the environment `tree` with these packages. `wheels`: take them from this directory alone.

        Raises BadArchive for a lock that no node can install, Unreachable where an index does not answer,
        else Refused with the last lines of pip.
        """
        lock, tool = scratch / "requirements.txt", scratch / "pip"
        with mapped_errors(f"make {tree}"), effect("environment.make"):
            await asyncio.to_thread(self._begin, tree, lock, requirements)
        await self._run([_OWN.path, "-I", "-m", "venv", str(tool)], scratch, tree)
        await self._run([python.path, "-I", "-m", "venv", "--without-pip", str(tree)], scratch, tree)
        pip = [str(tool / "bin" / "python"), "-I", "-m", "pip", "--python", str(tree / "bin" / "python")]
        pip += [*_INSTALL.split(), "-r", str(lock)]
        if wheels is not None:
            pip += ["--isolated", "--no-index", "--find-links", str(wheels)]
        with effect("environment.install"):
            await self._run(pip, scratch, tree)
        with mapped_errors(f"take {tree} over"):
            await asyncio.to_thread(self._take_over, tree)

    async def decompress(self, archive: Path, scratch: Path) -> Path:
        """Decompress an archive in `scratch` by this node's `zstd`; returns the other file, there too.

        Raises BadArchive for what no node can decompress, Refused where there is no `zstd`.
        """
        zstd, plain = shutil.which("zstd"), scratch / "plain"
        if zstd is None:
            raise Refused(
                "there is no zstd in the PATH of this node's agent, and the archive needs it; install it, or "
                "turn the archive into one with `zstd -dc FILE.tar.zst | gzip >FILE.tar.gz`"
            )
        with mapped_errors(f"open {archive}"), effect("environment.open_archive"):
            await asyncio.to_thread(archive.chmod, 0o644)
        with effect("environment.decompress"):
            # A hole would take no room on the disk, and so hide a bomb.
            await self._run([zstd, "-dq", "--no-sparse", "-o", plain.name, archive.name], scratch, scratch)
        return plain

    def give(self, directory: Path) -> None:
        """Give a directory to the user of the children. Raises OSError."""
        if self.user is not None:
            give(directory, self.user)

    def _begin(self, tree: Path, lock: Path, requirements: Sequence[Requirement]) -> None:
        tree.mkdir(mode=0o755)
        self.give(tree)
        lock.write_text("".join(f"{each.text}\n" for each in requirements))
        lock.chmod(0o644)

    def _take_over(self, tree: Path) -> None:
        if self.user is not None:
            with effect("environment.take_over"):
                give_tree(tree, (os.geteuid(), os.getegid()))

    async def _run(self, command: Sequence[str], scratch: Path, tree: Path) -> str:
        """Run a child to its end; returns its output. Raises Refused, BadArchive, Unreachable."""
        with mapped_errors(f"run {command[0]}"):
            ended = await self._watched(command, scratch, tree)
        if ended.late:
            raise Unreachable(f"`{_shown(command)}` has not ended within {LONGEST_S / 60:g} minutes")
        said = ended.output.decode(errors="replace").replace(f"{scratch}/", "")
        if ended.code:
            raise _failure(command, said)
        return said

    async def _watched(self, command: Sequence[str], scratch: Path, tree: Path) -> Ended:
        """Run a child while what it makes is measured. Raises BadArchive, OSError."""
        child = Child(
            command=command,
            env=_environment(scratch),
            cwd=str(scratch),
            user=self.user,
            umask=TASK_UMASK,
            limit_s=LONGEST_S,
            kept=_OUTPUT_BYTES,
            nice=NICE,
        )
        work = asyncio.ensure_future(bounded.run(child))
        try:
            while not (await asyncio.wait({work}, timeout=LOOK_S))[0]:
                await asyncio.to_thread(_check_size, {tree, scratch})
            return work.result()
        finally:
            work.cancel()
            await asyncio.wait({work})


def read_requirements(path: Path, digest: str) -> tuple[Requirement, ...]:
    """The requirements of a lock file, which must have this digest. Raises BadArchive, NotFound, Refused."""
    with mapped_errors(f"read {path}"):
        data = read_small(path, MAX_LOCK_BYTES)
    if hashlib.sha256(data).hexdigest() != digest:
        raise Refused(
            f"{path} is not the lock file that the job was submitted with; put that back, or submit the job "
            "again"
        )
    try:
        return read_lock(data)
    except UserError as error:
        raise BadArchive(f"{path.name}: {error}") from error


def _check_size(directories: set[Path]) -> None:
    try:
        taken = sum(space_below(each, MOST_FILES) for each in directories)
    except TooMany as error:
        raise BadArchive(f"the environment has more than {MOST_FILES} files") from error
    except FileNotFoundError:
        return  # what is measured changes meanwhile; it is measured again
    if taken > MOST_BYTES:
        raise BadArchive(f"the environment takes more than {MOST_BYTES >> 30} GiB")


def _environment(scratch: Path) -> dict[str, str]:
    """No more of the agent's own than what says how packages are reached."""
    passed = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
    return {
        **passed,
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "LANG": "C.UTF-8",
    }


def _failure(command: Sequence[str], said: str) -> TfSupervisorError:
    lines = [" ".join(line.split())[:MOST_LINE] for line in said.splitlines() if line.strip()]
    told = " | ".join(lines[-MOST_LINES:]) or "it says nothing"
    text = f"`{_shown(command)}` failed: {told}"
    if _SAME_EVERYWHERE.search(said):
        return BadArchive(text)
    if _NETWORK.search(said):
        # While a job waits, its reason is shown in part alone.
        return Unreachable(f"`{_shown(command)}` failed: {lines[-1]}")
    return Refused(text)


def _shown(command: Sequence[str]) -> str:
    """The command for people: the program's name and its subcommand."""
    words = [each for each in command[1:] if each in ("venv", "pip", "install")]
    return " ".join((Path(command[0]).name, *(("-m", *words) if words else ())))
