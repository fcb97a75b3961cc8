"""Mounts below one directory of this node: started, healed and ended by their files.

Each is served by a process of its own, which outlives the agent. Agents of one machine may look after the
same mounts.
"""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from agent.retry_log import require_sound
from recovery.mount import control
from recovery.mount.control import MountState
from recovery.mount.record import MountFiles, MountWish
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Clock, Logger
from supervisor.contract.errors import StoreUnreachable, TfSupervisorError

WANTED_MS = 5_000
STARTING_MS = 20_000
RETIRE_MS = 5_000
AGAIN_MS, AGAIN_MOST_MS = 200, 5_000
"""Milliseconds from a start in vain to the next one, and the most after several in a row."""


class MountHealer:
    """Brings mounts into the wished state, one step at a time. Its methods block."""

    def __init__(self, clock: Clock, sink: Logger) -> None:
        self._clock = clock
        self._sink = sink
        self._children: dict[Path, subprocess.Popen[bytes]] = {}
        self._began_ms: dict[Path, int] = {}
        self._wanted_ms: dict[Path, int] = {}
        self._served: set[Path] = set()
        self._in_vain: dict[Path, int] = {}
        self._lost_ms: dict[Path, int] = {}

    def wish(self, files: MountFiles, wish: MountWish) -> None:
        """Have it mounted."""
        if files.read_wish() != wish:
            files.write_wish(wish)
        files.write_wanted(self._clock.now_ms())

    def heal(self, files: MountFiles, wish: MountWish) -> MountState:
        """Take one step towards SERVING; returns the state before."""
        now_ms = self._clock.now_ms()
        key = files.wish_path
        self._reap(key)
        if now_ms - self._wanted_ms.get(key, 0) > WANTED_MS:
            self._wanted_ms[key] = now_ms
            files.write_wanted(now_ms)
        state = control.look(files, wish, now_ms)
        if state is MountState.SERVING:
            self._served.add(key)
            self._began_ms.pop(key, None)
            self._in_vain.pop(key, None)
            return state
        self._note_loss(files, state, now_ms)
        late = now_ms - self._began_ms.setdefault(key, now_ms) > STARTING_MS
        if state in {MountState.SILENT, MountState.OTHER} or (state is MountState.STARTING and late):
            self._sink.warning(
                "killing the process of a mount; a new one follows",
                job=wish.job,
                directory=wish.directory,
                state=state.value,
            )
            with effect("mounts.kill"):
                control.kill(files, at_once=state is not MountState.OTHER)
            if key in self._children:
                with effect("mounts.kill_child"):
                    self._children[key].kill()
            self._began_ms.pop(key, None)
        elif state is MountState.GONE and key not in self._children and self._may_start(key, now_ms):
            self._sink.info(
                "starting the process of a mount",
                job=wish.job,
                directory=wish.directory,
                store=f"{wish.uri}/{wish.live}".rstrip("/"),
            )
            with effect("mounts.start"):
                self._children[key] = control.start(Path(wish.directory).parent, wish.generation)
            self._began_ms[key] = now_ms
            self._in_vain[key] = self._in_vain.get(key, 0) + 1
        return state

    def failed_ms(self, files: MountFiles) -> int:
        """The time at which a mount last failed its programs, by EIO or by its absence; -1: never."""
        # A program that ends because its mount has gone may be faster than the next look at it.
        with suppress(TfSupervisorError):
            wish = files.read_wish()
            if wish is not None:
                now_ms = self._clock.now_ms()
                self._note_loss(files, control.look(files, wish, now_ms), now_ms)
        told_ms = files.failed_ms()
        return max(-1 if told_ms is None else told_ms, self._lost_ms.get(files.wish_path, -1))

    def end(self, files: MountFiles, directory: Path) -> None:
        """Unmount it and forget it. Raises StoreUnreachable, Refused."""
        files.forget_wish()
        # First our own child: one that has only begun has no beat to be found by, and would mount later.
        child = self._children.get(files.wish_path)
        if child is not None and not control.end_child(child):
            raise StoreUnreachable(f"{directory}: process {child.pid} of its mount does not end")
        self._children.pop(files.wish_path, None)
        with effect("mounts.end"):
            control.end(files, directory)
        self._began_ms.pop(files.wish_path, None)
        self._wanted_ms.pop(files.wish_path, None)
        self._served.discard(files.wish_path)
        self._in_vain.pop(files.wish_path, None)
        self._lost_ms.pop(files.wish_path, None)

    def _may_start(self, key: Path, now_ms: int) -> bool:
        """Whether it is time for another process. One that ends at once takes a second of a processor."""
        before = self._in_vain.get(key, 0)
        wait_ms = min(AGAIN_MS << min(before - 1, 8), AGAIN_MOST_MS) if before else 0
        return now_ms - self._began_ms.get(key, now_ms) >= wait_ms

    def _note_loss(self, files: MountFiles, state: MountState, now_ms: int) -> None:
        """Note the loss of a mount that programs had, under this agent or an earlier one."""
        if state is MountState.SERVING:
            return
        beat = files.read_beat()
        if files.wish_path in self._served or (beat is not None and beat.ready):
            self._lost_ms[files.wish_path] = now_ms

    def _reap(self, key: Path) -> None:
        child = self._children.get(key)
        if child is not None and child.poll() is not None:
            del self._children[key]


class MountWatch:
    """Looks after mounts in the background, from `open` until `close`. A subclass says how, in `_run`."""

    def __init__(self, clock: Clock, sink: Logger) -> None:
        self._clock = clock
        self._sink = sink
        self._healer = MountHealer(clock, sink)
        self._retired_ms = clock.now_ms()
        self._task: asyncio.Task[NoReturn] | None = None

    async def _run(self) -> NoReturn:
        raise NotImplementedError

    def open(self) -> None:
        """Begin to look after the mounts."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def check(self) -> None:
        """Raise the unexpected error that ended the background work, after which no mount is healed."""
        if self._task is not None:
            require_sound((self._task,))

    async def close(self) -> None:
        """Stop looking. The mounts live on, for the tasks and for a successor."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _is_time_to_retire(self) -> bool:
        """Whether mounts that nobody needs are to be looked for; said once in RETIRE_MS."""
        now_ms = self._clock.now_ms()
        if now_ms - self._retired_ms <= RETIRE_MS:
            return False
        self._retired_ms = now_ms
        return True
