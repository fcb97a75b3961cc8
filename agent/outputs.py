"""The output directories of this node's tasks: made before a task starts, and sent to the job's store.

A task's files are sent while it runs, and whole once it has ended. What is to be sent is on the disk, and so
is the note of what has been: an agent that is killed goes on where it was. Sending yields to everything else:
two transfers at a time, in threads of low priority.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import get_native_id
from typing import TypeVar

from agent.boundaries import StoreOpener
from agent.core.instructions import OutputDirs, PrepareOutputs
from agent.ownership import give
from agent.trouble import Trouble, require_sound
from recovery.files import mapped_errors, remove_tree
from recovery.outputs.send import OutputSender, OutputState, load_state, save_state, state_path
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Clock, Sink
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.ids import AttemptId, TaskId

T = TypeVar("T")
OWN, HOME, COPIES = "outputs", ".outputs", "all-outputs"
"""Below a job's directory: what its tasks write, this agent's notes on that, and copies for who reads it."""

SEND_S = 10.0
"""A file that a task writes is in the store so much later, where the store keeps up."""
REFUSED_MS = (1_000, 60_000)
AT_ONCE = 2
NICE = 15


def quiet_threads() -> ThreadPoolExecutor:
    """Threads that get the processor when nobody else wants it."""

    def yield_to_others() -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, get_native_id(), NICE)

    return ThreadPoolExecutor(2 * AT_ONCE, "outputs", yield_to_others)


class _Task:
    """One task's outputs."""

    def __init__(self, sender: OutputSender, trouble: Trouble) -> None:
        self.sender = sender
        self.trouble = trouble
        self.lock = asyncio.Lock()
        self.hurry = asyncio.Event()
        self.work: asyncio.Task[None] | None = None

    @property
    def state(self) -> OutputState:
        return self.sender.state

    def put(self, state: OutputState) -> None:
        self.sender.state = state

    def stop(self) -> None:
        if self.work is not None:
            self.work.cancel()


