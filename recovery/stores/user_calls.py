"""The records that a daemon and its process for a user of HDFS exchange, each with bytes, over one socket."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from typing import TypeVar

from supervisor.contract import codec, errors
from supervisor.contract.boundaries import StoredDirectory, StoredFile
from supervisor.contract.containment import described
from supervisor.contract.errors import TfSupervisorError

T = TypeVar("T")
_LENGTHS = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class StoreCall:
    """A method of the `CheckpointStore` at `uri`. An empty method: nobody waits for this call any more."""

    number: int
    uri: str
    method: str = ""
    paths: tuple[str, ...] = ()
    limit: int = 0


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """How a call gets on: so many more bytes were moved; its end, if `done`. Number 0: a sign of life."""

    number: int
    moved: int = 0
    done: bool = False
    crc32c: int = 0
    file: StoredFile | None = None
    directory: StoredDirectory | None = None
    failure: str = ""
    text: str = ""

    def check(self) -> None:
        """Raise what the call has raised there."""
        if self.failure:
            kind = getattr(errors, self.failure)
            raise kind(self.text)
        if self.text:
            raise RuntimeError(self.text)


def failed(number: int, error: Exception) -> StoreAnswer:
    """The end of a call by an error: one of our tree, or a bug."""
    for kind in type(error).__mro__:
        if issubclass(kind, TfSupervisorError) and kind.__module__ == errors.__name__:
            return StoreAnswer(number, done=True, failure=kind.__name__, text=str(error))
    return StoreAnswer(number, done=True, text=described(error))


def send(writer: asyncio.StreamWriter, record: object, data: bytes = b"") -> None:
    """Send a record, whole and in order."""
    raw = codec.encode(record)
    writer.write(_LENGTHS.pack(len(raw), len(data)) + raw + data)


async def receive(reader: asyncio.StreamReader, kind: type[T]) -> tuple[T, bytes]:
    """The next record. Raises IncompleteReadError at the end, ConnectionError, IncompatibleRecord."""
    size, more = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
    raw = await reader.readexactly(size)
    return codec.decode(kind, raw), await reader.readexactly(more)
