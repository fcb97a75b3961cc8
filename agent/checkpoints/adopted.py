"""Removal of links and directories that tasks made for `checkpoint.adopt` on this node, at the end of their
job.

The records are written by tasks of the agent's own user. Each is bounded, and the entry that it names is
removed only if it is a link into the job's directory, a mark of the job, or an empty directory. Records of
tasks with another user, as in containers, are not read: the places of their links are known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from agent.host.regular_files import read_start
from agent.inside.child.adopt import RECORDS, mark_name
from recovery.io.files import beneath
from supervisor.contract.job.spec import JobSpec, Mount

MOST_RECORDS = 256
_RECORD_BYTES = 16 << 10


def forget(parent: Path) -> None:
    """Remove the entries that the records below `parent`, a job's directory, name. Blocking."""
    try:
        records = sorted((parent / RECORDS).iterdir())[:MOST_RECORDS]
    except OSError:
        return
    for each in records:
        # Nonsense, or a place that somebody else uses by now: it stays.
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            record = json.loads(read_start(each, _RECORD_BYTES))
            _undo(Path(record["path"]), [Path(made) for made in record["made"]], record["was"], parent)


def forget_shared(spec: JobSpec, always: Iterable[Mount], parent: Path) -> None:
    """Remove the link that tasks of another user made in a directory of this machine, if there is one.

    A link in another place is in a container's own file system and ends with it. `always`: the directories in
    all tasks; `parent`: the job's directory, into which the link leads. Blocking.
    """
    path = Path(os.path.normpath(Path(spec.workdir) / spec.checkpoint.adopt))
    mounts = (*always, *(spec.container.mounts if spec.container is not None else ()))
    around = [each for each in mounts if path.is_relative_to(each.target) and path != Path(each.target)]
    mount = max(around, key=lambda each: len(each.target), default=None)
    if not spec.checkpoint.adopt or mount is None or mount.read_only:
        return
    directory, name = Path(os.path.realpath(mount.source)), path.relative_to(mount.target)
    # Tasks write there: what is on the way, or in its place, may be anything.
    with suppress(OSError), beneath(directory, str(name)) as (fd, last):
        if Path(os.readlink(last, dir_fd=fd)).parent == parent:
            os.unlink(last, dir_fd=fd)


def _undo(path: Path, made: list[Path], was: list[int] | None, parent: Path) -> None:
    if path.is_symlink():
        if path.readlink().parent != parent:
            return
        path.unlink()
    else:
        # Another job that has adopted this path has a mark of its own there, which keeps it.
        with suppress(FileNotFoundError):
            (path / mark_name(str(parent))).unlink()
    if was is not None:
        mode, uid, gid = map(int, was)
        with suppress(FileExistsError):
            path.mkdir()
            path.chmod(mode & 0o7777)
            os.chown(path, uid, gid)
    for each in made:
        if each.is_dir() and not each.is_symlink():
            each.rmdir()
