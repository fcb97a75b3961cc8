"""Protocol buffers' wire format, read strictly: bytes that no encoder writes are refused. Pure.

TensorFlow's messages are read with this instead of its generated code, so that no TensorFlow is needed and a
hostile file can do nothing but be refused.
"""

from __future__ import annotations

from typing import NoReturn

from supervisor.contract.errors import BadCheckpoint

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10
_MAX_FIELD = (1 << 29) - 1
_MAX_FIELDS = 1 << 16
_UNSIGNED = 1 << 64
_SIGN = 1 << 63


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """(value below 2**64, position after it) of the varint at `at`, which ends before `end`.

    Raises BadCheckpoint for one that is cut short, too large, or longer than it need be.
    """
    if at < end and data[at] < 0x80:
        return data[at], at + 1
    value = 0
    for count in range(_MAX_VARINT_BYTES):
        if at + count >= end:
            raise BadCheckpoint("a number is cut short")
        byte = data[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if byte == 0 or value >= _UNSIGNED:
                break
            return value, at + count + 1
    raise BadCheckpoint("a number is not in its shortest form, or too large")


class Message:
    """The fields of one message. A getter raises BadCheckpoint for a value of another kind or out of range.

    Fields that nobody asks for may hold anything: a later TensorFlow may have added them.
    """

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[tuple[int, int | bytes]]] = {}
        at, end, count = 0, len(data), 0
        while at < end:
            count += 1
            tag, at = read_varint(data, at, end)
            number, kind = tag >> 3, tag & 7
            if not 0 < number <= _MAX_FIELD or count > _MAX_FIELDS:
                raise BadCheckpoint(f"field number {number} is out of range, or one too many")
            value: int | bytes
            if kind == _VARINT:
                value, at = read_varint(data, at, end)
            else:
                size = _FIXED_BYTES.get(kind, 0)
                if kind == _BYTES:
                    size, at = read_varint(data, at, end)
                elif not size:
                    raise BadCheckpoint(f"field {number} has the unknown kind {kind}")
                if size > end - at:
                    raise BadCheckpoint(f"field {number} is cut short")
                value = data[at : at + size]
                at += size
            self._fields.setdefault(number, []).append((kind, value))

    def __contains__(self, number: int) -> bool:
        return number in self._fields

    def integer(self, number: int, low: int, high: int) -> int:
        """An integer, bool or enum from `low` to `high`; 0 when it is absent."""
        return self._bounded(number, self._one(number, _VARINT), low, high)

    def integers(self, number: int, low: int, high: int) -> tuple[int, ...]:
        """A repeated integer, packed or not."""
        found: list[int] = []
        for kind, value in self._fields.get(number, ()):
            if kind == _VARINT:
                found.append(self._bounded(number, value, low, high))
            elif kind == _BYTES and isinstance(value, bytes):
                at = 0
                while at < len(value):
                    each, at = read_varint(value, at, len(value))
                    found.append(self._bounded(number, each, low, high))
            else:
                self._wrong(number)
        return tuple(found)

    def fixed32(self, number: int) -> int:
        """A fixed32; 0 when it is absent."""
        value = self._one(number, _FIXED32)
        return int.from_bytes(value, "little") if isinstance(value, bytes) else 0

    def text(self, number: int) -> bytes:
        """A string, or a message that occurs once; empty when it is absent."""
        value = self._one(number, _BYTES)
        return value if isinstance(value, bytes) else b""

    def messages(self, number: int, most: int) -> list[Message]:
        """A repeated message, at most so many times."""
        found = []
        values = self._fields.get(number, [])
        if len(values) > most:
            raise BadCheckpoint(f"field {number} occurs {len(values)} times, not at most {most}")
        for kind, value in values:
            if kind != _BYTES or not isinstance(value, bytes):
                self._wrong(number)
            found.append(Message(value))
        return found

    def _one(self, number: int, wanted: int) -> int | bytes | None:
        values = self._fields.get(number)
        if values is None:
            return None
        if len(values) != 1 or values[0][0] != wanted:
            self._wrong(number)
        return values[0][1]

    def _bounded(self, number: int, value: int | bytes | None, low: int, high: int) -> int:
        if value is None:
            return 0
        if isinstance(value, bytes):
            self._wrong(number)
        signed = value - _UNSIGNED if value >= _SIGN else value
        if not low <= signed <= high:
            raise BadCheckpoint(f"field {number} is {signed}, not from {low} to {high}")
        return signed

    def _wrong(self, number: int) -> NoReturn:
        raise BadCheckpoint(f"field {number} is repeated, or of another kind than it should be")
