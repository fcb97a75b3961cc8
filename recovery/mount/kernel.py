"""The only importer of mfusepy: the kernel's calls, on threads, become work of `MountedFiles` on the loop.

mfusepy loads the libfuse of FUSE_LIBRARY_PATH. `control.start` sets it to libfuse 3, as writes have 4 KiB
with libfuse 2.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import itertools
import stat
import time
import zlib
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import mfusepy

from recovery.mount.caller import is_dying
from recovery.mount.filesystem import MountedFiles, Stat, wait_for

T = TypeVar("T")
_BLOCK = 1 << 20
_THREADS = 32
HURRY_S = 1.0
"""Seconds that a call waits while the store does not answer other calls."""

TRY_AGAIN_S = 10.0

STALLED_S = 2.0
"""Seconds for which a call waits for the store before its program counts as stalled."""

_READ_AHEAD = Path("/sys/class/bdi")
_FILE = stat.S_IFREG | 0o600
_DIRECTORY = stat.S_IFDIR | 0o700
_READ_ONLY = ~0o222
_RENAME_FLAGS_KNOWN = 0


class _Config(Protocol):
    """The used fields of libfuse's `fuse_config`."""

    nullpath_ok: int
    use_ino: int
    hard_remove: int
    direct_io: int
    auto_cache: int
    entry_timeout: float
    attr_timeout: float
    negative_timeout: float


class _Connection(Protocol):
    """The used fields of libfuse's `fuse_conn_info`."""

    max_readahead: int


@dataclass(frozen=True, slots=True)
class MountOptions:
    """The options of a mount.

    Attributes:
        source: the device name in the output of `mount`.
        answer_s: limit for a call of the kernel in seconds; `flush_s` is the limit for a flush.
        user: (uid, gid) of the files' owner; the kernel refuses all others except root.
        allow_other: whether the owner is another user than this process's, which needs root or
            `user_allow_other`.
        kept_s: the files are only read. The kernel keeps attributes for so long, and what it has read until
            a file changes. None: files are written too, and nothing is kept.
    """

    source: str
    answer_s: float
    flush_s: float
    user: tuple[int, int]
    allow_other: bool
    kept_s: float | None = None


class ReadFiles(Protocol):
    """Files that can be read, by name and by the number of an opening. Every failure is an OSError.

    `read` may be called from any thread but the loop's; all else on the loop.
    """

    async def stat(self, name: str, number: int | None = None) -> Stat:
        """The status of a file."""

    async def list(self, name: str) -> tuple[tuple[str, bool], ...]:
        """Names of the children of a directory, and whether each is a directory."""

    async def open(self, name: str, flags: int) -> int:
        """Open a file; returns a number."""

    def read(
        self, number: int, offset: int, size: int, limit_s: float, in_vain: Callable[[], bool] = ...
    ) -> bytes | memoryview:
        """Bytes of an open file; limits and errors are those of `wait_for`."""

    async def flush(self, number: int) -> None:
        """Bring what was written to the store."""

    async def release(self, number: int) -> None:
        """Close it."""


class _Fuse(mfusepy.FUSE):
    """mfusepy with a read that copies once, from a view, and with its own handling of renames that must not
    replace: mfusepy takes bytes alone, and would replace.
    """

    def read(
        self,
        path: bytes | None,
        buf: ctypes._Pointer[ctypes.c_byte],
        size: int,
        offset: int,
        fip: ctypes._Pointer[mfusepy.fuse_file_info],
    ) -> int:
        """Copy what was read to libfuse's memory."""
        found = self.operations.read(path, size, offset, fip.contents.fh)
        to = (ctypes.c_char * size).from_address(ctypes.addressof(buf.contents))
        memoryview(to).cast("B")[: len(found)] = found
        return len(found)

    def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> int:
        """Rename, and refuse flags that `rename` cannot keep."""
        if flags != _RENAME_FLAGS_KNOWN:
            return -errno.EINVAL
        done: int = super().rename_fuse_3(old, new, flags)
        return done


