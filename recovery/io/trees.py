"""Removal and listing of directories that programs of tasks have written, whatever is in them.

A program may nest thousands of directories, take away all rights, or put a link, a FIFO or another file
system anywhere. Nothing here follows a link, recurses without a bound, or goes on for ever. Everything is
blocking.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

MOST_S = 60.0
"""Seconds after which a removal gives up. The next call goes on."""
MOST_WAITING = 50_000
"""Most directories that a call holds in memory at a time."""
_BATCH = 1000
_ROUNDS = 100
_REMOVING = ".removing-"
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OCCUPIED = frozenset({errno.EEXIST, errno.ENOTEMPTY})
_OWN_RIGHTS = 0o700
_BLOCK_BYTES = 512
_MEASURED_DEEP = 100


class Unfinished(OSError):
    """The time of a call is over before everything is removed. Call again to go on."""


class TooMany(OSError):
    """There are more entries than the limit."""


def remove_tree(path: Path | str, *, dir_fd: int | None = None, most_s: float = MOST_S) -> None:
    """Remove a directory and all below it, even while another process does the same.

    An absent one is no error.

    A directory that another one holds is moved up into `path` before its own turn comes. So a program that
    nests thousands of them costs no stack, no long path and no pile of descriptors. Links below `path` are
    removed, never followed; another file system that is mounted below it stays as it is.

    Everything that can be removed is removed. Then this raises the first OSError that it met. It raises
    Unfinished after `most_s`, and OSError for a link in the place of `path`.
    """
    with suppress(FileNotFoundError):
        top = _opened(path, dir_fd)
        try:
            removal = _Removal(top, time.monotonic() + most_s)
            for left in reversed(range(_ROUNDS)):
                removal.round()
                try:
                    os.rmdir(path, dir_fd=dir_fd)
                    return
                except OSError as error:
                    if removal.error is not None:
                        raise removal.error from error
                    if not removal.whole:
                        continue
                    # Another call that removes this tree may have moved a directory up meanwhile.
                    # Whatever else is there now is new, and stays.
                    with os.scandir(top) as entries:
                        moved = all(entry.name.startswith(_REMOVING) for entry in entries)
                    if error.errno not in _OCCUPIED or not moved or not left:
                        raise
            raise Unfinished(f"{path} is filled as fast as it is emptied")
        finally:
            os.close(top)


class _Removal:
    """The work that one call has left below `top`. `whole`: the last round has seen every entry."""

    def __init__(self, top: int, until_s: float) -> None:
        self.error: OSError | None = None
        self.whole = True
        self._top = top
        self._until_s = until_s
        self._prefix = f"{_REMOVING}{secrets.token_hex(8)}"
        self._moved = 0
        self._waiting: deque[str] = deque()

    def round(self) -> None:
        """Remove all entries that can be removed."""
        self.whole = True
        self._remove_entries(self._top)
        while self._waiting:
            name = self._waiting.popleft()
            try:
                self._remove_directory(name)
            except OSError as error:
                self._note(error)

    def _remove_directory(self, name: str) -> None:
        inner = _opened(name, self._top)
        try:
            if _is_mounted(inner, self._top):
                raise OSError(errno.EBUSY, "another file system is mounted there", name)
            self._remove_entries(inner)
        finally:
            os.close(inner)
        try:
            os.rmdir(name, dir_fd=self._top)
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
            # Something in it has failed, and is noted; or it is seen again by the next round.
            self.whole = False

    def _remove_entries(self, fd: int) -> None:
        """Remove what a directory holds. Directories are moved into `top`, where they wait for their turn."""
        with os.scandir(fd) as entries:
            while batch := list(islice(entries, _BATCH)):
                if time.monotonic() > self._until_s:
                    raise Unfinished("more is to be removed than fits into one turn; the next one goes on")
                for entry in batch:
                    try:
                        self._remove_entry(fd, entry)
                    except OSError as error:
                        self._note(error)

    def _remove_entry(self, fd: int, entry: os.DirEntry[str]) -> None:
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.name, dir_fd=fd)
        elif len(self._waiting) >= MOST_WAITING:
            self.whole = False
        elif fd == self._top:
            self._waiting.append(entry.name)
        else:
            self._moved += 1
            to = f"{self._prefix}-{self._moved}"
            try:
                os.rename(entry.name, to, src_dir_fd=fd, dst_dir_fd=self._top)
            except PermissionError:
                # A directory that its owner may not write to cannot change its parent.
                _take_rights(entry.name, fd)
                os.rename(entry.name, to, src_dir_fd=fd, dst_dir_fd=self._top)
            self._waiting.append(to)

    def _note(self, error: OSError) -> None:
        if isinstance(error, Unfinished):
            raise error
        if not isinstance(error, FileNotFoundError) and self.error is None:
            self.error = error


def entries_below(directory: Path, most_deep: int, most: int) -> Iterator[tuple[str, int, os.DirEntry[str]]]:
    """(path relative to `directory`, descriptor of the directory that holds it, entry) of all below.

    It leaves out entries more than `most_deep` levels down, entries that vanish meanwhile, and directories
    that cannot be opened. Raises TooMany beyond `most` entries, OSError for a link in the place of
    `directory`.
    """
    count = 0

    def look(fd: int, above: str, level: int) -> Iterator[tuple[str, int, os.DirEntry[str]]]:
        nonlocal count
        inner = []
        with os.scandir(fd) as entries:
            for entry in entries:
                count += 1
                if count > most:
                    raise TooMany(f"there are more than {most} entries below {directory}")
                if entry.is_dir(follow_symlinks=False):
                    inner.append(entry.name)
                yield f"{above}{entry.name}", fd, entry
        for name in inner if level < most_deep else ():
            try:
                child = os.open(name, _LISTED, dir_fd=fd)
            except OSError:
                continue
            try:
                yield from look(child, f"{above}{name}/", level + 1)
            finally:
                os.close(child)

    top = os.open(directory, _LISTED)
    try:
        yield from look(top, "", 1)
    finally:
        os.close(top)


def space_below(directory: Path, most: int) -> int:
    """Bytes that all entries below take on the file system of `directory`; a file with several names counts
    once.

    Raises TooMany beyond `most` entries, where directories are nested too deep, and where one cannot be
    opened for its rights. Raises OSError where `directory` is not there, or a link.
    """
    found, count = dict[int, int](), 0

    def look(fd: int, level: int) -> None:
        nonlocal count
        inner = []
        with os.scandir(fd) as entries:
            for entry in entries:
                count += 1
                if count > most:
                    raise TooMany(f"there are more than {most} files below {directory}")
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_dev == device:
                        found[status.st_ino] = _BLOCK_BYTES * status.st_blocks
                        inner += [entry.name] if entry.is_dir(follow_symlinks=False) else []
        if inner and level >= _MEASURED_DEEP:
            raise TooMany(f"directories below {directory} are nested more than {_MEASURED_DEEP} deep")
        for name in inner:
            try:
                child = os.open(name, _LISTED, dir_fd=fd)
            except (FileNotFoundError, NotADirectoryError):
                continue
            try:
                look(child, level + 1)
            finally:
                os.close(child)

    try:
        top = os.open(directory, _LISTED)
        try:
            device = os.fstat(top).st_dev
            look(top, 1)
        finally:
            os.close(top)
    except PermissionError as error:
        raise TooMany(f"a directory of {directory} cannot be looked at") from error
    return sum(found.values())


def _opened(path: Path | str, dir_fd: int | None) -> int:
    """A descriptor of a directory, after its owner was given the right to list and change it."""
    try:
        fd = os.open(path, _LISTED, dir_fd=dir_fd)
    except PermissionError:
        _take_rights(path, dir_fd)
        fd = os.open(path, _LISTED, dir_fd=dir_fd)
    mode = os.fstat(fd).st_mode
    if mode & _OWN_RIGHTS != _OWN_RIGHTS:
        with suppress(PermissionError):
            os.fchmod(fd, mode & 0o777 | _OWN_RIGHTS)
    return fd


def _take_rights(path: Path | str, dir_fd: int | None) -> None:
    """Give its owner all rights to a directory; a link in its place is not followed."""
    place = os.open(path, _PLACE, dir_fd=dir_fd)
    try:
        Path(f"/proc/self/fd/{place}").chmod(_OWN_RIGHTS)
    finally:
        os.close(place)


def _is_mounted(inner: int, top: int) -> bool:
    """Whether a directory below `top` is the root of another mount. A btrfs subvolume is none."""
    if os.fstat(inner).st_dev == os.fstat(top).st_dev:
        return False
    return _mount_of(inner) != _mount_of(top)


def _mount_of(fd: int) -> str:
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    return next((line for line in lines if line.startswith("mnt_id:")), "")
