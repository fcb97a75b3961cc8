"""The client for HDFS; with `hdfs_files`, the only importer of `hdfs_native`.

It adds to the library: a deadline on every call, a fresh connection to another NameNode after silence,
bounded retries of failures that may pass, errors of our tree that name the server and the remedy, and files
that count as written only after an explicit close (decision 0018).

Paths are absolute paths in HDFS. A call that is cancelled may still take effect. A file exists only once
`HdfsWriter.close` has returned for it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

from hdfs_native import Client, FileReader, FileStatus, WriteOptions

from recovery.stores.hdfs_errors import Failure, Meaning, read_failure
from recovery.stores.hdfs_files import DataLost, FileInfo, HdfsReader, HdfsWriter, Patience, Place
from recovery.stores.hdfs_joining import Joiner
from recovery.stores.hdfs_threads import Threads
from supervisor.adapters.files.hadoop import (
    CONF_DIR_VARIABLE,
    TICKET_CACHE_VARIABLE,
    USER_VARIABLE,
    HadoopConf,
    HadoopSettings,
    Kerberos,
    read_conf,
)
from supervisor.contract.boundaries import Logger
from supervisor.contract.errors import (
    Conflict,
    NotFound,
    OutOfSpace,
    Refused,
    StoreUnreachable,
    TfSupervisorError,
    UserError,
)

if TYPE_CHECKING:
    from hdfs_native._internal import RawFileWriter

T = TypeVar("T")
_DEFAULTS = HadoopSettings()
DEFAULT_BLOCK_BYTES = 128 << 20
_LANES = 2
"""Number of connections to a cluster with one NameNode: when one is silent, the other is tried."""
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


PATIENT = Patience()


@dataclass(slots=True)
class _Trail:
    """The attempts of a call: whether one got no answer, so that it may have taken effect, and whether one
    was answered.
    """

    unsure: bool = False
    answered: bool = False


class HdfsClient:
    """One HDFS cluster, by the authority of its URI: a nameservice, or the `HOST:PORT` of its one NameNode.

    It reads Hadoop's configuration when it is made and connects when it is first used.
    Raises, from any call: StoreUnreachable (outcome unknown), Refused (permission, quota, credentials),
    UserError (a path that HDFS does not accept).
    """

    def __init__(
        self,
        authority: str,
        hadoop: HadoopSettings = _DEFAULTS,
        patience: Patience = PATIENT,
        sink: Logger | None = None,
    ) -> None:
        self.uri = f"hdfs://{authority}"
        self.patience = patience
        self._hadoop = hadoop
        self._directory = hadoop.directory()
        conf = read_conf(self._directory)
        self._nameservice = authority
        self._nodes = () if ":" in authority else conf.namenodes(authority)
        if ":" not in authority and not self._nodes:
            raise UserError(_unknown(authority, conf, str(self._directory) if self._directory else None))
        self._block_bytes = _size(conf.properties.get("dfs.blocksize"))
        self._replication = _size(conf.properties.get("dfs.replication"))
        self._lane = 0
        self._threads = Threads()
        web = () if hadoop.kerberos else conf.web_addresses(authority)
        self.joiner = Joiner(self.uri, web, self.info, patience, self._threads, sink)
        self._discarding: set[asyncio.Task[None]] = set()

    @property
    def block_bytes(self) -> int:
        """The size of a file's blocks in bytes: the configured one, or Hadoop's default."""
        return self._block_bytes or DEFAULT_BLOCK_BYTES

    @property
    def servers(self) -> str:
        """The cluster and its NameNodes, for messages."""
        if not self._nodes:
            return self.uri
        return f"{self.uri} ({', '.join(node.address for node in self._nodes)})"

    async def info(self, path: str) -> FileInfo:
        """The file or directory at `path`. Raises NotFound."""
        return _info(await self._call(f"look at {path}", lambda hdfs: hdfs.get_file_info(path)))

    async def list(self, path: str) -> tuple[FileInfo, ...]:
        """The children of a directory, sorted by name; for a file, the file alone. Raises NotFound."""
        found = await self._call(
            f"list {path}",
            lambda hdfs: [_info(one) for one in hdfs.list_status(path)],
            answer_ms=self.patience.list_ms,
        )
        return tuple(sorted(found, key=lambda one: one.path))

    async def probe(self, path: str) -> None:
        """Prove that the first entries of a directory can be listed; a file is one. Raises NotFound."""
        await self._call(f"list {path}", lambda hdfs: next(iter(hdfs.list_status(path)), None))

    async def mkdirs(self, path: str) -> None:
        """Make a directory and its parents; it may be there. Raises Conflict where a file is in the way."""
        await self._call(f"make {path}", lambda hdfs: hdfs.mkdirs(path, create_parent=True), making=True)

    async def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Move a file or directory atomically. Raises NotFound; Conflict if `target` exists."""
        before = await self.info(source)
        trail = _Trail()
        try:
            await self._call(
                f"rename {source} to {target}",
                lambda hdfs: hdfs.rename(source, target, overwrite),
                making=True,
                trail=trail,
            )
        except NotFound as error:
            # Also the library sends a call again when its connection breaks: it may have been the first.
            if await self._moved(before, target):
                return
            if trail.unsure:
                raise self._unknown(f"rename {source} to {target}", "an answer was lost") from error
            raise

    async def delete(self, path: str, *, recursive: bool) -> bool:
        """Remove a file or directory; returns whether there was one. Raises Conflict if it has children."""
        trail = _Trail()
        done = await self._call(f"delete {path}", lambda hdfs: hdfs.delete(path, recursive), trail=trail)
        return done or trail.unsure

    async def open(self, path: str) -> HdfsReader:
        """Open a file to read, with its present size. Raises NotFound, UserError for a directory."""

        async def reopen() -> FileReader:
            return await self._open_whole(path)

        return HdfsReader(self._place(path), await reopen(), reopen)

    async def _open_whole(self, path: str) -> FileReader:
        """Open a file with all of its blocks.

        Where the NameNode lets a file be closed before its last block is complete
        (`dfs.namenode.file.close.num-committed-allowed`), the client leaves that block out for some
        milliseconds: the file would be read short, and a good checkpoint taken for a bad one.
        """
        pauses, loop = self.patience.pauses(), asyncio.get_running_loop()
        end = loop.time() + self.patience.call_ms / 1000
        while True:
            raw = await self._call(f"open {path}", lambda hdfs: hdfs.read(path))
            size = (await self.info(path)).size
            if len(raw) >= size:
                return raw
            if loop.time() >= end:
                raise DataLost(f"{self.uri}{path}: DataNodes report {len(raw)} of its {size} bytes")
            await pauses.wait()

    async def read(self, path: str, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset`; fewer at the end. Raises NotFound."""
        reader = await self.open(path)
        return await reader.read(offset, length)

    async def create(
        self, path: str, *, overwrite: bool, parents: bool = False, block_bytes: int | None = None
    ) -> HdfsWriter:
        """Open a new file to write. Raises Conflict when it exists; NotFound without its directory.

        Args:
            path: the absolute path of the file.
            overwrite: replace an existing file, even while another writer has it open.
            parents: make the directories above it.
            block_bytes: size of its blocks; None for the size of the configuration or the NameNode.
        """
        options = WriteOptions(
            block_size=block_bytes or self._block_bytes,
            replication=self._replication,
            overwrite=overwrite,
            create_parent=parents,
        )
        trail = _Trail()

        def remove(_raw: RawFileWriter) -> None:
            if not trail.answered:
                self._connection().delete(path)

        try:
            raw = await self._call(
                f"create {path}",
                lambda hdfs: hdfs.inner.create(path, options),
                making=True,
                trail=trail,
                late=remove,
            )
        except Conflict as error:
            if trail.unsure:
                raise self._unknown(f"create {path}", "it is there, perhaps by a try of ours") from error
            raise
        return HdfsWriter(self._place(path), raw, lambda: self.delete(path, recursive=False))

    async def append(self, path: str) -> HdfsWriter:
        """Open an existing file to append to. Raises NotFound; Conflict while another client has it open."""
        raw = await self._call(f"append to {path}", lambda hdfs: hdfs.inner.append(path))
        return HdfsWriter(self._place(path), raw, None)

    def discard(self, path: str) -> None:
        """Remove the file of an unfinished write in the background, even if the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(self._discard(path))
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)

    async def close(self) -> None:
        """End the work in the background."""
        if self._discarding:
            await asyncio.wait(self._discarding, timeout=self.patience.answer_ms / 1000)
        for task in self._discarding:
            task.cancel()
        await asyncio.gather(*self._discarding, return_exceptions=True)
        await asyncio.to_thread(self._threads.wait_idle, self.patience.answer_ms / 1000)

    async def _discard(self, path: str) -> None:
        # What cannot be removed now is hidden by its name, and removed with its directory.
        with suppress(TfSupervisorError):
            await self.delete(path, recursive=False)

    def _turn_away(self, lane: int) -> None:
        """Make the next call use another connection, which asks the next NameNode of a nameservice first."""
        if self._lane == lane:
            self._lane = (lane + 1) % max(_LANES, len(self._nodes))

    async def _call(
        self,
        doing: str,
        work: Callable[[Client], T],
        *,
        making: bool = False,
        trail: _Trail | None = None,
        late: Callable[[T], object] | None = None,
        answer_ms: int | None = None,
    ) -> T:
        """Run one call of the library, with retries, until it has a final answer or `call_ms` are over.

        `answer_ms`: limit for one try; None: that of `patience`.
        """
        trail = trail or _Trail()
        patience = self.patience
        clock = asyncio.get_running_loop().time
        end = clock() + patience.call_ms / 1000
        pauses = patience.pauses()
        answer_ms = answer_ms or patience.answer_ms
        failure = silence = Failure(Meaning.UNKNOWN, f"no answer within {answer_ms / 1000:g} s")
        while True:
            lane, hdfs = self._lane, self._connection()
            left_s = max(0.001, end - clock())
            limit_s = min(answer_ms / 1000, left_s)
            try:
                result = await self._threads.run(partial(work, hdfs), limit_s, late)
            except TimeoutError:
                # A last try that was cut short tells nothing: what the one before was told is the reason.
                failure = failure if limit_s == left_s else silence
                trail.unsure = True
                self._turn_away(lane)
            except (OSError, RuntimeError, ValueError) as error:
                failure = read_failure(error)
                if not failure.may_pass:
                    raise self.error(failure, doing, making=making) from error
                if failure.meaning is Meaning.UNKNOWN:
                    self._turn_away(lane)
            else:
                trail.answered = True
                return result
            trail.unsure |= failure.meaning is Meaning.UNKNOWN
            if clock() >= end:
                raise self.error(failure, doing, making=making)
            await pauses.wait()

    def error(self, failure: Failure, doing: str, *, making: bool = False) -> TfSupervisorError:
        """The error of our tree for a failure, with the server and the remedy."""
        what = f"cannot {doing} in {self.uri}: {failure.text}"
        match failure.meaning:
            case Meaning.NOT_FOUND:
                return NotFound(what)
            case Meaning.CONFLICT:
                return Conflict(what)
            case Meaning.NOT_A_DIRECTORY:
                return Conflict(what) if making else NotFound(what)
            case Meaning.NO_RIGHT:
                return Refused(f"{what}; give that user the right with `hdfs dfs -chown` or `-setfacl`")
            case Meaning.QUOTA:
                return OutOfSpace(
                    f"{what}; raise it with `hdfs dfsadmin -setSpaceQuota` or keep fewer checkpoints"
                )
            case Meaning.CREDENTIALS:
                return Refused(f"{what}; check hadoop.kerberos, and the ticket with klist")
            case Meaning.PATH:
                return UserError(what)
            case Meaning.LOST:
                return DataLost(what)
            case Meaning.LATER | Meaning.UNKNOWN:
                return self._unknown(doing, failure.text)

    def _unknown(self, doing: str, text: str) -> StoreUnreachable:
        return StoreUnreachable(
            f"cannot {doing}: HDFS {self.servers}: {text}; "
            "check that its active NameNode runs and has left safe mode (`hdfs dfsadmin -safemode get`)"
        )

    def _place(self, path: str) -> Place:
        return Place(path, self.uri, self.patience, self._threads, partial(self.error, making=True))

    async def _moved(self, before: FileInfo, target: str) -> bool:
        """Whether `target` is the source after its rename: a rename changes neither size nor time."""
        try:
            found = await self.info(target)
        except NotFound:
            return False
        return (found.is_dir, found.size, found.mtime_ms) == (before.is_dir, before.size, before.mtime_ms)

    def _connection(self) -> Client:
        # Ours is the retry that counts: it changes the connection, and it ends. The library may ask each
        # NameNode once; one time more and it wants to pause, which panics outside a runtime of its own.
        config = {"dfs.client.failover.max.attempts": str(max(0, len(self._nodes) - 1))}
        if self._nodes:
            first = self._lane % len(self._nodes)
            config.update(HadoopConf.reordered(self._nameservice, self._nodes, first))
        kerberos = self._hadoop.kerberos
        identity = (os.environ.get(USER_VARIABLE), os.environ.get(TICKET_CACHE_VARIABLE))
        directory = str(self._directory) if self._directory else None
        return _made_once(self.uri, tuple(config.items()), directory, kerberos, (*identity, self._lane))


@cache
def _made_once(
    uri: str,
    config: tuple[tuple[str, str], ...],
    directory: str | None,
    kerberos: Kerberos | None,
    _distinct: tuple[str | None, str | None, int],
) -> Client:
    """A connection of the library, shared by the whole process and never freed.

    Freeing one waits for its threads while it holds the interpreter's lock, even for a thread that waits for
    a DNS that does not answer. So there are few, and the end of the interpreter does not free them either.
    """
    made = Client(
        uri,
        dict(config),
        directory,
        kerberos_principal=kerberos.principal if kerberos else None,
        kerberos_keytab=kerberos.keytab if kerberos else None,
        kerberos_cache=kerberos.cache if kerberos else None,
    )
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return made


def _info(status: FileStatus) -> FileInfo:
    return FileInfo(status.path, status.length, status.isdir, status.modification_time)


def _unknown(authority: str, conf: HadoopConf, directory: str | None) -> str:
    known = ", ".join(conf.nameservices) or "none"
    where = directory or f"no directory ({CONF_DIR_VARIABLE} is not set)"
    return (
        f"hdfs://{authority}: no nameservice {authority!r} in {where}, which knows: {known}; "
        f"set {CONF_DIR_VARIABLE} or hadoop.conf_dir, or write the NameNode's port: hdfs://{authority}:8020"
    )


def _size(text: str | None) -> int | None:
    """A number of Hadoop's configuration, with a unit or without; None for anything else."""
    if not text:
        return None
    digits, unit = text.strip().lower(), 1
    if digits[-1:] in _UNITS:
        digits, unit = digits[:-1], _UNITS[digits[-1]]
    return int(digits) * unit if digits.isdigit() else None
