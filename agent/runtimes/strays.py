"""Processes of a job that nothing ties to its launchers any more, found by a uid that is the job's alone.

A process belongs to a launcher by descent or by its mark (`agent.inside.fence`). A program can start one that
leaves its parents and has no mark in its environment, and then end the launcher.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from agent.inside import fence

_PAUSE_S = 0.01


def kill_strays(user: int, ending: Path, timeout_ms: int) -> int:
    """SIGKILL to them until none is seen. Blocks; returns how many are left after `timeout_ms`.

    `user`: a uid of one job and of nobody else. `ending`: the directory of a launcher of which all is dead.
    """
    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        found = _strays(user, ending)
        for process in found:
            fence.kill(process)
        if not found or time.monotonic() > deadline:
            return len(found)
        time.sleep(_PAUSE_S)


def _strays(user: int, ending: Path) -> tuple[fence.Process, ...]:
    """A child of this agent is none: it may be a launcher that does not show its mark yet."""
    table = fence.all_processes()
    mine = [each for each in table.values() if fence.user_of(each.pid) == user]
    known = {os.getpid()} | {each.pid for each in mine if _has_launcher(each.pid, user, ending)}
    return tuple(each for each in mine if not _descends(each.pid, known, table))


def _descends(pid: int, known: set[int], table: dict[int, fence.Process]) -> bool:
    seen = set[int]()
    while pid in table and pid not in known and pid not in seen:
        seen.add(pid)
        pid = table[pid].parent
    return pid in known


def _has_launcher(pid: int, user: int, ending: Path) -> bool:
    """Whether its mark is of a launcher of its user that is there, of this agent or of another one.

    Only an agent makes directories beside those of launchers: what a program writes there names none.
    """
    launcher_id, _, rest = fence.marker_of(pid).partition("#")
    home = Path(rest.partition("#")[0].partition("@")[2], launcher_id)
    if not home.is_absolute() or home.parent.name != ending.parent.name or home == ending:
        return False
    try:
        above, own = home.parent.lstat(), home.lstat()
    except (OSError, ValueError):
        return False
    return above.st_uid == os.geteuid() and not above.st_mode & 0o022 and own.st_uid == user
