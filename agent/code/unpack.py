"""Archives of code on a node's disk: unpacked as hostile input, and later compared with their manifest.

Blocking; meant to run in a thread, which never holds the interpreter's lock for long (`agent.code.tar`). Only
plain files, directories and links are made. Links come last, when no file can be written through them any
more.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from agent.code import tar
from supervisor.contract.code import MAX_FILES, MAX_PATH, MAX_PATH_PARTS, MAX_UNPACKED_BYTES
from supervisor.contract.errors import BadArchive

_GZIP = 31
# What the names of a hostile archive raise, too; the daemon would end of it.
_DAMAGED = (ValueError, RecursionError, FileExistsError, NotADirectoryError)
_HEADER_BYTES = 4096
_SLICE = 16 * 1024
_PYCACHE = "__pycache__"
_MAX_NAME_BYTES = 255
"""The bytes that a file system takes as one name."""

_LINKS_S = 10.0
"""The most processor time for following all links: links through links can take hours."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The expected entry at a path: a directory, a file with this sha256, or a link to this target."""

    kind: str
    value: str = ""
    executable: bool = False


Manifest = dict[str, Unpacked]


@dataclass(frozen=True, slots=True)
class Limits:
    """The most bytes of all files of an archive together, and the most members."""

    total_bytes: int
    members: int


def unpack(archive: bytes, target: Path) -> Manifest:
    """As `unpack_file`, for an archive of code."""
    return unpack_file(io.BytesIO(archive), target, Limits(MAX_UNPACKED_BYTES, MAX_FILES))


def unpack_file(
    archive: IO[bytes],
    target: Path,
    limits: Limits,
    chosen: Callable[[tar.Member], tar.Member | None] = lambda member: member,
    *,
    plain: bool = False,
) -> Manifest:
    """Unpack into the new directory `target`, and make it read-only.

    `chosen` may rename members, or leave them out. What it returns is checked like any other member. `plain`:
    the archive is decompressed already.

    Directories of Python modules get a `__pycache__` that may be written, or every start would compile them
    again. Raises BadArchive, and OSError for what is this node's fault.
    """
    target.mkdir(mode=0o700)
    try:
        if plain:
            return _unpack(
                archive, _checked(os.fstat(archive.fileno()).st_size, limits), target, limits, chosen
            )
        with tempfile.TemporaryFile(dir=target.parent) as inflated:
            length = _inflate(archive, inflated, limits)
            return _unpack(inflated, length, target, limits, chosen)
    except _DAMAGED as error:
        raise BadArchive(f"the archive is damaged: {error}") from error


def _unpack(
    plain: IO[bytes],
    length: int,
    target: Path,
    limits: Limits,
    chosen: Callable[[tar.Member], tar.Member | None],
) -> Manifest:
    manifest: Manifest = {}
    links: dict[str, str] = {}
    for each in tar.members(plain, length):
        member = chosen(each)
        if member is None:
            continue
        if len(manifest) + len(links) >= limits.members:
            raise BadArchive(f"the archive has more than {limits.members} members")
        _take(plain, member, target, manifest, links)
    above = {str(parent) for path in (*manifest, *links) for parent in PurePosixPath(path).parents}
    for path, to in links.items():
        if path in above:
            # The next link would be made wherever this one leads.
            raise BadArchive(f"the archive has members below the link {path}")
        _parent(target, path)
        (target / path).symlink_to(to)
        manifest[path] = Unpacked("link", to)
    until_s = time.thread_time() + _LINKS_S
    for path in links:
        if time.thread_time() > until_s:
            raise BadArchive("the archive has links that take too long to follow")
        if not Path(os.path.realpath(target / path)).is_relative_to(os.path.realpath(target)):
            raise BadArchive(f"the archive has a link {path} that leads outside")
    _seal(target, manifest)
    return manifest


