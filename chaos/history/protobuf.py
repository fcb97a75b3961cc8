"""Protocol buffers without their description: a message's fields by number, enough for etcd's own log."""

from __future__ import annotations

from dataclasses import dataclass, field

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class BadMessage(ValueError):
    """The bytes are no such message."""


@dataclass(frozen=True, slots=True)
class Message:
    """Fields by number; each in the order of its appearance."""

    numbers: dict[int, list[int]] = field(default_factory=dict)
    chunks: dict[int, list[bytes]] = field(default_factory=dict)

    def number(self, name: int) -> int:
        """The last value of an integer field; 0 without one."""
        return self.numbers.get(name, [0])[-1]

    def signed(self, name: int) -> int:
        """The same, of a field that may be negative."""
        value = self.number(name)
        return value - (1 << 64) if value >> 63 else value

    def bytes(self, name: int) -> bytes:
        """The last value of a field of bytes; empty without one."""
        return self.chunks.get(name, [b""])[-1]

    def has(self, name: int) -> bool:
        """Whether a field of bytes, or a message in this one, is there."""
        return name in self.chunks

    def messages(self, name: int) -> list[Message]:
        """The messages of a repeated field. Raises BadMessage."""
        return [parse(raw) for raw in self.chunks.get(name, ())]

    def message(self, name: int) -> Message:
        """The message in a field; an empty one without it. Raises BadMessage."""
        return parse(self.bytes(name))


def parse(raw: bytes) -> Message:
    """Split a message into its fields. Raises BadMessage."""
    found, at = Message(), 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        name, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, at = _varint(raw, at)
            found.numbers.setdefault(name, []).append(value)
            continue
        if wire == BYTES:
            size, at = _varint(raw, at)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise BadMessage(f"wire type {wire}")
        chunk = raw[at : at + size]
        if len(chunk) < size:
            raise BadMessage("cut short")
        at += size
        if wire == BYTES:
            found.chunks.setdefault(name, []).append(chunk)
        else:
            found.numbers.setdefault(name, []).append(int.from_bytes(chunk, "little"))
    return found


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(raw) or shift > 63:
            raise BadMessage("a number is cut short")
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
