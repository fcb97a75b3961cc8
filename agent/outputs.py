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
from recovery.deadline import Motion, while_moving
from recovery.files import mapped_errors, remove_tree
from recovery.outputs.bring import Bringer, Mirror
from recovery.outputs.index import OutputIndex
from recovery.outputs.send import OutputSender, OutputState, load_state, save_state, state_path
from recovery.outputs.stored import members_of, read_index
from supervisor.adapters.failpoints import effect
from supervisor.contract import keys
from supervisor.contract.boundaries import Clock, Coordination, Sink
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.ids import AttemptId, TaskId

T = TypeVar("T")
OWN, HOME, COPIES, KEPT = "outputs", ".outputs", "all-outputs", "kept"
"""Below a job's directory: what its tasks write, this agent's notes on that, copies for programs that read
it, and what was put aside."""

SEND_S = 10.0
"""A file that a task writes is in the store so much later, where the store keeps up."""
REFUSED_MS = (1_000, 60_000)
AT_ONCE = 2
NICE = 15
WAIT_MS = 30_000
"""For so long a task that has moved waits for the last outputs of the node where it was, if that lives."""

WAIT_POLL_S = 0.1
BRING_QUIET_MS = 20_000


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
        self.hurry = asyncio.Event()
        self.work: asyncio.Task[None] | None = None
        self.mirror: asyncio.Task[None] | None = None

    @property
    def state(self) -> OutputState:
        return self.sender.state

    def put(self, state: OutputState) -> None:
        self.sender.state = state

    async def stop(self) -> None:
        """End what is under way; what it has sent is noted."""
        works = [work for work in (self.work, self.mirror) if work is not None]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)


