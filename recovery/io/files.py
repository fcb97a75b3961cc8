"""Blocking work on local files, done so that a crash at any point leaves nothing that looks finished.

Every function is meant to run in a thread. Callers turn foreign errors into ours with `mapped_errors`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import google_crc32c

from recovery.formats.paths import PART_PREFIX
from supervisor.contract.boundaries import Moved, unwatched
from supervisor.contract.errors import (
    Conflict,
    NotFound,
    OutOfSpace,
    Refused,
    StoreUnreachable,
    TfSupervisorError,
    UserError,
)

CHUNK_BYTES = 1 << 20
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_RIGHT = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_OCCUPIED = frozenset({errno.EEXIST, errno.ENOTEMPTY})
_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS})

GoOn = Callable[[], None]
"""Called between chunks of long work; raises to stop it, for example because the caller was cancelled."""


def never_stop() -> None:
    """The `GoOn` of work that is never stopped."""


def translate(error: OSError, doing: str) -> TfSupervisorError:
    """The error of our tree for an OSError; `doing` is a phrase such as 'write /a/b'."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.ENOENT:
        return NotFound(f"cannot {doing}: {reason}")
    if error.errno in _OCCUPIED:
        return Conflict(f"cannot {doing}: {reason}")
    if error.errno in _NO_SPACE:
        return OutOfSpace(
            f"cannot {doing}: {reason}; free some space or quota there, or keep fewer checkpoints"
        )
    if error.errno in _NO_RIGHT:
        return Refused(f"cannot {doing}: {reason}; give uid {os.getuid()} the right to write there")
    if error.errno in {errno.ENAMETOOLONG, errno.ELOOP}:
        return UserError(f"cannot {doing}: {reason}")
    return StoreUnreachable(f"cannot {doing}: {reason}")


@contextmanager
def mapped_errors(doing: str) -> Iterator[None]:
    """Turn every OSError inside into an error of our tree."""
    try:
        yield
    except OSError as error:
        raise translate(error, doing) from error


