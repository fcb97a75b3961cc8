"""`checkpoint.adopt`: before the program starts, a path of its own becomes the job's checkpoint directory.

It is a mount in a namespace of this attempt if the launcher may make one: no other task sees it, and it ends
with the attempt. Otherwise it is a symbolic link, which the agent removes at the job's end.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os

RECORDS = ".adopted"
"""The directory, below the parent of the checkpoint directories, with a file for each adopted path and the
entries made for it."""

NOT_ADOPTED = 73
"""Exit code of an attempt whose program was not run because its path could not be adopted."""

_MARK = ".adopted-"
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_MOST_NAMED = 3
_libc = ctypes.CDLL(None, use_errno=True)


def adopt(path: str, checkpoint_dir: str, *, mounting: bool = True) -> str:
    """Make `path` lead to `checkpoint_dir`.

    Call it in the working directory of the program, before it starts.

    Without `mounting` it is always a link. Returns the failure with its remedy; empty on success.
    """
    if not path or not checkpoint_dir:
        return ""
    path = os.path.abspath(path)
    try:
        failure = _objection(path, checkpoint_dir)
        if not failure and not _is_same(path, checkpoint_dir):
            _note(path, checkpoint_dir)
            if os.path.islink(path) or not mounting or not _mount(path, checkpoint_dir):
                _link(path, checkpoint_dir)
    except OSError as error:
        # A link has two names: what it leads to, and where it was to be.
        place = error.filename2 or error.filename or path
        failure = f"{error.strerror}: {place}; name a path that its task may create{_hint(error)}"
    return f"checkpoint.adopt: {path}: {failure}" if failure else ""


def _hint(error: OSError) -> str:
    return ", in a container one below /tmp" if error.errno == errno.EROFS else ""


def mark_name(parent: str) -> str:
    """The name of the file by which a job keeps others from removing the directory below its mount."""
    return f"{_MARK}{os.path.basename(parent)}"


def _objection(path: str, checkpoint_dir: str) -> str:
    here = os.path.realpath(path)
    if os.path.realpath(checkpoint_dir).startswith(here.rstrip("/") + "/"):
        return f"the checkpoint directory itself, {checkpoint_dir}, is below it; choose another path"
    if os.path.islink(path):
        target = os.readlink(path)
        if os.path.dirname(target) != os.path.dirname(checkpoint_dir):
            return f"it is a link to {target}, which is not this job's; remove it, or choose another path"
        return ""
    if not os.path.lexists(path):
        return ""
    if not os.path.isdir(path):
        return "it is a file; remove it, or choose another path"
    found = sorted(each for each in os.listdir(path) if not each.startswith(_MARK))
    if found and not _is_same(path, checkpoint_dir):
        named = ", ".join(found[:_MOST_NAMED])
        return (
            f"it holds files that are not this job's ({named}); move them away, or bring them in with "
            "`supervisorctl checkpoints JOB import`"
        )
    return ""


def _is_same(path: str, checkpoint_dir: str) -> bool:
    return os.path.exists(path) and os.path.samefile(path, checkpoint_dir)


def _note(path: str, checkpoint_dir: str) -> None:
    """Note the path for `agent.checkpoints.adopted`.

    Where this task may not write the note, as in a container, the path ends with the container.

    `made`: the directories that do not exist yet; `was`: mode and owner of an existing empty one.
    """
    missing, above, was = [], path, None
    if os.path.isdir(path) and not os.path.islink(path):
        found = os.stat(path)
        was = [found.st_mode, found.st_uid, found.st_gid]
    while not os.path.lexists(above):
        missing.append(above)
        above = os.path.dirname(above)
    directory = os.path.join(os.path.dirname(checkpoint_dir), RECORDS)
    name = os.path.join(directory, hashlib.sha256(os.fsencode(path)).hexdigest()[:16])
    if os.path.exists(name):
        return
    try:
        os.makedirs(directory, exist_ok=True)
        with open(name, "w", encoding="utf-8") as file:
            json.dump({"path": path, "made": missing, "was": was}, file)
    except OSError:
        pass


def _mount(path: str, checkpoint_dir: str) -> bool:
    """Mount it, in a new namespace that also shows later mounts of the node; returns whether that worked."""
    if os.geteuid() != 0 or _libc.unshare(_CLONE_NEWNS) != 0:
        return False
    if _libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None) != 0:
        return False
    os.makedirs(path, exist_ok=True)
    # Removed below a mount of another namespace, a directory takes that mount along.
    mark = os.path.join(path, mark_name(os.path.dirname(checkpoint_dir)))
    os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    source, target = os.fsencode(checkpoint_dir), os.fsencode(path)
    return bool(_libc.mount(source, target, None, ctypes.c_ulong(_MS_BIND | _MS_REC), None) == 0)


def _link(path: str, checkpoint_dir: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # Two containers with one directory of the machine may have one pid.
    beside = f"{path}.{os.urandom(8).hex()}.adopted"
    os.symlink(checkpoint_dir, beside)
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            mark = os.path.join(path, mark_name(os.path.dirname(checkpoint_dir)))
            if os.path.lexists(mark):
                os.unlink(mark)
            os.rmdir(path)
        os.replace(beside, path)
    except OSError:
        os.unlink(beside)
        raise
