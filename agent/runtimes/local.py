"""What all runtimes have in common: a launcher is a process of this machine, watched and killed as such."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from pathlib import Path

from agent.boundaries import Beside, Post, Process
from agent.core.events import LauncherGone
from agent.core.instructions import Reach
from agent.host import memory, regular_files
from agent.host.oom import OomLog, OomNearby
from agent.host.task_users import TaskUsers
from agent.inside import clock, protocol
from agent.inside.launcher import exits
from agent.inside.processes import fence
from agent.runtimes.marks import Marks, living
from recovery.io.trees import remove_tree
from supervisor.adapters.failpoints import effect

FENCE_MS = 2_000
SOCKET = "agent.sock"
RECORD_BYTES = 64 << 10


class LocalLaunchers:
    """The part of `Runtime` that asks the kernel alone, and holds whatever else has failed.

    Each launcher has `DIRECTORY/ID/` for its configuration, log and exits. `marks`: those of this agent.
    `users`: of tasks that are others' than the agent's.
    """

    def __init__(self, directory: Path, marks: Marks, users: TaskUsers | None = None) -> None:
        self._directory = directory
        self._marks = marks
        self._users = users
        self._believes: Callable[[int], bool] = _everybody
        self._watched: dict[str, int] = {}
        self._oom = OomLog()
        self._nearby = OomNearby()

    def boot_id(self) -> str:
        """The kernel's."""
        return clock.boot_id()

    def watch(self, launcher_id: str, process: Process, post: Post) -> None:
        """Post LauncherGone once the process has ended; told by the kernel through a pidfd."""
        loop = asyncio.get_running_loop()
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            post(LauncherGone(launcher_id))
            return
        if not self.is_alive(process):
            os.close(pidfd)
            post(LauncherGone(launcher_id))
            return

        def ended() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            del self._watched[launcher_id]
            self._reap(process.pid)
            post(LauncherGone(launcher_id))

        self._watched[launcher_id] = pidfd
        loop.add_reader(pidfd, ended)

    def reach(self, launcher_id: str) -> Reach | None:
        """Processes have their node's network."""

    def is_alive(self, process: Process) -> bool:
        """Whether this very process lives."""
        found = fence.read_process(process.pid)
        return found is not None and found.start_ticks == process.start_ticks

    async def living(self) -> Mapping[str, tuple[Process, ...]]:
        """By the mark in their environment: those of no other agent of this machine."""
        return await asyncio.to_thread(living, self._marks, self._believes)

    def free_bytes(self) -> int:
        """The machine's, or what the cgroup of this agent has left."""
        return memory.free_bytes()

    def launching(self, launcher_id: str, *, yields: bool) -> None:
        """Launchers see to it themselves, where sessions are weighed against each other."""

    def began(self, process: Process) -> None:
        """Note how often the OOM killer has struck in its cgroup."""
        self._nearby.began(process.pid)

    def oom_beside(self, process: Process) -> Beside:
        """What its cgroup has counted since."""
        return self._nearby.struck(process.pid)

    async def last_words(self, launcher_id: str, attempts: tuple[str, ...]) -> tuple[protocol.Exited, ...]:
        """From the files that it keeps until its agent has acknowledged them."""
        return await asyncio.to_thread(self._last_words, launcher_id, attempts)

    def oom_killed(self, process: Process) -> bool:
        """What the kernel's log says, where this agent may read it."""
        return self._oom.killed(process.pid)

    async def tidy(self, known: Callable[[], AbstractSet[str]]) -> None:
        """Remove the directories of launchers that are known no more."""
        await asyncio.to_thread(self._tidy, known)

    async def close(self) -> None:
        """Stop watching; launchers live on."""
        self._oom.close()
        loop = asyncio.get_running_loop()
        for pidfd in self._watched.values():
            loop.remove_reader(pidfd)
            os.close(pidfd)
        self._watched.clear()

    def _home(self, launcher_id: str) -> Path:
        return self._directory / launcher_id

    def _last_words(self, launcher_id: str, attempts: tuple[str, ...]) -> tuple[protocol.Exited, ...]:
        directory, found = self._home(launcher_id) / exits.DIRECTORY, list[protocol.Exited]()
        for attempt in attempts:
            # Without a record, or with nonsense in its place, all that is known is that the launcher is gone.
            with suppress(OSError, ValueError, RecursionError, protocol.ProtocolError):
                raw = regular_files.read_start(Path(exits.record_path(str(directory), attempt)), RECORD_BYTES)
                exited = protocol.from_plain(protocol.Exited, json.loads(raw))
                if exited.attempt == attempt:
                    found.append(exited)
        return tuple(found)

    def _tidy(self, known: Callable[[], AbstractSet[str]]) -> None:
        with suppress(OSError):
            found = [each.name for each in self._directory.iterdir()]
            for launcher_id in set(found) - known():
                with effect("runtime.tidy"):
                    self._remove_home(launcher_id)

    def _remove_home(self, launcher_id: str) -> None:
        """Remove a launcher's directory. What stays is removed by the next `tidy`."""
        with suppress(OSError):
            remove_tree(self._home(launcher_id))

    async def _kill_all(self, launcher_id: str, processes: tuple[Process, ...]) -> int:
        """SIGKILL the launcher and all that it started; returns how many of them are still seen."""
        roots = tuple((each.pid, each.start_ticks) for each in processes)
        strangers = partial(self._is_strange, self._user_of(launcher_id))
        with effect("runtime.kill"):
            report = await asyncio.to_thread(
                fence.fence, f"{launcher_id}#", roots, (), FENCE_MS, self._waits_for(launcher_id), strangers
            )
        return len(report.survivors)

    def _user_of(self, launcher_id: str) -> int | None:
        """The uid that a launcher was started as; None once its directory is gone."""
        try:
            return self._home(launcher_id).lstat().st_uid
        except OSError:
            return None

    def _is_strange(self, user: int | None, uid: int) -> bool:
        """Whether a uid is of another job's tasks, which may show this launcher's mark."""
        if self._users is None or user is None:
            return False
        return uid != user and self._users.has(uid)

    def _waits_for(self, launcher_id: str) -> int | None:
        """The uid whose exiting processes a fence waits for; None for the agent's own."""
        del launcher_id
        return None

    def _reap(self, pid: int) -> None:
        """A process that may be a child of ours has ended."""


def _everybody(_pid: int) -> bool:
    """The mark alone says whose a process is."""
    return True


def write_config(home: Path, config: protocol.LauncherConfig) -> Path:
    """The file that a launcher reads at its start; raises OSError."""
    path = home / "config.json"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(protocol.to_plain(config), file)
    return path
