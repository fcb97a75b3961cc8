"""Scan of a task's output directory, whose entries may be hostile: by descriptors, and bounded."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from pathlib import Path

from recovery.formats.paths import PART_PREFIX
from recovery.outputs.index import MAX_DEPTH, MAX_FILES, path_objection

MAX_ENTRIES = 50_000
"""Most directories and files of one scan."""

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
    """A file as it was found. A change by the program changes one of these values."""

    size: int
    modified_ns: int
    inode: int
    on_disk: int = field(default=0, compare=False)
    """Bytes that it takes on the disk. A sparse file may have any size."""


@dataclass(slots=True)
class Scan:
    """The result of a scan: regular files by path, and other entries with the reason why they are not taken.

    `complete`: the scan has covered everything, so a file that it did not find is gone.
    """

    files: dict[str, Seen] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    entries: int = 0
    complete: bool = True


def scan(directory: Path, uid: int | None = None, known: Container[str] = frozenset()) -> Scan:
    """Scan everything below `directory`. Blocking. Raises OSError where a link or a file is in its place.

    `uid`: the owner whose files are taken; None: any owner. Files in `known` are found beyond `MAX_FILES` of
    others.
    """
    found = Scan()
    try:
        fd = os.open(directory, _DIRECTORY)
    except FileNotFoundError:
        found.complete = False
        return found
    try:
        _walk(found, fd, "", _Rules(uid, known), 1)
    finally:
        os.close(fd)
    return found


def shown(path: str) -> str:
    """A path in a form for records and logs, whatever bytes the program has put into it."""
    return path.encode("utf-8", "backslashreplace").decode().encode("unicode_escape").decode()[:300]


@dataclass(frozen=True, slots=True)
class _Rules:
    uid: int | None
    known: Container[str]


def _walk(found: Scan, fd: int, above: str, rules: _Rules, depth: int) -> None:
    inner: list[tuple[str, str]] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            path = f"{above}{entry.name}"
            found.entries += 1
            if found.entries > MAX_ENTRIES:
                found.complete = False
                found.left_out[shown(above or ".")] = f"the directory has more than {MAX_ENTRIES} entries"
                return
            if entry.name.startswith(PART_PREFIX):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if objection := _objection(path, status, rules, found):
                found.left_out[shown(path)] = objection
            elif stat.S_ISDIR(status.st_mode):
                inner.append((entry.name, path))
            else:
                found.files[path] = Seen(
                    status.st_size, status.st_mtime_ns, status.st_ino, 512 * status.st_blocks
                )
    for name, path in sorted(inner):
        if depth >= MAX_DEPTH:
            found.left_out[shown(path)] = f"it is more than {MAX_DEPTH} directories deep"
            found.complete = False
            continue
        try:
            child = os.open(name, _DIRECTORY, dir_fd=fd)
        except FileNotFoundError:
            continue
        except OSError as error:
            found.left_out[shown(path)] = f"it cannot be opened: {os.strerror(error.errno or 0)}"
            found.complete = False
            continue
        try:
            _walk(found, child, f"{path}/", rules, depth + 1)
        finally:
            os.close(child)


def _objection(path: str, status: os.stat_result, rules: _Rules, found: Scan) -> str:
    for is_kind, words in _KINDS:
        if is_kind(status.st_mode):
            return words
    if objection := path_objection(path):
        return objection
    if stat.S_ISREG(status.st_mode):
        if rules.uid is not None and status.st_uid != rules.uid:
            return "it belongs to another user than the task's"
        if len(found.files) >= MAX_FILES and path not in rules.known:
            found.complete = False
            return f"the directory has more than {MAX_FILES} files"
    return ""
