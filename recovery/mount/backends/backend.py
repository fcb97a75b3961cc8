"""The interface of a mount to the file system that keeps checkpoints.

HDFS and a local directory pass one suite.

Paths are relative to the root of the job's store, '/'-separated. Every call ends by a deadline of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or a directory; `name` is its own, without its parents. `mtime_ms` is since the Unix epoch."""

    name: str
    size: int
    mtime_ms: int
    directory: bool


class Reader(Protocol):
    """An open file. A rename does not change the bytes that it reads."""

    @property
    def size(self) -> int:
        """The size in bytes at its opening."""

    async def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`; fewer at the end only. Several calls may run at the same time."""

    async def close(self) -> None:
        """Release it."""


class Writer(Protocol):
    """A file that is being appended to. One call at a time."""

    async def copy(self, read: Callable[[], bytes]) -> None:
        """Append the pieces that `read` returns until it returns none; it is called in one thread.

        Its errors (OSError, ours) are raised as they are. A call that is cancelled may go on there until
        `read` raises.
        """

    async def close(self) -> None:
        """Close the file. It is durable, and its size is confirmed, when this returns."""

    async def abandon(self) -> None:
        """Give up. The caller deletes the rest. Never raises."""


class Backend(Protocol):
    """A tree of files that are written once.

    Raises, from any call: StoreUnreachable (outcome unknown), Refused (permission, quota), UserError (path).
    """

    async def info(self, path: str) -> Entry | None:
        """The entry at a path; None if there is none."""

    async def list(self, path: str) -> tuple[Entry, ...]:
        """The children of a directory, sorted by name. Raises NotFound."""

    async def probe(self, path: str) -> None:
        """Prove that a directory can be listed, without all of its listing. Raises NotFound."""

    async def mkdirs(self, path: str) -> None:
        """Make a directory and its parents; not an error if it is there. Raises Conflict for a file."""

    async def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Move a file or directory atomically. Raises NotFound, Conflict (`target` exists, or is no file)."""

    async def delete(self, path: str, *, recursive: bool) -> bool:
        """Delete an entry; returns whether there was one.

        Raises Conflict for a directory that is not empty.
        """

    async def open(self, path: str) -> Reader:
        """Open a file. Raises NotFound."""

    async def create(self, path: str) -> Writer:
        """Open a new file to write, in a directory that exists. Raises Conflict, NotFound."""

    async def append(self, path: str) -> Writer:
        """Open a file to append to. Raises NotFound."""

    async def close(self) -> None:
        """Release connections."""


async def read_small(backend: Backend, path: str, limit: int) -> bytes:
    """The beginning of a file, at most `limit` bytes. Raises NotFound."""
    reader = await backend.open(path)
    try:
        return await reader.read(0, limit)
    finally:
        await reader.close()


async def write_small(backend: Backend, path: str, data: bytes) -> None:
    """Make a file with these bytes, in a directory that exists. Raises Conflict, NotFound.

    After any other error the caller deletes the rest of the file.
    """
    writer = await backend.create(path)
    try:
        await writer.copy(once(data))
        await writer.close()
    except BaseException:
        await writer.abandon()
        raise


def once(data: bytes) -> Callable[[], bytes]:
    """An argument for `Writer.copy`: it returns all of `data`, then nothing."""
    left = iter((data, b""))
    return lambda: next(left)