class NodeOutputs:
    """`Outputs` below `parent/JOB_UUID`.

    Attributes:
        owner: (uid, gid) of the tasks, where they are others' than the agent's.
    """

    def __init__(
        self,
        node: str,
        parent: Path,
        opener: StoreOpener,
        clock: Clock,
        sink: Sink,
        new_id: Callable[[], str],
        threads: Executor | None = None,
        send_s: float = SEND_S,
    ) -> None:
        self._node = node
        self._parent = parent
        self._opener = opener
        self._clock = clock
        self._sink = sink
        self._new_id = new_id
        self._threads = threads
        self._send_s = send_s
        self._tasks: dict[tuple[str, str], _Task] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.owner: tuple[int, int] | None = None

    def directories(self, job_uuid: str, task: TaskId) -> OutputDirs:
        """Where a task writes, and where it reads what others wrote."""
        job = self._parent / job_uuid
        return OutputDirs(str(job / OWN / task.member), str(job / COPIES / self._node))

    async def prepare(self, prepare: PrepareOutputs) -> None:
        """Make the task's directory and begin to send what it writes."""
        task = prepare.attempt.task
        key = (prepare.job_uuid, task.member)
        try:
            await self._call(partial(self._make, prepare))
            state = await self._call(partial(load_state, state_path(self._home(key[0]), key[1])))
            entry = self._tasks.get(key)
            if entry is not None:
                entry.stop()
            sent = state.sent if state is not None else {}
            state = OutputState(
                task.job,
                prepare.job_uuid,
                task.member,
                prepare.uri,
                self._node,
                prepare.attempt.generation,
                prepare.attempt.number,
                prepare.budget_bytes,
                prepare.keep_ms,
                sent=sent,
                late=state.late if state is not None else (),
            )
            await self._call(partial(save_state, self._home(key[0]), state))
            self._begin(key, state)
        except TfSupervisorError as error:
            self._sink.error("no output directory", task=str(task), reason=str(error))

    def over(self, attempt: AttemptId) -> None:
        """Send the rest, whole, unless another attempt has begun here."""
        for (_, member), entry in self._tasks.items():
            state = entry.state
            mine = state.job == attempt.task.job and member == attempt.task.member
            if mine and (state.generation, state.attempt) == (attempt.generation, attempt.number):
                self._end(entry, over=True)

    def job_ended(self, job_uuid: str) -> None:
        """Once all of it is in the store, it is removed here."""
        for (uuid, _), entry in self._tasks.items():
            if uuid == job_uuid:
                self._end(entry, over=True, ended=True)

    def check(self) -> None:
        """Raise what ended work in the background."""
        require_sound([each.work for each in self._tasks.values() if each.work is not None])

    async def run(self) -> None:
        """Take up what earlier lives have left."""
        for path in await asyncio.to_thread(_notes, self._parent):
            state = await self._call(partial(load_state, path))
            if state is not None and state.node == self._node:
                key = (state.job_uuid, state.member)
                if key not in self._tasks and path == state_path(self._home(key[0]), key[1]):
                    self._begin(key, state)

    async def close(self) -> None:
        """Stop; a successor goes on."""
        working = [each.work for each in self._tasks.values() if each.work is not None]
        for work in working:
            work.cancel()
        await asyncio.gather(*working, return_exceptions=True)

    def _begin(self, key: tuple[str, str], state: OutputState) -> None:
        uuid, member = key
        name = f"{state.job}/{member}"
        sender = OutputSender(
            self._opener(state.uri),
            self._parent / uuid / OWN / member,
            self._home(uuid),
            state,
            self._clock,
            self._new_id,
            self._threads,
            self.owner[0] if self.owner is not None and os.geteuid() == 0 else None,
        )
        trouble = Trouble("outputs cannot be sent", name, self._clock, self._sink, REFUSED_MS)
        entry = _Task(sender, trouble)
        self._tasks[key] = entry
        entry.work = asyncio.get_running_loop().create_task(self._tend(key, entry))

    def _end(self, entry: _Task, *, over: bool, ended: bool = False) -> None:
        state = entry.state
        entry.put(replace(state, over=over, ended=state.ended or ended))
        entry.hurry.set()
        # The pause of a store that failed before ends now, too.
        entry.trouble.press(pressing=True)
        entry.trouble.press(pressing=False)

    async def _tend(self, key: tuple[str, str], entry: _Task) -> None:
        """Until the job has ended, all is sent and nothing is left here."""
        told: tuple[str, ...] = ()
        while True:
            final = entry.state.over
            try:
                if not entry.state.done:
                    async with self._slots:
                        await entry.sender.send(final=final)
                    entry.trouble.over()
                    told = self._tell(entry.state, told)
                    if final:
                        entry.put(replace(entry.state, done=True))
                        await self._note(entry)
                        self._sink.info("outputs are in the store", task=f"{entry.state.job}/{key[1]}")
                if entry.state.ended and entry.state.done:
                    await self._call(partial(self._remove, key))
                    del self._tasks[key]
                    return
            except TfSupervisorError as error:
                await entry.trouble.failed(error)
                continue
            if entry.state.over == final:
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if entry.state.done else self._send_s):
                        await entry.hurry.wait()
            entry.hurry.clear()

    def _tell(self, state: OutputState, told: tuple[str, ...]) -> tuple[str, ...]:
        left = tuple(f"{path}: {why}" for path, why in list(state.left_out.items())[:3])
        if left and left != told:
            self._sink.warning(
                "outputs are not sent",
                task=f"{state.job}/{state.member}",
                count=len(state.left_out),
                first="; ".join(left),
            )
        return left

    async def _note(self, entry: _Task) -> None:
        await self._call(partial(save_state, self._home(entry.state.job_uuid), entry.state))

    def _make(self, prepare: PrepareOutputs) -> None:
        """Those above it are the agent's own: tasks go through them, and cannot replace what is there."""
        job = self._parent / prepare.job_uuid
        own = job / OWN / prepare.attempt.task.member
        with effect("outputs.make"):
            own.mkdir(parents=True, exist_ok=True)
            self._home(prepare.job_uuid).mkdir(mode=0o700, exist_ok=True)
            if self.owner is not None:
                for above in (job, job / OWN):
                    above.chmod(0o711)
                give(own, self.owner)

    def _remove(self, key: tuple[str, str]) -> None:
        uuid, member = key
        job = self._parent / uuid
        with effect("outputs.remove_sent"):
            remove_tree(job / OWN / member)
            state_path(self._home(uuid), member).unlink(missing_ok=True)
        for directory in (job / OWN, self._home(uuid), job):
            with suppress(OSError):
                directory.rmdir()

    def _home(self, job_uuid: str) -> Path:
        return self._parent / job_uuid / HOME

    async def _call(self, work: Callable[[], T]) -> T:
        def mapped() -> T:
            with mapped_errors("keep outputs"):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._threads, mapped)


def _notes(parent: Path) -> list[Path]:
    try:
        return sorted(parent.glob(f"*/{HOME}/*.json"))
    except OSError:
        return []
