"""The programs' directories on this node: fetched by digest from etcd or a store, and unpacked once."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
from contextlib import suppress
from functools import partial
from pathlib import Path

from agent.code import unpack
from recovery.io.files import mapped_errors
from recovery.io.trees import remove_tree
from recovery.stores.code import CodeReader, OpenStore
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Coordination, Logger
from supervisor.contract.code import MAX_PACKED_BYTES, chunk_count, is_digest
from supervisor.contract.errors import CoordinationUnreachable, NotFound, Refused, Unreachable, UserError
from supervisor.contract.job.spec import CodeRef

FETCH_S = 20.0
"""Seconds for all chunks together. A launcher that waits for its code is given up after 30 s."""

AGAIN_S = 0.2
KEPT_UNUSED = 3
_MANIFEST = ".manifest"
_TMP = ".tmp"
_AWAY = ".away"


class NodeCode:
    """`Code` over a directory of this agent's own: `DIGEST/` and `DIGEST.manifest` for each archive."""

    def __init__(
        self, directory: Path, coordination: Coordination, open_store: OpenStore, sink: Logger
    ) -> None:
        self._directory = directory
        self._coordination = coordination
        self._open_store = open_store
        self._sink = sink
        self._locks: dict[str, asyncio.Lock] = {}
        self._reading: dict[str, CodeReader] = {}
        """The readers of digests that are being read. One that hangs outlives the call that waited for it."""
        self._in_use: frozenset[str] = frozenset()
        self._sweeping = asyncio.Lock()
        self._serial = 0

    def directory(self, ref: CodeRef) -> str:
        """The directory of the archive, whether or not it exists."""
        return str(self._path(ref))

    async def ensure(self, ref: CodeRef) -> str:
        """Fetch and unpack the archive if necessary. Concurrent calls share one piece of work.

        An existing copy is read and compared first, so that a damaged one is replaced. Raises NotFound,
        Unreachable, Refused, of which BadArchive holds on all nodes and for ever.
        """
        path = self._path(ref)
        async with self._lock_of(ref.digest):
            if not await asyncio.to_thread(self._is_whole, path):
                archive = await self._fetch(ref)
                await asyncio.to_thread(self._install, path, archive)
                self._sink.info("code unpacked", digest=ref.digest, bytes=ref.size, directory=str(path))
        return str(path)

    async def keep(self, in_use: frozenset[str]) -> None:
        """Remove unused archives, except the few used last. Raises Refused, Unreachable."""
        self._in_use = in_use
        async with self._sweeping:
            await asyncio.to_thread(self._sweep)
            for digest in await asyncio.to_thread(self._begun):
                async with self._lock_of(digest):
                    await asyncio.to_thread(self._remove_begun, digest)

    def _lock_of(self, digest: str) -> asyncio.Lock:
        return self._locks.setdefault(digest, asyncio.Lock())

    def _path(self, ref: CodeRef) -> Path:
        if not is_digest(ref.digest) or not 0 < ref.size <= MAX_PACKED_BYTES:
            raise UserError(f"{ref} names no archive of code")
        return self._directory / ref.digest

    async def _fetch(self, ref: CodeRef) -> bytes:
        if ref.digest in self._reading:
            raise Unreachable(f"{self._reading[ref.digest].place} has not answered since the last try")
        reader = self._reading[ref.digest] = CodeReader(self._coordination, self._open_store, ref.digest)
        archive = bytearray()
        reading = asyncio.create_task(_read_all(reader, ref.size, archive))
        reading.add_done_callback(partial(self._read_ended, ref.digest))
        try:
            # A store that hangs keeps the thread of a cancelled read: the task tells when it has come back.
            await asyncio.wait({reading}, timeout=FETCH_S)
            if not reading.done():
                raise TimeoutError
            reading.result()
        except TimeoutError as error:
            raise Unreachable(
                f"{len(archive)} of {ref.size} bytes of code came from {reader.place} in {FETCH_S:g} s"
            ) from error
        except NotFound as error:
            raise NotFound(
                f"the code {ref.digest[:12]} is not in {reader.place} any more; submit the job again"
            ) from error
        if len(archive) != ref.size or hashlib.sha256(archive).hexdigest() != ref.digest:
            raise Refused(
                f"the code in {reader.place} has not the digest {ref.digest[:12]}; submit the job again"
            )
        return bytes(archive)

    def _read_ended(self, digest: str, reading: asyncio.Task[None]) -> None:
        del self._reading[digest]
        if not reading.cancelled():
            reading.exception()  # the call that waited for it has told, or is gone

    # In threads.

    def _is_whole(self, path: Path) -> bool:
        with mapped_errors(f"read {path}"):
            try:
                manifest = unpack.from_json(_manifest_of(path).read_text())
            except FileNotFoundError:
                return False
            if manifest is None or not path.is_dir() or not unpack.is_whole(path, manifest):
                self._sink.warning("a copy of code is damaged; it is unpacked again", directory=str(path))
                return False
            os.utime(_manifest_of(path))
            return True

    def _install(self, path: Path, archive: bytes) -> None:
        """Unpack to a directory beside, then move it into place.

        A damaged copy is moved away whole: tasks may run in it.

        No file is synced: one that a crash of the machine damages is found by its sha256 and replaced.
        """
        temporary = path.with_name(path.name + _TMP)
        with mapped_errors(f"unpack code into {path}"):
            with effect("code.clear"):
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                _remove(temporary)
            try:
                with effect("code.unpack"):
                    manifest = unpack.unpack(archive, temporary)
            except BaseException:
                with suppress(OSError):
                    _remove(temporary)  # it may be what has filled the disk
                raise
            if path.exists():
                self._move_away(path)
            text = _manifest_of(temporary)
            with effect("code.write_manifest"):
                text.write_text(unpack.to_json(manifest))
                text.rename(_manifest_of(path))
            with effect("code.move_in"):
                temporary.rename(path)

    def _move_away(self, path: Path) -> None:
        while True:
            self._serial += 1
            away = path.with_name(f"{path.name}{_AWAY}{self._serial}")
            if not away.exists():
                with effect("code.move_away"):
                    path.rename(away)
                return

    def _sweep(self) -> None:
        with mapped_errors(f"clear {self._directory}"):
            if not self._directory.is_dir():
                return
            known = sorted(
                (path for path in self._directory.iterdir() if _is_manifest(path.name)),
                key=lambda path: -path.stat().st_mtime_ns,
            )
            unused = [path for path in known if self._is_idle(path.name.removesuffix(_MANIFEST))]
            for manifest in unused[KEPT_UNUSED:]:
                with effect("code.forget"):
                    manifest.unlink(missing_ok=True)
                tree = manifest.with_name(manifest.name.removesuffix(_MANIFEST))
                if tree.exists():
                    self._move_away(tree)
            for path in self._directory.iterdir():
                digest, mark, _ = path.name.partition(_AWAY)
                if mark and self._is_idle(digest):
                    with effect("code.remove"):
                        _remove(path)

    def _begun(self) -> list[str]:
        """Digests whose unpacking has begun but not ended, as after a crash."""
        with mapped_errors(f"clear {self._directory}"):
            if not self._directory.is_dir():
                return []
            names = (path.name.partition(_TMP) for path in self._directory.iterdir())
            return sorted({digest for digest, mark, _ in names if mark and is_digest(digest)})

    def _remove_begun(self, digest: str) -> None:
        temporary = self._directory / (digest + _TMP)
        with mapped_errors(f"clear {self._directory}"), effect("code.remove_begun"):
            _remove(temporary)
            _manifest_of(temporary).unlink(missing_ok=True)

    def _is_idle(self, digest: str) -> bool:
        lock = self._locks.get(digest)
        return digest not in self._in_use and (lock is None or not lock.locked())


async def _read_all(reader: CodeReader, size: int, archive: bytearray) -> None:
    """Append all chunks. Raises TimeoutError between two of them."""
    loop = asyncio.get_running_loop()
    end, index = loop.time() + FETCH_S, 0
    while index < chunk_count(size):
        if loop.time() >= end:
            raise TimeoutError
        try:
            archive += await reader.read(index)
            index += 1
        except CoordinationUnreachable:
            await asyncio.sleep(AGAIN_S)


def _is_manifest(name: str) -> bool:
    return is_digest(name.removesuffix(_MANIFEST)) and name.endswith(_MANIFEST)


def _manifest_of(path: Path) -> Path:
    return path.with_name(path.name + _MANIFEST)


def _remove(tree: Path) -> None:
    """Remove a read-only tree, of at most MAX_FILES files."""
    remove_tree(tree, most_s=math.inf)
