"""What is said to a NameNode and to DataNodes to read a file's blocks, as bytes. No I/O.

A small part of Hadoop's protocols, for clusters in which nothing has to be proven or decrypted: where a
file's blocks are (`ClientProtocol.getBlockLocations`), and the bytes of one (the data transfer protocol,
version 28). Field numbers are those of Hadoop's `.proto` files. Whatever is not understood is `NotDirect`:
the client library reads the file then.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from recovery.checkpoints.protobuf import Message, read_varint
from supervisor.contract.errors import BadCheckpoint

_PROTOCOL = b"org.apache.hadoop.hdfs.protocol.ClientProtocol"
_HELLO = b"hrpc\x09\x00\x00"
"""Version 9, any class of service, no authentication."""

_TRANSFER_VERSION, _READ_BLOCK = 28, 81
_CONTEXT_CALL, _CALL = -3, 0
_MOST_BLOCKS, _MOST_REPLICAS = 1 << 20, 512
_MOST_BYTES = (1 << 62) - 1
_PACKET = struct.Struct(">IH")
_PACKET_HEADER = struct.Struct("<BqBqBBBi")
"""Offset in the block, number, whether it is the last, length; each after its tag, and of a fixed size."""

_TAGS = (0x09, 0x11, 0x18, 0x25)

_LONGEST_LENGTH = 5
_SUCCESS = 0
READ_DONE = b"\x02\x08\x06"
"""What a reader says at the end: all of it came."""


class NotDirect(Exception):
    """It cannot be read this way."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a file.

    Attributes:
        offset: where it begins in the file, in bytes.
        size: in bytes.
        name: as the NameNode told it, to be told to a DataNode.
        token: likewise; empty where DataNodes ask for none.
        replicas: address, host name and port of the DataNodes that have it, the nearest first.
    """

    offset: int
    size: int
    name: bytes
    token: bytes
    replicas: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True)
class Packet:
    """Some bytes of a block: `start` to `end` in the buffer; the next packet begins at `after`.

    `offset` is that of its first byte in the block, which may lie before what was asked for. Without any
    bytes it is the last one.
    """

    offset: int
    start: int
    end: int
    after: int


def locate_request(path: str, size: int, user: str, client_id: bytes) -> bytes:
    """All that is sent on a new connection to ask a NameNode where the first `size` bytes of a file are."""
    context = _bytes(2, _bytes(1, user.encode())) + _bytes(3, _PROTOCOL)
    method = _bytes(1, b"getBlockLocations") + _bytes(2, _PROTOCOL) + _number(3, 1)
    question = _bytes(1, path.encode()) + _number(2, 0) + _number(3, size)
    return (
        _HELLO
        + _frame(_call(_CONTEXT_CALL, client_id), context)
        + _frame(_call(_CALL, client_id), method, question)
    )


def locate_answer(raw: bytes) -> tuple[int, tuple[Block, ...]]:
    """The size of the file and its blocks, in order. Raises NotDirect, also for files of unusual kinds."""
    with _understood():
        header, at = _delimited(raw, 0)
        told = Message(header)
        if told.integer(2, 0, 9) != _SUCCESS:
            raise NotDirect(told.text(4).decode(errors="replace"))
        answer, _ = _delimited(raw, at)
        located = Message(Message(answer).text(1))
        if located.integer(3, 0, 1) or 6 in located or 7 in located:
            raise NotDirect("it is being written, encrypted or erasure coded")
        blocks = tuple(_block(each) for each in located.messages(2, _MOST_BLOCKS))
        size = located.integer(1, 0, _MOST_BYTES)
    expected = 0
    for block in blocks:
        if block.offset != expected:
            break
        expected += block.size
    if expected != size:
        raise NotDirect(f"its blocks hold {expected} of {size} bytes")
    return size, blocks


def read_request(block: Block, offset: int, size: int) -> bytes:
    """What asks a DataNode for `size` bytes of a block, without the checksums that HDFS keeps of them."""
    base = _bytes(1, block.name) + (_bytes(2, block.token) if block.token else b"")
    header = _bytes(1, base) + _bytes(2, b"tf-supervisor")
    asked = _bytes(1, header) + _number(2, offset) + _number(3, size) + _number(4, 0)
    return struct.pack(">HB", _TRANSFER_VERSION, _READ_BLOCK) + _varint(len(asked)) + asked


def read_answer(buffer: bytearray, have: int) -> int | None:
    """The position after a DataNode's consent, which `buffer` begins with; None while it is not all there.

    Raises NotDirect where it does not consent.
    """
    ends = (end for end in range(1, min(have, _LONGEST_LENGTH) + 1) if buffer[end - 1] < 0x80)
    end = next(ends, 0)
    if not end and have < _LONGEST_LENGTH:
        return None
    with _understood():
        size, at = read_varint(bytes(buffer[:end]), 0, end)
        if size > len(buffer) - at:
            raise NotDirect(f"an answer of {size} bytes")
        if have - at < size:
            return None
        told = Message(bytes(buffer[at : at + size]))
        if told.integer(1, 0, 1 << 20) != _SUCCESS:
            raise NotDirect(told.text(5).decode(errors="replace"))
    return at + size


def read_packet(buffer: bytearray, at: int, have: int) -> Packet | None:
    """The packet that begins at `at`; None while it is not all there. Raises NotDirect for what is none."""
    if have - at < _PACKET.size:
        return None
    payload, header_size = _PACKET.unpack_from(buffer, at)
    after = at + _PACKET.size + header_size + payload - 4
    if header_size < _PACKET_HEADER.size or payload < 4 or after - at > len(buffer):
        raise NotDirect("a packet of a form that is not known")
    if have < after:
        return None
    one, offset, two, _, three, _, four, size = _PACKET_HEADER.unpack_from(buffer, at + _PACKET.size)
    if (one, two, three, four) != _TAGS or not 0 <= size <= payload - 4 or offset < 0:
        raise NotDirect("a packet of a form that is not known")
    return Packet(offset, after - size, after, after)


def _block(told: Message) -> Block:
    name = told.text(1)
    replicas = []
    for each in told.messages(3, _MOST_REPLICAS):
        node = Message(each.text(1))
        replicas.append(
            (node.text(1).decode(errors="replace"), node.text(2).decode(errors="replace"), _port(node))
        )
    if told.integer(4, 0, 1) or not replicas:
        raise NotDirect("no good copy of a block is known")
    size = Message(name).integer(4, 0, _MOST_BYTES)
    return Block(told.integer(2, 0, _MOST_BYTES), size, name, told.text(5), tuple(replicas))


def _port(node: Message) -> int:
    return node.integer(4, 1, 65535)


def _call(number: int, client_id: bytes) -> bytes:
    zigzag = number * 2 if number >= 0 else -number * 2 - 1
    kind, last = _number(1, 2), _number(2, 0)
    return kind + last + _number(3, zigzag) + _bytes(4, client_id) + _number(5, 0)


def _frame(*messages: bytes) -> bytes:
    body = b"".join(_varint(len(each)) + each for each in messages)
    return struct.pack(">I", len(body)) + body


def _delimited(raw: bytes, at: int) -> tuple[bytes, int]:
    size, start = read_varint(raw, at, len(raw))
    if size > len(raw) - start:
        raise NotDirect("an answer is cut short")
    return raw[start : start + size], start + size


@contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except BadCheckpoint as error:
        raise NotDirect(str(error)) from error


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