@contextmanager
def beneath(directory: Path, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """The directory that a file below `directory` is in, made if `make`, and the file's name there.

    Raises OSError for a link on the way, `directory` included: programs of another user can put one there.
    """
    *parents, last = PurePosixPath(name).parts
    fd = os.open(directory, _DIRECTORY)
    try:
        for part in parents:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=fd)
            inner = os.open(part, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd, last
    finally:
        os.close(fd)


def open_to_read(path: Path | str, dir_fd: int | None = None) -> int:
    """A descriptor of a regular file, which its owner may replace by anything at any time.

    Raises OSError for another kind of entry: ELOOP for a link, EISDIR, else EINVAL. It does not wait for the
    writer of a FIFO.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags, dir_fd=dir_fd)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, os.strerror(code), str(path))
    return fd


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(path: Path) -> None:
    """Make all files below a directory durable, and their names."""
    for parent, _, names in os.walk(path):
        for name in names:
            fd = open_to_read(Path(parent) / name)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        fsync_directory(Path(parent))


def reserve(fd: int, size: int) -> None:
    """Give a new file its size and its place on the disk, which makes writing it in pieces cheaper.

    Raises OSError where there is no room for it. A file system without this operation does nothing.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if call is None or not size or call(fd, 0, ctypes.c_int64(0), ctypes.c_int64(size)) == 0:
        return
    code = ctypes.get_errno()
    if code in _NO_SPACE:
        raise OSError(code, os.strerror(code))


def crc32c_of_fd(fd: int, go_on: GoOn = never_stop, moved: Moved = unwatched) -> tuple[int, int]:
    """(size in bytes, crc32c) of the bytes from `fd`'s position to the end."""
    size = crc = 0
    while chunk := os.read(fd, CHUNK_BYTES):
        go_on()
        size += len(chunk)
        crc = google_crc32c.extend(crc, chunk)
        moved(len(chunk))
    return size, crc


def crc32c_of_file(
    path: Path, go_on: GoOn = never_stop, moved: Moved = unwatched, *, dir_fd: int | None = None
) -> tuple[int, int]:
    """(size in bytes, crc32c) of a regular file; a symbolic link is refused by the kernel (ELOOP)."""
    fd = open_to_read(path, dir_fd)
    try:
        return crc32c_of_fd(fd, go_on, moved)
    finally:
        os.close(fd)


def read_small(path: Path | str, limit: int, dir_fd: int | None = None) -> bytes:
    """The whole of a regular file of at most `limit` bytes; a larger one raises OSError (EFBIG)."""
    data = read_head(path, limit + 1, dir_fd)
    if len(data) > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data


def read_head(path: Path | str, limit: int, dir_fd: int | None = None) -> bytes:
    """The first `limit` bytes of a regular file; all of a smaller one."""
    fd = open_to_read(path, dir_fd)
    try:
        data = b""
        while len(data) < limit and (more := os.read(fd, limit - len(data))):
            data += more
    finally:
        os.close(fd)
    return data


def copy_to_fd(
    source: Path,
    target_fd: int,
    go_on: GoOn = never_stop,
    moved: Moved = unwatched,
    *,
    dir_fd: int | None = None,
) -> tuple[int, int]:
    """Append all of `source` to `target_fd`; returns (size in bytes, crc32c) of the bytes written.

    A symbolic link is refused by the kernel (ELOOP): its owner may not be allowed to read what it names.
    """
    source_fd = open_to_read(source, dir_fd)
    try:
        return copy_between(source_fd, target_fd, go_on, moved)
    finally:
        os.close(source_fd)


def copy_between(
    source_fd: int, target_fd: int, go_on: GoOn = never_stop, moved: Moved = unwatched
) -> tuple[int, int]:
    """Append the bytes from `source_fd`'s position to the end; returns their (size in bytes, crc32c)."""
    total = crc = 0
    while chunk := os.read(source_fd, CHUNK_BYTES):
        go_on()
        write_all(target_fd, chunk)
        total += len(chunk)
        crc = google_crc32c.extend(crc, chunk)
        moved(len(chunk))
    return total, crc


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`, however little each write takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def copy_file(
    source: Path,
    target: Path,
    go_on: GoOn = never_stop,
    moved: Moved = unwatched,
    *,
    dir_fd: int | None = None,
) -> tuple[int, int]:
    """Copy to the new file `target`, not yet durable; returns (size in bytes, crc32c) of the bytes read.

    With `dir_fd`, a relative `source` is in that directory.
    """
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        return copy_to_fd(source, fd, go_on, moved, dir_fd=dir_fd)
    finally:
        os.close(fd)


def link_or_copy(
    source: Path,
    target: Path,
    go_on: GoOn = never_stop,
    moved: Moved = unwatched,
    *,
    dir_fd: int | None = None,
) -> None:
    """Give `source` a second name, or copy it where the file system has no hard links.

    With `dir_fd`, a relative `source` is in that directory.
    """
    try:
        os.link(source, target, src_dir_fd=dir_fd, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        copy_file(source, target, go_on, moved, dir_fd=dir_fd)


@contextmanager
def new_file(
    directory_fd: int, name: str, go_on: GoOn = never_stop, *, durable: bool = True
) -> Iterator[int]:
    """A descriptor to write the new file `name`, which appears when the block ends well.

    With `durable` it is on the disk then; otherwise the kernel writes it there later.

    Raises FileExistsError when the name is taken; leaves nothing behind when the block fails.
    """
    part = f"{PART_PREFIX}{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(part, flags, 0o644, dir_fd=directory_fd)
    try:
        try:
            yield fd
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        go_on()
        rename_file_no_replace(directory_fd, part, name)
        if durable:
            os.fsync(directory_fd)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=directory_fd)
        raise


def rename_file_no_replace(directory_fd: int, source: str, target: str) -> None:
    """Rename a file within one directory; raises FileExistsError instead of replacing `target`."""
    if not _renameat2(directory_fd, source, directory_fd, target):
        os.link(source, target, src_dir_fd=directory_fd, dst_dir_fd=directory_fd, follow_symlinks=False)
        os.unlink(source, dir_fd=directory_fd)


def rename_directory_no_replace(source_fd: int, source: str, target_fd: int, target: str) -> None:
    """Move a directory; raises FileExistsError instead of replacing `target`, even an empty one."""
    if not _renameat2(source_fd, source, target_fd, target):
        guarded_rename(source_fd, source, target_fd, target)


def guarded_rename(source_fd: int, source: str, target_fd: int, target: str) -> None:
    """`rename_directory_no_replace` for file systems without RENAME_NOREPLACE, such as NFS.

    POSIX lets a rename replace no directory but an empty one. So of many callers whose directories hold
    something one gets in, all of it in one step, and the others are told.
    """
    with suppress(FileNotFoundError):
        os.stat(target, dir_fd=target_fd, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    try:
        os.rename(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd)
    except OSError as error:
        if error.errno not in _OCCUPIED:
            raise
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from error


def move_directory(source: Path, target: Path) -> None:
    """Move a directory to a name that must be free, durably; raises FileExistsError."""
    rename_directory_no_replace(_AT_FDCWD, str(source), _AT_FDCWD, str(target))
    fsync_directory(target.parent)
    if source.parent != target.parent:
        fsync_directory(source.parent)


def _renameat2(source_fd: int, source: str, target_fd: int, target: str) -> bool:
    """Rename without replacing; False where the kernel or file system does not know RENAME_NOREPLACE."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(source_fd, os.fsencode(source), target_fd, os.fsencode(target), _RENAME_NOREPLACE) == 0:
        return True
    code = ctypes.get_errno()
    if code in {errno.EINVAL, errno.ENOSYS}:
        return False
    raise OSError(code, os.strerror(code), source, None, target)
