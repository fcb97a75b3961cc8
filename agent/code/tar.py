"""The members of an untrusted tar archive, read in one pass and in linear time.

The standard library's `tarfile` knows many formats, and some of its searches take quadratic time, in which no
other thread runs (CVE-2024-6232). This reads what `supervisorctl` packs: POSIX headers, and pax headers that
give a path, the target of a link or a size. It refuses all else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

BLOCK = 512
MAX_PAX_BYTES = 16 * 1024
MAX_SIZE = 1 << 40
_MAGIC = b"ustar\x0000"
_OCTAL = re.compile(rb" *([0-7]{1,11})[ \0]*")
_KINDS = {b"0": "file", b"\0": "file", b"5": "directory", b"2": "link"}
_PAX = b"x"
_TOLD = frozenset({"path", "linkpath", "size"})
_IGNORED = frozenset({"mtime", "atime", "ctime", "uid", "gid", "uname", "gname", "comment"})


class Damaged(ValueError):
    """The archive is damaged or of another format. The text names the error, with `it` as its subject."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file of `size` bytes that begin at `offset`, a directory, or a link to `target`."""

    path: str
    kind: str
    executable: bool = False
    target: str = ""
    size: int = 0
    offset: int = 0


@dataclass(slots=True)
class _Header:
    kind: bytes
    path: str
    target: str
    size: int
    mode: int
    told: dict[str, str] = field(default_factory=dict)


def members(file: IO[bytes], length: int) -> Iterator[Member]:
    """All members of an archive of `length` bytes, in their order. `file` may be read elsewhere meanwhile.

    Raises Damaged.
    """
    at, told = 0, dict[str, str]()
    while at < length:
        file.seek(at)
        block = file.read(BLOCK)
        if not any(block):
            break
        header = _read_header(block)
        at += BLOCK
        if header.kind == _PAX:
            if told:
                raise Damaged("has two extended headers in a row")
            if not 0 < header.size <= MAX_PAX_BYTES:
                raise Damaged(f"has an extended header of {header.size} bytes")
            told = _read_pax(file.read(header.size), header.size)
            at += _padded(header.size)
            continue
        member = _member(header, told, at)
        told = {}
        at += _padded(member.size)
        if at > length:
            raise Damaged(f"is cut off in {member.path!r}")
        yield member
    if told:
        raise Damaged("ends with an extended header")


def _member(header: _Header, told: dict[str, str], at: int) -> Member:
    kind = _KINDS.get(header.kind)
    path = told.get("path", header.path)
    if kind is None:
        raise Damaged(f"has {path[:200]!r}, which is no plain file, directory or link")
    size = _size(told["size"]) if "size" in told else header.size
    if kind != "file" and size:
        raise Damaged(f"has {path[:200]!r} with content")
    if kind == "directory":
        path = path.removesuffix("/")
    target = told.get("linkpath", header.target) if kind == "link" else ""
    return Member(path, kind, bool(header.mode & 0o100), target, size, at)


def _read_header(block: bytes) -> _Header:
    if len(block) < BLOCK or block[257:265] != _MAGIC:
        raise Damaged("has a block that is no header of a POSIX archive")
    if _octal(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * 0x20:
        raise Damaged("has a header with a wrong checksum")
    prefix, name = _text(block[345:500]), _text(block[:100])
    return _Header(
        block[156:157],
        f"{prefix}/{name}" if prefix else name,
        _text(block[157:257]),
        _octal(block[124:136]),
        _octal(block[100:108]),
    )


def _read_pax(data: bytes, size: int) -> dict[str, str]:
    """Read pax records such as `12 path=abc` and a newline; the number is the record's own length."""
    if len(data) < size:
        raise Damaged("is cut off in an extended header")
    told: dict[str, str] = {}
    at = 0
    while at < size:
        space = data.find(b" ", at, at + 6)
        digits = data[at : max(space, at)]
        if not digits.isdigit():
            raise Damaged("has an extended header without the length of a record")
        end = at + int(digits)
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if end > size or end <= space or not equals or data[end - 1 : end] != b"\n":
            raise Damaged("has an extended header with a wrong length")
        name = _utf8(key)
        if name in _TOLD:
            told[name] = _utf8(value)
        elif name not in _IGNORED:
            raise Damaged(f"has an extended header with {name[:80]!r}, which is not read here")
        at = end
    return told


def _octal(data: bytes) -> int:
    found = _OCTAL.fullmatch(data)
    if found is None:
        raise Damaged("has a header with a number that is none")
    return int(found[1], 8)


def _size(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 13):
        raise Damaged("has an extended header with a size that is none")
    return min(int(text), MAX_SIZE)


def _text(data: bytes) -> str:
    return _utf8(data.partition(b"\0")[0])


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Damaged("has a name that is not UTF-8") from error


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
