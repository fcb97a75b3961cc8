"""The common part of all runtimes: a launcher is a process of this machine, and is watched and killed as
such.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from pathlib import Path

from agent.boundaries import Beside, LastWords, Post, Process
from agent.core.events import LauncherGone
from agent.core.instructions import Reach
from agent.host import memory, regular_files
from agent.host.oom import OomLog, OomNearby
from agent.host.task_users import TaskUsers
from agent.inside import clock, protocol
from agent.inside.launcher import exits
from agent.inside.processes import fence
from agent.runtimes.launcher_log import said_in
from agent.runtimes.marks import Marks, living
from recovery.io.trees import remove_tree
from supervisor.adapters.failpoints import effect

FENCE_MS = 2_000
SOCKET = "agent.sock"
RECORD_BYTES = 64 << 10


class LocalLaunchers:
    """The part of `Runtime` that uses only the kernel, and works whatever else has failed.

    Each launcher has `DIRECTORY/ID/` for its configuration, log and exits. `marks`: those of this agent.
    `users`: the users of tasks, if they are others than the agent's.
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
        """The boot id of the kernel."""
        return clock.boot_id()

    def watch(self, launcher_id: str, process: Process, post: Post) -> None:
        """Post LauncherGone once the process has ended, detected by a pidfd."""
        loop = asyncio.get_running_loop()
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            post(self._gone(launcher_id, process))
            return
        if not self.is_alive(process):
            os.close(pidfd)
            post(self._gone(launcher_id, process))
            return

        def ended() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            del self._watched[launcher_id]
            post(self._gone(launcher_id, process))

        self._watched[launcher_id] = pidfd
        loop.add_reader(pidfd, ended)

    def reach(self, launcher_id: str) -> Reach | None:
        """None: processes have their node's address."""

    def is_alive(self, process: Process) -> bool:
        """Whether this process is alive."""
        found = fence.read_process(process.pid)
        return found is not None and found.start_ticks == process.start_ticks

    async def living(self) -> Mapping[str, tuple[Process, ...]]:
        """The living launchers of this agent, by the mark in their environment."""
        return await asyncio.to_thread(living, self._marks, self._believes)

    def free_bytes(self) -> int:
        """Free bytes of the machine, or of this agent's cgroup."""
        return memory.free_bytes()

    def launching(self, launcher_id: str, *, yields: bool) -> None:
        """Do nothing: launchers set priorities themselves, if sessions are weighed against each other."""

    def began(self, process: Process) -> None:
        """Note the number of OOM kills in its cgroup."""
        self._nearby.began(process.pid)

    def oom_beside(self, process: Process) -> Beside:
        """The OOM kills in its cgroup since `began`."""
        return self._nearby.struck(process.pid)

    def limit_met(self, process: Process) -> str:
        """The limit of its cgroup, if that is not this agent's too."""
        return self._nearby.limit_met(process.pid)

    async def last_words(self, launcher_id: str, attempts: tuple[str, ...]) -> LastWords:
        """The exit records that the launcher keeps until its agent has acknowledged them, and its log."""
        return await asyncio.to_thread(self._last_words, launcher_id, attempts)

    def oom_killed(self, process: Process) -> bool:
        """Whether the kernel's log names an OOM kill of it, if this agent may read the log."""
        return self._oom.killed(process.pid)

    async def tidy(self, known: Callable[[], AbstractSet[str]]) -> None:
        """Remove the directories of unknown launchers."""
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

    def _last_words(self, launcher_id: str, attempts: tuple[str, ...]) -> LastWords:
        directory, found = self._home(launcher_id) / exits.DIRECTORY, list[protocol.Exited]()
        for attempt in attempts:
            # Without a record, or with nonsense in its place, all that is known is that the launcher is gone.
            with suppress(OSError, ValueError, RecursionError, protocol.ProtocolError):
                raw = regular_files.read_start(Path(exits.record_path(str(directory), attempt)), RECORD_BYTES)
                exited = protocol.from_plain(protocol.Exited, json.loads(raw))
                if exited.attempt == attempt:
                    found.append(exited)
        return LastWords(tuple(found), said_in(self._home(launcher_id)))

    def _tidy(self, known: Callable[[], AbstractSet[str]]) -> None:
        with suppress(OSError):
            found = [each.name for each in self._directory.iterdir()]
            for launcher_id in set(found) - known():
                with effect("runtime.tidy"):
                    self._remove_home(launcher_id)

    def _remove_home(self, launcher_id: str) -> None:
        """Remove a launcher's directory. The next `tidy` removes the rest."""
        with suppress(OSError):
            remove_tree(self._home(launcher_id))

    async def _kill_all(self, launcher_id: str, processes: tuple[Process, ...]) -> int:
        """SIGKILL the launcher and all its processes; returns the number that is still seen."""
        roots = tuple((each.pid, each.start_ticks) for each in processes)
        strangers = partial(self._is_strange, self._user_of(launcher_id))
        with effect("runtime.kill"):
            report = await asyncio.to_thread(
                fence.fence, f"{launcher_id}#", roots, (), FENCE_MS, self._waits_for(launcher_id), strangers
            )
        return len(report.survivors)

    def _user_of(self, launcher_id: str) -> int | None:
        """The uid of a launcher; None once its directory is gone."""
        try:
            return self._home(launcher_id).lstat().st_uid
        except OSError:
            return None

    def _is_strange(self, user: int | None, uid: int) -> bool:
        """Whether a uid belongs to another job's tasks, which may forge this launcher's mark."""
        if self._users is None or user is None:
            return False
        return uid != user and self._users.has(uid)

    def _waits_for(self, launcher_id: str) -> int | None:
        """The uid whose exiting processes a fence waits for; None for the agent's own."""
        del launcher_id
        return None

    def _gone(self, launcher_id: str, process: Process) -> LauncherGone:
        """The event for a launcher that has ended."""
        del process
        return LauncherGone(launcher_id)


def _everybody(_pid: int) -> bool:
    """True: any process is believed by its mark alone."""
    return True


def write_config(home: Path, config: protocol.LauncherConfig) -> Path:
    """Write the configuration file of a launcher; raises OSError, which names the file."""
    path = home / "config.json"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            json.dump(protocol.to_plain(config), file)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    return path