class ReadOperations:
    """The operations for reading that mfusepy calls, by name, from any thread. It refuses all others.

    `ready` is called when the kernel has mounted it, `failed` before a program gets EIO.
    """

    use_ns = True

    def __init__(
        self,
        files: ReadFiles,
        loop: asyncio.AbstractEventLoop,
        options: MountOptions,
        ready: Callable[[], None],
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._read = files
        self._loop = loop
        self._options = options
        self._ready = ready
        self._failed = failed
        self._silent = False
        self._try_at_s = 0.0
        self._numbers = itertools.count(1)
        self._directories: dict[int, str] = {}
        self._since_s: dict[int, float] = {}

    @property
    def stalled(self) -> bool:
        """Whether a call has waited for the store for a while."""
        before_s = time.monotonic() - STALLED_S
        return any(each < before_s for each in tuple(self._since_s.values()))

    def init_with_config(self, connection: _Connection | None, config: _Config | None) -> None:
        """The kernel has mounted it."""
        if connection is not None:
            connection.max_readahead = _BLOCK
        if config is not None:
            # Other nodes write to the same directory: nothing that they may change is remembered.
            config.entry_timeout = config.attr_timeout = config.negative_timeout = 0.0
            config.nullpath_ok = config.use_ino = config.hard_remove = 1
            # Not by way of the page cache: a read is 1 MiB, and is of what the store has now.
            config.direct_io = 1
            if self._options.kept_s is not None:
                config.entry_timeout = config.attr_timeout = self._options.kept_s
                config.direct_io, config.auto_cache = 0, 1
        self._ready()

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, int]:
        """stat(2)."""
        name = _name(path)
        return self._attributes(name, self._call(self._read.stat(name, fh)))

    def opendir(self, path: str) -> int:
        """Returns a handle: with `nullpath_ok` the other calls get the handle alone."""
        number = next(self._numbers)
        self._directories[number] = _name(path)
        return number

    def releasedir(self, _path: str | None, fh: int) -> int:
        """The handle is closed."""
        self._directories.pop(fh, None)
        return 0

    def readdir(self, _path: str | None, fh: int) -> list[tuple[str, dict[str, int], int]]:
        """Names in a directory, with their kind and number: an entry without a number is not shown."""
        here = self._directories[fh]
        found: list[tuple[str, dict[str, int], int]] = [
            (
                name,
                {
                    "st_mode": _DIRECTORY if directory else _FILE,
                    "st_ino": _number(f"{here}/{name}" if here else name),
                },
                0,
            )
            for name, directory in self._call(self._read.list(here))
        ]
        return [(name, {"st_mode": _DIRECTORY, "st_ino": 1}, 0) for name in (".", "..")] + found

    def open(self, path: str, flags: int) -> int:
        """Returns a handle."""
        return self._call(self._read.open(_name(path), flags))

    def read(self, _path: str | None, size: int, offset: int, fh: int) -> bytes | memoryview:
        """The system call."""
        with self._told(), self._waiting():
            return self._read.read(fh, offset, size, self._options.answer_s, _caller())

    def flush(self, _path: str | None, fh: int) -> int:
        """On every close(2): an error here is that of the close."""
        return self._done(self._read.flush(fh), self._options.flush_s)

    def release(self, _path: str | None, fh: int) -> int:
        """After the last close(2)."""
        return self._done(self._read.release(fh))

    def statfs(self, _path: str) -> dict[str, int]:
        """Constant large numbers: a quota shows only when it is reached."""
        plenty = 1 << 30
        return {
            "f_bsize": _BLOCK,
            "f_frsize": _BLOCK,
            "f_blocks": plenty,
            "f_bfree": plenty,
            "f_bavail": plenty,
            "f_files": plenty,
            "f_ffree": plenty,
            "f_favail": plenty,
            "f_namemax": 255,
        }

    def _attributes(self, name: str, found: Stat) -> dict[str, int]:
        kind = _DIRECTORY if found.directory else _FILE
        return {
            "st_mode": kind if self._options.kept_s is None else kind & _READ_ONLY,
            "st_nlink": 2 if found.directory else 1,
            "st_ino": _number(name),
            "st_size": found.size,
            "st_blocks": -(-found.size // 512),
            "st_blksize": _BLOCK,
            "st_uid": self._options.user[0],
            "st_gid": self._options.user[1],
            "st_mtime": found.mtime_ns,
            "st_ctime": found.mtime_ns,
            "st_atime": found.mtime_ns,
        }

    def _done(self, work: Coroutine[None, None, None], limit_s: float | None = None) -> int:
        self._call(work, limit_s)
        return 0

    def _call(self, work: Coroutine[None, None, T], limit_s: float | None = None) -> T:
        """Run `work` within the limit, or within HURRY_S while the store does not answer, or until the caller
        is killed.

        The kernel serialises calls on one directory, so without HURRY_S each of them would wait for the full
        limit. Sometimes one call tries for the full limit again.
        """
        limit_s = limit_s or self._options.answer_s
        with self._told(), self._waiting(), self._patience(limit_s) as patience_s:
            return wait_for(work, self._loop, patience_s, _caller())

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Record a failure before the program gets the error and perhaps ends, so that its agent finds the
        reason.
        """
        try:
            yield
        except OSError as error:
            if error.errno == errno.EIO:
                self._failed()
            raise

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        number = next(self._numbers)
        self._since_s[number] = time.monotonic()
        try:
            yield
        finally:
            del self._since_s[number]

    @contextmanager
    def _patience(self, limit_s: float) -> Iterator[float]:
        now_s = time.monotonic()
        hurried = self._silent and now_s < self._try_at_s
        if not hurried:
            self._try_at_s = now_s + limit_s + TRY_AGAIN_S
        try:
            yield min(limit_s, HURRY_S) if hurried else limit_s
        except OSError as error:
            self._silent = self._silent or error.errno == errno.EIO
            raise
        else:
            self._silent = False


class Operations(ReadOperations):
    """The operations of a directory that is written too."""

    def __init__(
        self,
        files: MountedFiles,
        loop: asyncio.AbstractEventLoop,
        options: MountOptions,
        ready: Callable[[], None],
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(files, loop, options, ready, failed)
        self._files = files

    def create(self, path: str, _mode: int, flags: int) -> int:
        """Returns a handle. The mode is ignored: all files belong to one user alone."""
        return self._call(self._files.create(_name(path), flags))

    def write(self, _path: str | None, data: bytes, offset: int, fh: int) -> int:
        """The system call."""
        return self._files.write(fh, data, offset)

    def fsync(self, _path: str | None, _datasync: int, fh: int) -> int:
        """The same."""
        return self._done(self._files.flush(fh), self._options.flush_s)

    def truncate(self, path: str, length: int, _fh: int | None = None) -> int:
        """The system call."""
        return self._done(self._files.truncate(_name(path), length), self._options.flush_s)

    def mkdir(self, path: str, _mode: int) -> int:
        """The system call."""
        return self._done(self._files.mkdir(_name(path)))

    def rmdir(self, path: str) -> int:
        """The system call."""
        return self._done(self._files.rmdir(_name(path)))

    def unlink(self, path: str) -> int:
        """The system call."""
        return self._done(self._files.unlink(_name(path)))

    def rename(self, old: str, new: str) -> int:
        """The system call."""
        return self._done(self._files.rename(_name(old), _name(new)), self._options.flush_s)

    def chmod(self, _path: str | None, _mode: int) -> int:
        """Accepted, without effect: programs that copy files ask for it."""
        return 0

    def chown(self, _path: str | None, _uid: int, _gid: int) -> int:
        """Accepted, without effect."""
        return 0

    def utimens(self, _path: str | None, _times: tuple[int, int] | None = None) -> int:
        """Accepted, without effect."""
        return 0


def mount(operations: ReadOperations, directory: str, options: MountOptions) -> None:
    """Mount, and serve until it is unmounted or SIGTERM comes. Blocks; call it on the main thread.

    Raises OSError or RuntimeError when it cannot be mounted.
    """
    extra = {"allow_other": True} if options.allow_other else {}
    # The kernel compares the caller with the owner and the mode of each file: we only say what these are.
    extra["default_permissions"] = True
    if options.kept_s is not None:
        # The kernel itself refuses to write: EROFS.
        extra["ro"] = True
    _Fuse(
        operations,
        directory,
        foreground=True,
        fsname=options.source,
        subtype="tfsup",
        max_threads=_THREADS,
        max_idle_threads=_THREADS,
        **extra,
    )


def read_further_ahead(directory: str) -> None:
    """Let the kernel read ahead by as much as one request may have, 1 MiB. By itself it reads 128 KiB ahead.

    Without the right to say it, reads are smaller and slower.
    """
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields = line.split(" ")
        if fields[4] == directory and "fuse" in line.partition(" - ")[2]:
            with suppress(OSError):
                (_READ_AHEAD / fields[2] / "read_ahead_kb").write_text(str(_BLOCK >> 10))


def _caller() -> Callable[[], bool]:
    """A test whether the caller that this thread serves is being killed."""
    *_, thread = mfusepy.fuse_get_context()
    return partial(is_dying, thread)


def _number(name: str) -> int:
    """An inode's number: the same on every node, and never 0."""
    return zlib.crc32(name.encode(errors="surrogateescape")) + 2 if name else 1


def _name(path: str | None) -> str:
    return (path or "/").removeprefix("/")
