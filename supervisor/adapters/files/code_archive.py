"""A program's directory as one archive whose digest depends on its content alone.

Names are sorted; times, owners and all modes except "executable" are left out. So the same tree gives the
same archive on every machine, and is uploaded and unpacked once.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pathspec import GitIgnoreSpec

from supervisor.adapters.files.jobfile import CodeSource
from supervisor.contract.code import (
    MAX_FILES,
    MAX_PACKED_BYTES,
    MAX_PATH,
    MAX_PATH_PARTS,
    MAX_UNPACKED_BYTES,
    MIB,
)
from supervisor.contract.errors import UserError
from supervisor.contract.job.spec import CodeRef

ALWAYS_EXCLUDED = (".git/", "__pycache__/", "*.pyc", ".venv/")
"""Patterns that are always excluded. A job file cannot include them again."""

_LARGEST_SHOWN = 5
_GZIP = 31
_LEVEL = 6


@dataclass(frozen=True, slots=True)
class CodeArchive:
    """A gzipped tar of a directory, and its name. `paths`: of all that is in it."""

    ref: CodeRef
    data: bytes
    paths: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Entry:
    """`path` is relative to the directory. `target` is that of a link; empty for other entries."""

    path: str
    kind: bytes
    size: int = 0
    executable: bool = False
    target: str = ""


def pack(source: CodeSource) -> CodeArchive:
    """Archive a directory.

    Raises UserError, beginning with the place in the job file: the directory cannot be read, holds something
    that cannot be shipped, or is too large.
    """
    entries = _scan(source)
    squeezer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    packed = bytearray()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            _add(tar, source, entry)
            packed += squeezer.compress(_drain(buffer))
            if len(packed) > MAX_PACKED_BYTES:
                raise _too_large(source, entries, f"packs to more than {MAX_PACKED_BYTES // MIB} MiB")
    packed += squeezer.compress(_drain(buffer)) + squeezer.flush()
    if len(packed) > MAX_PACKED_BYTES:
        raise _too_large(source, entries, f"packs to more than {MAX_PACKED_BYTES // MIB} MiB")
    data = bytes(packed)
    paths = frozenset(entry.path for entry in entries)
    return CodeArchive(CodeRef(hashlib.sha256(data).hexdigest(), len(data)), data, paths)


def _drain(buffer: io.BytesIO) -> bytes:
    """The bytes that tarfile has written since the last call. It never seeks back in a new archive."""
    data = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return data


def _scan(source: CodeSource) -> list[_Entry]:
    """All entries to ship, sorted by path. No content is read yet, as it may be too large."""
    mine = _ignore(source, source.exclude)
    always = GitIgnoreSpec.from_lines(ALWAYS_EXCLUDED)
    entries: list[_Entry] = []
    total = 0
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        for item in _list(source, directory):
            path = f"{directory}{item.name}"
            is_directory = item.is_dir(follow_symlinks=False)
            shown = f"{path}/" if is_directory else path
            if always.match_file(shown) or mine.match_file(shown):
                continue
            entries.append(_entry(source, item, path))
            total += entries[-1].size
            if len(entries) > MAX_FILES:
                raise _problem(
                    source,
                    f"more than {MAX_FILES} files; exclude what the program does not need, for example "
                    f"exclude: [{PurePosixPath(path).parts[0]}/]",
                )
            if is_directory:
                waiting.append(shown)
    if total > MAX_UNPACKED_BYTES:
        raise _too_large(
            source, entries, f"has {total // MIB} MiB, more than {MAX_UNPACKED_BYTES // MIB} MiB"
        )
    return sorted(entries, key=lambda entry: entry.path.encode())


def _ignore(source: CodeSource, patterns: tuple[str, ...]) -> GitIgnoreSpec:
    try:
        return GitIgnoreSpec.from_lines(patterns)
    except ValueError as error:
        raise _problem(source, f"exclude: {error}") from error


def _list(source: CodeSource, directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(Path(source.directory) / directory) as found:
            return list(found)
    except OSError as error:
        raise _problem(
            source,
            f"cannot read the directory {directory or '.'}: {error.strerror}; make it readable or exclude it",
        ) from error


def _entry(source: CodeSource, item: os.DirEntry[str], path: str) -> _Entry:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise _problem(source, f"the name {path!r} is not UTF-8; rename it or exclude it") from error
    if len(path) > MAX_PATH or path.count("/") >= MAX_PATH_PARTS:
        raise _problem(source, f"{path[:200]} is too long or too deep a path; exclude it")
    try:
        status = item.stat(follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            return _Entry(path, tarfile.SYMTYPE, target=_inside(source, path))
    except OSError as error:
        raise _problem(source, f"cannot read {path}: {error.strerror}") from error
    if stat.S_ISDIR(status.st_mode):
        return _Entry(path, tarfile.DIRTYPE)
    if stat.S_ISREG(status.st_mode):
        return _Entry(path, tarfile.REGTYPE, status.st_size, bool(status.st_mode & 0o111))
    what = (
        "a socket"
        if stat.S_ISSOCK(status.st_mode)
        else "a pipe"
        if stat.S_ISFIFO(status.st_mode)
        else "a device"
    )
    raise _problem(source, f"{path} is {what}, which cannot be shipped; exclude it")


def _inside(source: CodeSource, path: str) -> str:
    """The target of a link, which must be the same file on every node."""
    root = Path(source.directory)
    target = str((root / path).readlink())
    if len(target) > MAX_PATH:
        raise _problem(source, f"the link {path} names a path that is too long; exclude it")
    if target.startswith("/"):
        raise _problem(
            source, f"the link {path} leads to the absolute path {target}; make it relative or exclude it"
        )
    lexical = os.path.normpath(root / PurePosixPath(path).parent / target)
    for place in (lexical, os.path.realpath(root / path)):
        if not Path(place).is_relative_to(root):
            raise _problem(
                source,
                f"the link {path} leads to {target}, outside the directory; copy the file in or exclude it",
            )
    return target


def _add(tar: tarfile.TarFile, source: CodeSource, entry: _Entry) -> None:
    info = tarfile.TarInfo(entry.path)
    info.type = entry.kind
    info.mode = 0o755 if entry.executable or entry.kind == tarfile.DIRTYPE else 0o644
    info.linkname = entry.target
    if entry.kind != tarfile.REGTYPE:
        tar.addfile(info)
        return
    try:
        content = _read(Path(source.directory) / entry.path, entry.size)
    except OSError as error:
        raise _problem(
            source, f"cannot read {entry.path}: {error.strerror}; make it readable or exclude it"
        ) from error
    if len(content) != entry.size:
        raise _problem(source, f"{entry.path} changed while it was read; exclude what other programs write")
    info.size = entry.size
    tar.addfile(info, io.BytesIO(content))


def _read(path: Path, size: int) -> bytes:
    """The bytes of a file, at most one more than its expected size.

    A link that has taken its place is not followed.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        return file.read(size + 1)


def _too_large(source: CodeSource, entries: list[_Entry], what: str) -> UserError:
    largest = sorted(entries, key=lambda entry: -entry.size)[:_LARGEST_SHOWN]
    listed = ", ".join(f"{entry.path} ({_size(entry.size)})" for entry in largest)
    first = PurePosixPath(largest[0].path)
    example = f"{first.parts[0]}/" if len(first.parts) > 1 else str(first)
    return _problem(
        source,
        f"{source.directory} {what}; code is for programs, data belongs where all nodes can read it. "
        f"The largest files: {listed}; leave them out, for example exclude: [{example}]",
    )


def _size(size: int) -> str:
    return f"{size / MIB:.1f} MiB" if size >= MIB else f"{size // 1024} KiB"


def _problem(source: CodeSource, text: str) -> UserError:
    return UserError(f"{source.where}: {text}")
