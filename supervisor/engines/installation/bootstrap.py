"""Brings an installation to a machine that has nothing but a Python, and runs a program with it.

    python3.11 -I -c TEXT ARCHIVE SHA256 ABI DIRECTORY ARGUMENT...

TEXT is this module. It is a part of the pool's command, so that nothing of an archive runs before its digest
is checked. Below DIRECTORY, which has `{host}` for the machine's name, each archive is unpacked once in each
boot: a power cut may tear files, and the next boot does not look at them. ARGUMENT... go to the unpacked
Python.

To say what is wrong with a machine's Python, this runs on any: it has the syntax of 3.6, and imports the
standard library alone. It has no two braces in a row, which YARN would replace.
"""

import fcntl
import gzip
import hashlib
import os
import shutil
import socket
import stat
import sys
import sysconfig
import tarfile
import tempfile
import time
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, NoReturn

MOST_BYTES = 16 << 30
MOST_FILES = 400000
"""The most that one installation takes on a machine's disk."""

PIECE_BYTES = 1 << 20
LOCK = "lock"
"""Held while somebody unpacks or removes an installation."""

USED = "used.lock"
"""A file of each installation: shared by those that run with it."""

FRESH, OLD = ".new", ".old"


class Failed(Exception):
    """The program cannot be run; the text says why, and what to do."""


def main(arguments: "list[str]") -> None:
    """Run the program, or end with a line for the engine's log."""
    archive, sha256, abi, directory, *rest = arguments
    root = Path(directory.replace("{host}", socket.gethostname()))
    try:
        check_python(abi)
        tree, used = install(archive, sha256, root)
    except Failed as error:
        fail(str(error))
    except OSError as error:
        named = f" ({error.filename})" if error.filename else ""
        fail(f"cannot unpack {archive} into {root}: {error.strerror}{named}")
    os.set_inheritable(used, True)
    # They may name packages of another Python, as Spark's do.
    for name in ("PYTHONPATH", "PYTHONHOME"):
        os.environ.pop(name, None)
    python = str(tree / "bin" / "python")
    os.execv(python, [python, *rest])


def fail(text: str) -> NoReturn:
    """End with a line for the engine's log."""
    say(text)
    sys.exit(1)


def say(text: str) -> None:
    """Print a line into the engine's log."""
    sys.stderr.write(f"tfsup-bootstrap: {text}\n")
    sys.stderr.flush()


def check_python(abi: str) -> None:
    """Raise Failed if the packages of an archive do not run under this Python."""
    found = sysconfig.get_config_var("SOABI")
    if found != abi:
        raise Failed(
            "{} is Python {}.{} ({}), and the archive is for {}: name such a Python with `pool up --python`, "
            "or pack the archive with one like this".format(sys.executable, *sys.version_info[:2], found, abi)
        )


