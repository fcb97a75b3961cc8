"""Strays: processes of a job without a tie to its launchers, found by a uid that belongs to the job alone.

A process belongs to a launcher by descent or by its mark (`agent.inside.processes.fence`). A program can
start one that leaves its parents and has no mark in its environment, and then end the launcher.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agent.host.processes import TICKS_PER_S
from agent.host.task_users import TaskUsers, user_named
from agent.inside import clock
from agent.inside.processes import fence
from supervisor.contract.boundaries import Logger
from supervisor.contract.errors import TfSupervisorError

THREADS = 2
MOST_S = 5.0
KILL_MS = 2_000
FORK_MS = 1_000
"""A child of an agent that is older has the program of a launcher, or will never have it."""
_PAUSE_S = 0.01


class Strays:
    """Ends strays of one agent's jobs. It has threads of its own, as the loop's save the state file."""

    def __init__(self, users: TaskUsers, sink: Logger) -> None:
        self._users = users
        self._sink = sink
        self._threads = ThreadPoolExecutor(THREADS, "strays")
        self._spared = set[int]()

    async def end(self, user: int, ending: Path, children: AbstractSet[int]) -> int:
        """Run `kill_strays` with a bound in time. After it the rest is left alive, and logged."""
        if not self._users.is_of_one_job(user):
            return 0
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(MOST_S):
                return await loop.run_in_executor(self._threads, self._end, user, ending, children)
        except TimeoutError:
            reason = f"looking at this machine's processes takes longer than {MOST_S:g} s"
        except TfSupervisorError as error:
            reason = str(error)
        self._sink.warning(
            "not all processes of a task were looked for: some may run on", user=user, reason=reason
        )
        return 0

    def close(self) -> None:
        """Stop without waiting for running looks."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _end(self, user: int, ending: Path, children: AbstractSet[int]) -> int:
        """Kill strays, unless the uid is that of a user of the machine."""
        if name := user_named(user):
            if user not in self._spared:
                self._spared.add(user)
                reason = "the range of tasks' users holds one of this machine: take uids that nobody has"
                self._sink.warning(
                    "processes of a task are not found by their user", user=user, of=name, reason=reason
                )
            return 0
        return kill_strays(user, ending, self._users.all_homes(), KILL_MS, children)


def kill_strays(
    user: int, ending: Path, homes: frozenset[str], timeout_ms: int, children: AbstractSet[int] = frozenset()
) -> int:
    """SIGKILL strays until none is seen. Blocks; returns the number that is left after `timeout_ms`.

    `user`: a uid that belongs to one job alone. `ending`: the directory of a launcher whose processes are all
    dead. `homes`: the directories of launchers of all agents of this machine. `children`: the launchers that
    this agent has started itself. A module that one imports may overwrite its mark.
    """
    ending = Path(os.path.realpath(ending.parent), ending.name)
    homes = homes | {str(ending.parent)}
    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        strays, forked = _strays(user, ending, homes, children)
        for process in strays:
            fence.kill(process)
        if not strays + forked or time.monotonic() > deadline:
            return len(strays + forked)
        time.sleep(_PAUSE_S)


def _strays(
    user: int, ending: Path, homes: frozenset[str], children: AbstractSet[int]
) -> tuple[list[fence.Process], list[fence.Process]]:
    """Strays, and what may yet become a launcher.

    A child of an agent may be a stray: an agent that is PID 1, or a subreaper, inherits orphans.
    """
    table = fence.all_processes()
    mine = [each for each in table.values() if fence.user_of(each.pid) == user]
    # Before the marks: what becomes a launcher in between is taken for one that may.
    forked = _forked(mine)
    known = {
        each.pid for each in mine if each.pid in children or _has_launcher(each.pid, user, ending, homes)
    }
    found = [each for each in mine if not _descends(each.pid, known, table)]
    return [each for each in found if each.pid not in forked], [each for each in found if each.pid in forked]


def _forked(processes: list[fence.Process]) -> set[int]:
    """The processes that this or another agent has just forked: they have their job's user, and no mark yet.

    They show the environment of their agent, which no task can read. In the midst of an exec a process shows
    nothing, and its mark a moment later.
    """
    young = [each for each in processes if _is_young_child(each)]
    shown = {each.pid: fence.environment(each.pid) for each in young}
    if b"" in shown.values():
        time.sleep(_PAUSE_S)
    return {
        each.pid for each in young if shown[each.pid] and shown[each.pid] == fence.environment(each.parent)
    }


def _is_young_child(process: fence.Process) -> bool:
    age_ms = clock.now_ms() - process.start_ticks * 1000 // TICKS_PER_S
    return age_ms < FORK_MS and fence.user_of(process.parent) == os.geteuid()


def _descends(pid: int, known: set[int], table: dict[int, fence.Process]) -> bool:
    seen = set[int]()
    while pid in table and pid not in known and pid not in seen:
        seen.add(pid)
        pid = table[pid].parent
    return pid in known


def _has_launcher(pid: int, user: int, ending: Path, homes: frozenset[str]) -> bool:
    """Whether its mark names an existing launcher of its user, of this agent or another one.

    A program can choose its mark. So only a name in one of `homes` is looked up: a look at a path of the
    program's choice could wait for a file server without end.
    """
    launcher_id, _, rest = fence.marker_of(pid).partition("#")
    directory = rest.rpartition("#")[0].partition("@")[2]
    if directory not in homes or "/" in launcher_id or launcher_id in {"", ".", ".."}:
        return False
    home = Path(directory, launcher_id)
    if home == ending:
        return False
    try:
        above, own = home.parent.lstat(), home.lstat()
    except (OSError, ValueError):
        return False
    return above.st_uid == os.geteuid() and not above.st_mode & 0o022 and own.st_uid == user