class NodeOutputs:
    """`Outputs` below `parent/JOB_UUID`.

    Attributes:
        owner: (uid, gid) of the tasks, where they are others' than the agent's.
        send_s: how often tasks' directories are looked through.
    """

    def __init__(
        self,
        node: str,
        parent: Path,
        coordination: Coordination,
        opener: StoreOpener,
        clock: Clock,
        sink: Sink,
        new_id: Callable[[], str],
        threads: Executor | None = None,
    ) -> None:
        self._node = node
        self._parent = parent
        self._coordination = coordination
        self._opener = opener
        self._clock = clock
        self._sink = sink
        self._new_id = new_id
        self._threads = threads
        self.send_s = SEND_S
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
        entry = self._tasks.pop(key, None)
        if entry is not None:
            await entry.stop()
        try:
            await self._call(partial(self._make, prepare))
            before = await self._call(partial(load_state, state_path(self._home(key[0]), key[1])))
            if entry is not None and before is not None:
                before = entry.state
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
                sent=before.sent if before is not None else {},
                late=before.late if before is not None else (),
                follow=prepare.follow,
            )
            if not _goes_on(prepare.attempt, before):
                state = await self._bring(state, before)
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
        for each in self._tasks.values():
            require_sound([work for work in (each.work, each.mirror) if work is not None])

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
        for each in list(self._tasks.values()):
            await each.stop()

    async def _bring(self, state: OutputState, before: OutputState | None) -> OutputState:
        """With what other nodes have sent since. What could not come is told; the task starts anyway."""
        task, home = f"{state.job}/{state.member}", self._home(state.job_uuid)
        directory = self._parent / state.job_uuid / OWN / state.member
        aside = self._parent / state.job_uuid / KEPT / f"{state.member}-g{state.generation}.{state.attempt}"
        bringer = Bringer(self._opener(state.uri), directory, home, aside, self._threads, self.owner)
        motion = Motion(self._clock)
        try:
            async with while_moving(motion, self._clock, BRING_QUIET_MS, f"reading outputs of {task}"):
                index = await self._index_of(state, before, motion)
                if index is None:
                    return state
                brought = await bringer.bring(state, index, motion)
        except TfSupervisorError as error:
            # Sent later, files of the same names are told apart by their versions, and none is removed.
            self._sink.warning("started without its earlier outputs", task=task, reason=str(error))
            return state
        if brought.count:
            self._sink.info("outputs brought in", task=task, files=brought.count, bytes=brought.size)
        if brought.missing:
            first = next(f"{path}: {why}" for path, why in brought.missing.items())
            self._sink.warning("outputs not brought in", task=task, count=len(brought.missing), first=first)
        if brought.aside:
            names = ", ".join(brought.aside[:3])
            self._sink.warning("outputs put aside", task=task, directory=str(aside), files=names)
        return brought.state

    async def _index_of(
        self, state: OutputState, before: OutputState | None, motion: Motion
    ) -> OutputIndex | None:
        """What is to be brought in; None where there is nothing, or this very directory holds it.

        A node that is alive sends what its attempt wrote last: that is waited for.
        """
        store, until_ms, waited = self._opener(state.uri), self._clock.now_ms() + WAIT_MS, False
        while True:
            index = await read_index(store, state.base)
            if index is None:
                return None
            here = before is not None and (before.node, before.generation, before.attempt) == (
                index.node,
                *index.writer,
            )
            if here and not waited:
                return None
            if not index.writing or index.node == self._node or not await self._is_alive(index.node):
                return index
            if self._clock.now_ms() >= until_ms:
                reason = f"{index.node} has not sent the last of them within {WAIT_MS / 1000:g} s"
                self._sink.warning("outputs are not whole", task=f"{state.job}/{state.member}", reason=reason)
                return index
            waited = True
            motion()
            await asyncio.sleep(WAIT_POLL_S)

    async def _is_alive(self, node: str) -> bool:
        try:
            return await self._coordination.get(keys.node(node)) is not None
        except TfSupervisorError:
            return False

    async def _follow(self, key: tuple[str, str], state: OutputState) -> None:
        """Bring in what all tasks of the job write, for a task that reads it."""
        job = self._parent / key[0]
        target = job / COPIES / self._node
        store = self._opener(state.uri)
        await self._call(partial(remove_tree, target))
        await self._call(partial(target.mkdir, parents=True, exist_ok=True))
        mirror = Mirror(store, key[0], target, self._home(key[0]), self._threads, self.owner)
        what = f"reading outputs of {state.job}"
        trouble = Trouble("others' outputs are not brought in", state.job, self._clock, self._sink)
        while True:
            try:
                motion = Motion(self._clock)
                async with while_moving(motion, self._clock, BRING_QUIET_MS, what):
                    await mirror.look(await members_of(store, key[0]), motion)
                trouble.over()
            except TfSupervisorError as error:
                await trouble.failed(error)
            await asyncio.sleep(self.send_s / 2)

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
        if state.follow and not state.over:
            entry.mirror = asyncio.get_running_loop().create_task(self._follow(key, state))

    def _end(self, entry: _Task, *, over: bool, ended: bool = False) -> None:
        state = entry.state
        entry.put(replace(state, over=over, ended=state.ended or ended))
        if entry.mirror is not None:
            entry.mirror.cancel()
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
                    async with asyncio.timeout(None if entry.state.done else self.send_s):
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
            remove_tree(job / COPIES / self._node)
            state_path(self._home(uuid), member).unlink(missing_ok=True)
        for directory in (job / COPIES, job / OWN, self._home(uuid), job):
            with suppress(OSError):
                directory.rmdir()

    def _home(self, job_uuid: str) -> Path:
        return self._parent / job_uuid / HOME

    async def _call(self, work: Callable[[], T]) -> T:
        def mapped() -> T:
            with mapped_errors("keep outputs"):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._threads, mapped)


def _goes_on(attempt: AttemptId, before: OutputState | None) -> bool:
    """Whether nothing of the task can have run elsewhere since the last attempt here, or ever."""
    if before is None:
        return (attempt.generation, attempt.number) == (1, 1)
    return (attempt.generation, attempt.number) == (before.generation, before.attempt + 1)


def _notes(parent: Path) -> list[Path]:
    try:
        return sorted(parent.glob(f"*/{HOME}/*.json"))
    except OSError:
        return []
