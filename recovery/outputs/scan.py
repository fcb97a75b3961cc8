"""Looking through a task's output directory, whose files are hostile: by descriptors, and bounded."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from recovery.checkpoints.paths import PART_PREFIX
from recovery.outputs.index import MAX_DEPTH, MAX_FILES, path_objection

MAX_ENTRIES = 50_000
"""Directories and files that one look goes through."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISLNK, "it is a symbolic link"),
    (stat.S_ISFIFO, "it is a FIFO"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """A file as it was found. A program that changes it changes one of these."""

    size: int
    modified_ns: int
    inode: int


@dataclass(slots=True)
class Scan:
    """What a look has found: regular files by path, and why other entries are not taken."""

    files: dict[str, Seen] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    entries: int = 0


def scan(directory: Path, uid: int | None = None) -> Scan:
    """All below `directory`. Blocking; an absent directory is an empty one. Raises OSError.

    `uid`: whose files are taken; None: everybody's.
    """
    found = Scan()
    try:
        fd = os.open(directory, _DIRECTORY)
    except FileNotFoundError:
        return found
    try:
        _walk(found, fd, "", uid, 1)
    finally:
        os.close(fd)
    return found


def shown(path: str) -> str:
    """A path that is fit for records and logs, whatever bytes the program has put into it."""
    return path.encode("utf-8", "backslashreplace").decode().encode("unicode_escape").decode()[:300]


def _walk(found: Scan, fd: int, above: str, uid: int | None, depth: int) -> None:
    inner: list[tuple[str, str]] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            path = f"{above}{entry.name}"
            found.entries += 1
            if found.entries > MAX_ENTRIES:
                found.left_out[shown(above or ".")] = f"the directory has more than {MAX_ENTRIES} entries"
                return
            if entry.name.startswith(PART_PREFIX):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if objection := _objection(path, status, uid, found):
                found.left_out[shown(path)] = objection
            elif stat.S_ISDIR(status.st_mode):
                inner.append((entry.name, path))
            else:
                found.files[path] = Seen(status.st_size, status.st_mtime_ns, status.st_ino)
    for name, path in sorted(inner):
        if depth >= MAX_DEPTH:
            found.left_out[shown(path)] = f"it is more than {MAX_DEPTH} directories deep"
            continue
        try:
            child = os.open(name, _DIRECTORY, dir_fd=fd)
        except FileNotFoundError:
            continue
        except OSError as error:
            found.left_out[shown(path)] = f"it cannot be opened: {os.strerror(error.errno or 0)}"
            continue
        try:
            _walk(found, child, f"{path}/", uid, depth + 1)
        finally:
            os.close(child)


def _objection(path: str, status: os.stat_result, uid: int | None, found: Scan) -> str:
    for is_kind, words in _KINDS:
        if is_kind(status.st_mode):
            return words
    if objection := path_objection(path):
        return objection
    if stat.S_ISREG(status.st_mode):
        if uid is not None and status.st_uid != uid:
            return "it belongs to another user than the task's"
        if len(found.files) >= MAX_FILES:
            return f"the directory has more than {MAX_FILES} files"
    return ""
