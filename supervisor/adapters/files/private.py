"""Files that are written whole, and with secrets: this user can read them, and nobody else."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.contract.errors import Refused

if TYPE_CHECKING:
    from supervisor.adapters.files.yaml_file import Document, Where


def check_private(document: Document, where: Where, file: str) -> None:
    """Report a file that is missing, that this user cannot read, or that others can read."""
    try:
        mode = Path(file).stat().st_mode
    except OSError as error:
        document.problem(where, f"{file}: {error.strerror}")
        return
    if not os.access(file, os.R_OK):
        document.problem(where, f"{file} cannot be read by this user")
    elif mode & 0o077:
        document.problem(where, f"others on this machine can read {file}; run: chmod 600 {file}")


def write_private(path: Path, content: bytes) -> None:
    """Replace a file whole, with mode 0600. Raises Refused."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(path)
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror}") from error


def publish(fresh: Path, path: Path) -> bool:
    """Give a file that is whole the name `path` as well, unless that name is taken; whether it got it.

    Of several processes, on one machine or on several that share a file system, one succeeds. Either
    way a file of that name is on the disk afterwards. Raises OSError.
    """
    sync(fresh)
    try:
        os.link(fresh, path)
    except FileExistsError:
        # A network file system may send a request twice, and tell what came of the second.
        return fresh.stat().st_nlink > 1
    except OSError as error:
        if error.errno in {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}:
            text = "its file system has no hard links; take a directory on another one"
            raise OSError(error.errno, text, str(path)) from error
        raise
    finally:
        sync(path.parent)
    return True


def sync(path: Path) -> None:
    """Return when a file, or the names in a directory, are on the disk. Raises OSError."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
