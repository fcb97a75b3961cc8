"""Cheap tests that a file was closed by its writer, by its kind. Pure.

They find a file that a kill has cut short. They do not verify its content.
"""

from __future__ import annotations

import json

HEAD_BYTES = 64
TAIL_BYTES = 65_557
"""The longest end of a zip archive: its record of 22 bytes, and a comment."""

MAX_DIRECTORY_BYTES = 1 << 23
"""Largest list of an archive's members that is read, in bytes."""

ARCHIVES = (".keras", ".zip", ".npz")

_HDF5 = b"\x89HDF\r\n\x1a\n"
_HDF5_NAMES = frozenset({".h5", ".hdf5"})
_ZIP_END = b"PK\x05\x06"
_ZIP_END_BYTES = 22
_ZIP64_END = b"PK\x06\x06"
_U16, _U32 = 0xFFFF, 0xFFFFFFFF
_TABLE_END = bytes.fromhex("57fb808b247547db")
_JSON_ENDS = frozenset({b"}", b"]", b'"'})
_OPEN_TO_WRITE = 1
_EOF_AT = {0: 40, 1: 44, 2: 28, 3: 28}
"""Superblock version -> offset of the address of the end of file, for addresses of 8 bytes."""


def is_whole(name: str, size: int, head: bytes, tail: bytes) -> bool | None:
    """Whether a file is whole by these tests; None for a kind without a test.

    Args:
        name: the file's name; its ending gives the kind.
        size: the file's size in bytes.
        head: its first `HEAD_BYTES`.
        tail: its last `TAIL_BYTES`.
    """
    _, dot, kind = name.rpartition(".")
    ending = dot + kind.lower()
    if ending in _HDF5_NAMES:
        return _whole_hdf5(size, head)
    if ending in ARCHIVES:
        return _whole_zip(size, tail)
    if ending == ".index":
        # TensorFlow's index, or somebody else's: `recovery.commit.verify` tells by the data files beside it.
        return True if tail.endswith(_TABLE_END) else None
    if ending == ".json":
        if len(tail) == size:
            return _parses(tail)
        return None if tail.rstrip()[-1:] in _JSON_ENDS else False
    return None


def _whole_hdf5(size: int, head: bytes) -> bool:
    """Whether an HDF5 file was closed.

    HDF5 writes the end of the file into the superblock when it closes it.

    Before that the superblock names an earlier end. Since version 2 it also has a flag for a file that is
    open for writing.
    """
    if not head.startswith(_HDF5) or len(head) < HEAD_BYTES:
        return False
    version = head[8]
    width = head[13] if version < 2 else head[9]
    at = _EOF_AT.get(version)
    if at is None or width != 8 or (version >= 2 and head[11] & _OPEN_TO_WRITE):
        return False
    return int.from_bytes(head[at : at + 8], "little") == size


def _whole_zip(size: int, tail: bytes) -> bool:
    """Whether a zip archive ends in a record that fits: the length of its comment and the place of its
    directory.
    """
    at = tail.rfind(_ZIP_END)
    end = tail[at : at + _ZIP_END_BYTES]
    if at < 0 or len(end) < _ZIP_END_BYTES:
        return False
    comment = int.from_bytes(end[20:22], "little")
    length, offset = int.from_bytes(end[12:16], "little"), int.from_bytes(end[16:20], "little")
    huge = offset == _U32
    return len(tail) - at == _ZIP_END_BYTES + comment and (huge or offset + length <= size)


def directory_of(tail: bytes) -> tuple[int, int]:
    """(members, bytes) of a zip archive's list; raises ValueError if its end has no such record."""
    at = tail.rfind(_ZIP_END)
    if at < 0 or len(tail) - at < _ZIP_END_BYTES:
        raise ValueError("no end of an archive")
    members = int.from_bytes(tail[at + 10 : at + 12], "little")
    size = int.from_bytes(tail[at + 12 : at + 16], "little")
    # Too many or too large for these fields: there is a record of 56 bytes, then a locator of 20. `zipfile`
    # believes that record wherever there is one.
    record = tail[max(0, at - 76) : at]
    if not record.startswith(_ZIP64_END):
        return members, size
    return int.from_bytes(record[32:40], "little"), int.from_bytes(record[40:48], "little")


def _parses(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