def install(archive: str, sha256: str, root: Path) -> "tuple[Path, int]":
    """The directory of the installation, unpacked if need be, and the lock by which it is in use.

    Raises Failed, OSError. Nothing half made is left.
    """
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    stranger = exchangeable(root)
    if stranger is not None:
        raise Failed(
            f"{stranger} belongs to another user, or every user may write to it: remove it, or name another "
            "`state_dir` in the configuration that the agents share"
        )
    if os.statvfs(str(root)).f_flag & os.ST_NOEXEC:
        raise Failed(
            f"{root} is on a file system that runs no programs (noexec): name another `state_dir` in the "
            "configuration that the agents share"
        )
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    # Short: the path of its Python is in first lines of scripts, of which some kernels read 127 bytes.
    tree = root / f"{sha256[:20]}-{boot}"
    lock = os.open(str(root / LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another agent of this machine is unpacking")
            fcntl.flock(lock, fcntl.LOCK_EX)
        remove_unused(root, tree)
        if not os.access(str(tree / "bin" / "python"), os.X_OK):
            make(archive, sha256, tree)
        used = os.open(str(tree / USED), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(used, fcntl.LOCK_SH)
    finally:
        os.close(lock)
    return tree, used


def exchangeable(path: Path) -> "Path | None":
    """The directory in a path in whose place another user could put something else; None if there is none.

    Whoever makes a directory or a link in /tmp first owns it, and may later exchange all that is below it.
    """
    left = [Path(os.path.normpath(str(Path.cwd() / path))), Path(os.path.realpath(str(path)))]
    seen = set()
    while left:
        each = left.pop()
        if each in seen:
            continue
        seen.add(each)
        left.append(each.parent)
        try:
            found = each.lstat()
        except FileNotFoundError:
            continue
        above = each.parent.stat().st_mode if each.parent.exists() else 0
        is_link = stat.S_ISLNK(found.st_mode)
        is_anyones = above & stat.S_IWOTH and found.st_uid not in (os.geteuid(), 0)
        is_open = not is_link and found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
        if is_open or is_anyones:
            return each
        if is_link:
            left.append(Path(os.path.normpath(str(each.parent / each.readlink()))))
    return None


def remove_unused(root: Path, tree: Path) -> None:
    """Remove the other installations that nothing runs with, and what was left half made. Needs the lock."""
    for each in root.iterdir():
        if not each.is_dir() or each == tree:
            continue
        gone = each
        if each.suffix not in (FRESH, OLD):
            if is_used(each):
                continue
            # At once, so that one whose removal is cut short is no installation any more.
            gone = each.with_name(each.name + OLD)
            each.rename(gone)
        shutil.rmtree(str(gone), ignore_errors=True)


def is_used(tree: Path) -> bool:
    """Whether somebody runs with this installation."""
    try:
        used = os.open(str(tree / USED), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(used)
    return False


def make(archive: str, sha256: str, tree: Path) -> None:
    """Unpack an archive that has this digest. Needs the lock."""
    began = time.monotonic()
    shutil.rmtree(str(tree), ignore_errors=True)
    fresh = tree.with_name(tree.name + FRESH)
    fresh.mkdir(mode=0o755)
    try:
        # The file is read once: it may change between the check and the unpacking.
        with tempfile.TemporaryFile(dir=str(tree.parent)) as copy:
            copy_checked(archive, sha256, copy)
            unpack(archive, copy, fresh)
        complete(fresh)
        fresh.rename(tree)
    except BaseException:
        shutil.rmtree(str(fresh), ignore_errors=True)
        raise
    say(f"unpacked {archive} into {tree} in {time.monotonic() - began:.1f} s")


def copy_checked(archive: str, sha256: str, copy: IO[bytes]) -> None:
    """Copy the archive. Raises Failed if it has another digest."""
    digest = hashlib.sha256()
    try:
        with Path(archive).open("rb") as file:
            for data in iter(lambda: file.read(PIECE_BYTES), b""):
                digest.update(data)
                copy.write(data)
    except FileNotFoundError:
        raise Failed(
            f"there is no {archive} on this machine: put it where all machines find it, or bring it back"
        ) from None
    if digest.hexdigest() != sha256:
        raise Failed(
            f"{archive} has the sha256 {digest.hexdigest()}, not {sha256}: it is another file than the pool "
            "was started with, or is cut off; bring that back, or start the pool again"
        )
    copy.seek(0)


def unpack(archive: str, copy: IO[bytes], target: Path) -> None:
    """Unpack plain files into an empty directory. Raises Failed for an archive with anything else."""
    files = size = 0
    try:
        # The end of a tar is easily missed; gzip knows when it is cut off.
        with gzip.GzipFile(fileobj=copy) as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
            for member in tar:
                files, size = files + 1, size + member.size
                if files > MOST_FILES or size > MOST_BYTES:
                    raise Failed(f"{archive} has more than {MOST_FILES} files or {MOST_BYTES >> 30} GiB")
                path = PurePosixPath(member.name)
                content = tar.extractfile(member) if member.isreg() else None
                if content is None or path.is_absolute() or ".." in path.parts or str(path) != member.name:
                    raise Failed(f"{archive} has {member.name[:200]!r}, which is no plain file in it")
                write(target / member.name, content, 0o755 if member.mode & 0o100 else 0o644)
            while packed.read(PIECE_BYTES):
                pass
    except (gzip.BadGzipFile, tarfile.TarError, zlib.error, EOFError, ValueError) as error:
        raise Failed(f"{archive} is damaged: {error}") from error


def write(path: Path, content: IO[bytes], mode: int) -> None:
    """Write a file that is not there yet."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with path.open("xb") as file:
        shutil.copyfileobj(content, file, PIECE_BYTES)
        os.fchmod(file.fileno(), mode)


def complete(tree: Path) -> None:
    """Make a virtual environment of this Python."""
    base = Path(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))
    version = "{}.{}".format(*sys.version_info[:2])
    (tree / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {version}\n"
        f"executable = {base}\n"
    )
    (tree / USED).touch(mode=0o600)
    programs = tree / "bin"
    programs.mkdir(mode=0o755, exist_ok=True)
    for name in ("python", "python3", "python" + version):
        (programs / name).symlink_to(base)


if __name__ == "__main__":
    main(sys.argv[1:])
