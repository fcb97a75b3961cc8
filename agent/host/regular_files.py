"""Access to small files in directories that programs can write to.

A pipe or a link in their place does not block it.

Programs of another user may have replaced the directory itself by a link to foreign files, or the file by a
hard link to one (if `fs.protected_hardlinks` is 0).
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file; raises OSError for anything else, or if its directory is a link."""
    parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fd = os.open(path.name, flags | _FLAGS, 0o640, dir_fd=parent)
    finally:
        os.close(parent)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file with one name", str(path))
    return fd


def read_start(path: Path, most_bytes: int) -> bytes:
    """The first `most_bytes`; raises OSError."""
    fd = open_regular(path)
    try:
        return os.pread(fd, most_bytes, 0)
    finally:
        os.close(fd)


def read_end(path: Path, most_bytes: int) -> bytes:
    """The last `most_bytes`; raises OSError."""
    fd = open_regular(path)
    try:
        return os.pread(fd, most_bytes, max(0, os.fstat(fd).st_size - most_bytes))
    finally:
        os.close(fd)


def replace(path: Path, text: str) -> None:
    """Write the whole file; raises OSError."""
    with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT), "w") as file:
        file.truncate()
        file.write(text)