def _inflate(archive: IO[bytes], plain: IO[bytes], limits: Limits) -> int:
    """Write the decompressed archive to `plain`; returns its size."""
    inflater = zlib.decompressobj(_GZIP)
    length = 0
    try:
        while not inflater.eof and (packed := archive.read(_SLICE)):
            data = inflater.decompress(packed)
            length = _checked(length + len(data), limits)
            plain.write(data)
    except zlib.error as error:
        raise BadArchive(f"the archive is damaged: {error}") from error
    if not inflater.eof or inflater.unused_data or archive.read(1):
        raise BadArchive("the archive is cut off, or has something behind its end")
    return length


def _checked(length: int, limits: Limits) -> int:
    """The size of a decompressed archive, if it is allowed. Raises BadArchive."""
    if length > limits.total_bytes + limits.members * _HEADER_BYTES:
        raise BadArchive("the archive unpacks to more than is allowed")
    return length


def _take(
    plain: IO[bytes],
    member: tar.Member,
    target: Path,
    manifest: Manifest,
    links: dict[str, str],
) -> None:
    path = member.path
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or str(PurePosixPath(*parts)) != path:
        raise BadArchive(f"the archive has a member with the name {path[:200]!r}")
    longest = max(len(os.fsencode(part)) for part in parts)
    if (
        longest > _MAX_NAME_BYTES
        or max(len(path), len(member.target)) > MAX_PATH
        or len(parts) > MAX_PATH_PARTS
    ):
        raise BadArchive(f"the archive has a path that is too long or too deep: {path[:200]!r}")
    if path in manifest or path in links:
        raise BadArchive(f"the archive has {path} twice")
    if member.kind == "link":
        if not member.target:
            raise BadArchive(f"the archive has a link {path} that leads nowhere")
        links[path] = member.target
        return
    _parent(target, path)
    if member.kind == "directory":
        (target / path).mkdir(mode=0o700, exist_ok=True)
        manifest[path] = Unpacked("directory")
        return
    plain.seek(member.offset)
    manifest[path] = Unpacked("file", _write(target / path, plain, member), member.executable)


def _parent(target: Path, path: str) -> None:
    (target / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def _write(path: Path, content: IO[bytes], member: tar.Member) -> str:
    sha256 = hashlib.sha256()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    with os.fdopen(fd, "wb") as file:
        left = member.size
        while data := content.read(min(left, 1 << 20)):
            left -= len(data)
            sha256.update(data)
            file.write(data)
        os.fchmod(file.fileno(), 0o555 if member.executable else 0o444)
    return sha256.hexdigest()


def _seal(target: Path, manifest: Manifest) -> None:
    modules = {str(PurePosixPath(path).parent) for path in manifest if path.endswith(".py")}
    for directory in modules:
        (target / directory / _PYCACHE).mkdir(mode=0o755, exist_ok=True)
    for directory, _, _ in os.walk(target, topdown=False):
        Path(directory).chmod(0o755 if Path(directory).name == _PYCACHE else 0o555)


def is_whole(tree: Path, manifest: Manifest) -> bool:
    """Whether all files, directories and links are as they were unpacked. Added entries are ignored.

    Raises OSError when the disk cannot be read.
    """
    try:
        return all(_matches(tree / path, expected) for path, expected in manifest.items())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _matches(path: Path, expected: Unpacked) -> bool:
    status = path.lstat()
    if expected.kind == "link":
        return stat.S_ISLNK(status.st_mode) and str(path.readlink()) == expected.value
    if expected.kind == "directory":
        return stat.S_ISDIR(status.st_mode)
    if not stat.S_ISREG(status.st_mode) or bool(status.st_mode & 0o100) != expected.executable:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == expected.value


def to_json(manifest: Manifest) -> str:
    """The manifest as text."""
    plain = {path: [entry.kind, entry.value, entry.executable] for path, entry in manifest.items()}
    return json.dumps(plain, sort_keys=True)


def from_json(text: str) -> Manifest | None:
    """Read a manifest; None if the text is not one, as after a crash."""
    try:
        plain = json.loads(text)
        return {
            str(path): Unpacked(str(kind), str(value), bool(executable))
            for path, (kind, value, executable) in plain.items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
