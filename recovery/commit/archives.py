"""The members of a zip archive (`.keras`, `.npz`) that a program has written: their checksums, within bounds.

Members that overlap make an archive of some kilobytes unpack to gigabytes; nothing that writes checkpoints
makes any. Of an archive that unpacks to far more than it has, the first members are looked at. Blocking.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib

from recovery.formats.soundness import MAX_DIRECTORY_BYTES, directory_of
from recovery.io.files import GoOn
from supervisor.contract.errors import BadCheckpoint

MOST_TIMES, MOST_MORE = 8, 256 << 20
"""Limit of unpacked bytes: a multiple of the archive's size, plus a number of bytes."""

_CHUNK_BYTES = 1 << 20
_ENCRYPTED = 1
_HEADER = struct.Struct("<4s2xHH16xHH")
_MAGIC = b"PK\x03\x04"
"""The header of each member begins with it. Version, flags and compression follow; at the end are the lengths
of the name and of the extra fields."""

_READABLE = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""Compressions that `zipfile` unpacks in bounded pieces. With others a few bytes can fill the memory."""

_TORN = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OverflowError,
    struct.error,
    ValueError,
    NotImplementedError,
)
"""Errors of `zipfile` for damaged archives."""


def check_members(fd: int, tail: bytes, go_on: GoOn) -> None:
    """Check each member against its checksum in the archive's list.

    Members of an unknown compression are left out.

    Args:
        fd: the archive's descriptor.
        tail: its last `TAIL_BYTES`.
        go_on: called about every MiB; what it raises ends the work.

    Raises BadCheckpoint, OSError.
    """
    try:
        members, size = directory_of(tail)
        if size > MAX_DIRECTORY_BYTES:
            raise BadCheckpoint(
                f"its list of members has {size} bytes; at most {MAX_DIRECTORY_BYTES} are allowed"
            )
        with zipfile.ZipFile(os.fdopen(fd, "rb", closefd=False)) as archive:
            _check(archive, fd, members, go_on)
    except _TORN as error:
        raise BadCheckpoint(f"it is damaged: {error}") from error


def _check(archive: zipfile.ZipFile, fd: int, members: int, go_on: GoOn) -> None:
    found = sorted(archive.infolist(), key=lambda member: member.header_offset)
    if len(found) != members:
        raise BadCheckpoint(f"its list names {len(found)} members, not {members}")
    if found and found[0].header_offset < 0:
        raise BadCheckpoint(f"{found[0].filename!r} stands before its beginning")
    ends = [member.header_offset for member in found[1:]] + [archive.start_dir]
    for member, end in zip(found, ends, strict=True):
        _check_header(fd, member, end)
    left = MOST_TIMES * os.fstat(fd).st_size + MOST_MORE
    for member in archive.infolist():
        if not _is_readable(member) or member.file_size > left:
            continue
        left -= member.file_size
        with archive.open(member) as content:
            while content.read(_CHUNK_BYTES):
                go_on()


def _is_readable(member: zipfile.ZipInfo) -> bool:
    return member.compress_type in _READABLE and not member.flag_bits & _ENCRYPTED


def _check_header(fd: int, member: zipfile.ZipInfo, end: int) -> None:
    """Check that a member ends before `end`, where the next one begins.

    For a member of an unknown compression, check that its header agrees with the list.
    """
    start = os.pread(fd, _HEADER.size, member.header_offset)
    magic, flags, kind, name_bytes, more_bytes = _HEADER.unpack(start)
    same = (flags, kind) == (member.flag_bits, member.compress_type)
    if magic != _MAGIC or not (same or _is_readable(member)):
        raise BadCheckpoint(f"the header of {member.filename!r} is damaged")
    if member.header_offset + len(start) + name_bytes + more_bytes + member.compress_size > end:
        raise BadCheckpoint(f"{member.filename!r} overlaps with what follows it")
