"""The bytes of a file straight from its DataNodes, for whoever knows the checksum that they must have.

The client library checks HDFS's own checksums as it reads, copies each packet three times and wakes two
threads for it (decision 0028). Here none of that is done. What comes is good for nothing but to be compared
with a checksum; where that is wrong, the file is read again by the library, which finds the good copy.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import secrets
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import google_crc32c

from recovery.stores.hdfs_threads import Threads, TooManyHang
from recovery.stores.hdfs_wire import (
    READ_DONE,
    Block,
    NotDirect,
    locate_answer,
    locate_request,
    read_answer,
    read_packet,
    read_request,
)
from supervisor.adapters.hadoop import USER_VARIABLE, HadoopConf, HadoopSettings

T = TypeVar("T")
LOCATE_S = 2.0
QUIET_S = 3.0
SHUNNED_S = 60.0
BUFFER_BYTES = 256 << 10
"""Several packets; those of DataNodes have 64 KiB."""

WAKE_BYTES = 128 << 10
"""A thread is woken for so many bytes, not for each packet."""

_MOST_ANSWER_BYTES = 64 << 20
_LENGTH = struct.Struct(">I")
_TIME = struct.Struct("ll")

Take = Callable[[int, Sequence[bytes]], None]
"""Told an offset in the file and the pieces that follow each other there."""


@dataclass(frozen=True, slots=True)
class Direct:
    """One cluster, whose NameNodes are at `addresses` (`HOST:PORT`).

    `by_name`: DataNodes are reached by their host names, not by the addresses that they registered with.
    """

    addresses: tuple[str, ...]
    by_name: bool

    @classmethod
    def of(cls, addresses: tuple[str, ...], conf: HadoopConf, hadoop: HadoopSettings) -> Direct | None:
        """None where a client has to prove who it is, or data is encrypted on its way."""
        told = conf.properties
        plain = told.get("hadoop.security.authentication", "simple").lower() == "simple"
        encrypted = told.get("dfs.encrypt.data.transfer", "false").lower() == "true"
        protected = told.get("dfs.data.transfer.protection") or encrypted
        if not plain or protected or hadoop.kerberos is not None:
            return None
        return cls(addresses, told.get("dfs.client.use.datanode.hostname", "false").lower() == "true")

    def locate(self, path: str, size: int) -> tuple[Block, ...]:
        """Where the blocks of a file of this size are. Raises NotDirect."""
        asked = locate_request(path, size, _user(), secrets.token_bytes(16))
        trouble: Exception = NotDirect("it has no NameNode")
        for address in self.addresses:
            host, _, port = address.rpartition(":")
            try:
                found, blocks = locate_answer(_answer((host.strip("[]"), int(port)), asked))
            except (OSError, ValueError, NotDirect) as error:
                trouble = error
                continue
            if found != size:
                raise NotDirect(f"{path} has {found} bytes, not {size}")
            return blocks
        raise NotDirect(str(trouble)) from trouble

    def read(self, block: Block, offset: int, size: int, take: Take) -> int:
        """Hand `size` bytes from `offset` of the block to `take`; returns their crc32c.

        Of several DataNodes the next one is asked when one fails; `take` may then be told the same bytes
        again. Raises NotDirect, and what `take` raises.
        """
        trouble = ""
        for address, name, port in block.replicas:
            try:
                link = socket.create_connection((name if self.by_name else address, port), QUIET_S)
            except OSError as error:
                trouble = str(error)
                continue
            with link:
                try:
                    return _Transfer(link, block, offset, size, take).run()
                except (_Broken, NotDirect) as error:
                    trouble = str(error)
        raise NotDirect(trouble)


class DirectReads:
    """The same for an event loop: in threads, with limits."""

    def __init__(self, direct: Direct, threads: Threads, limit_s: float) -> None:
        self._direct = direct
        self._threads = threads
        self._limit_s = limit_s
        self._again = 0.0

    @property
    def promising(self) -> bool:
        """Whether nothing has failed lately: what fails may cost seconds, and there may be many files."""
        return asyncio.get_running_loop().time() >= self._again

    async def blocks(self, path: str, size: int) -> tuple[Block, ...]:
        """Where the blocks of a file of this size are. Raises NotDirect."""
        return await self._run(partial(self._direct.locate, path, size))

    async def read(self, block: Block, offset: int, size: int, take: Take) -> int:
        """As `Direct.read`. After an error or a cancellation `take` may be told something a last time."""
        handed_on = 0
        left = False

        def watched(at: int, pieces: Sequence[bytes]) -> None:
            nonlocal handed_on
            if left:
                raise NotDirect("nobody waits for it any more")
            take(at, pieces)
            handed_on += sum(map(len, pieces))

        try:
            return await self._run(
                partial(self._direct.read, block, offset, size, watched), lambda: handed_on
            )
        finally:
            left = True

    async def _run(self, work: Callable[[], T], progress: Callable[[], int] | None = None) -> T:
        try:
            return await self._threads.run(work, self._limit_s, progress=progress)
        except (NotDirect, TimeoutError, TooManyHang) as error:
            self._again = asyncio.get_running_loop().time() + SHUNNED_S
            raise NotDirect(str(error)) from error


class _Broken(Exception):
    """The connection to a DataNode is of no use any more."""


class _Transfer:
    """One range of a block over one connection."""

    def __init__(self, link: socket.socket, block: Block, offset: int, size: int, take: Take) -> None:
        self._link = link
        self._request = read_request(block, offset, size)
        self._next = offset
        self._left = size
        self._shift = block.offset
        self._take = take
        self._crc = 0
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._have = 0

    def run(self) -> int:
        # Timeouts are the kernel's: Python's would ask it twice for each answer.
        self._link.settimeout(None)
        seconds = _TIME.pack(int(QUIET_S), 0)
        self._link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
        self._link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        self._send(self._request)
        while (begin := read_answer(self._buffer, self._have)) is None:
            self._receive(1)
        self._keep_from(begin)
        while not self._packets():
            self._receive(min(WAKE_BYTES, self._left - self._have))
        self._send(READ_DONE)
        if self._left:
            raise _Broken(f"{self._left} bytes are missing")
        return self._crc

    def _packets(self) -> bool:
        """Hand on what is there; whether the last packet was among it."""
        pieces: list[bytes] = []
        at, begin, last = 0, self._next, False
        while not last and (packet := read_packet(self._buffer, at, self._have)) is not None:
            at, last = packet.after, packet.start == packet.end
            if not last and self._left:
                skip = self._next - packet.offset
                start = packet.start + skip
                end = min(packet.end, start + self._left)
                if skip < 0 or start >= end:
                    raise NotDirect("packets do not follow each other")
                # Bytes, not a view: google_crc32c takes nothing else.
                piece = bytes(self._view[start:end])
                self._crc = int(google_crc32c.extend(self._crc, piece))
                pieces.append(piece)
                self._next += len(piece)
                self._left -= len(piece)
        if pieces:
            self._take(self._shift + begin, pieces)
        self._keep_from(at)
        return last

    def _keep_from(self, at: int) -> None:
        left = self._have - at
        self._view[:left] = bytes(self._view[at : self._have])
        self._have = left

    def _receive(self, least: int) -> None:
        """Wait for at least so many bytes, for fewer where fewer fit."""
        room = len(self._buffer) - self._have
        self._link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, max(1, min(least, room)))
        try:
            count = self._link.recv_into(self._view[self._have :])
        except OSError as error:
            raise _Broken(f"its DataNode sent nothing: {error.strerror}") from error
        if not count:
            raise _Broken("its DataNode ended the connection")
        self._have += count

    def _send(self, data: bytes) -> None:
        try:
            self._link.sendall(data)
        except OSError as error:
            raise _Broken(f"its DataNode takes nothing: {error.strerror}") from error


def _answer(address: tuple[str, int], asked: bytes) -> bytes:
    """What a NameNode answers. Raises OSError, NotDirect."""
    with socket.create_connection(address, LOCATE_S) as link, link.makefile("rb") as stream:
        link.sendall(asked)
        head = stream.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            raise NotDirect("the NameNode ended the connection")
        (size,) = _LENGTH.unpack(head)
        if size > _MOST_ANSWER_BYTES:
            raise NotDirect(f"an answer of {size} bytes")
        return stream.read(size)


def _user() -> str:
    named = os.environ.get(USER_VARIABLE)
    if named:
        return named
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError as error:
        raise NotDirect("this user has no name") from error
