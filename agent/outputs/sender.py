"""The output directories of this node's tasks: made before a task starts, and sent to the job's store.

A task's files are sent while it runs, and in full once it has ended. The files and the note on sent ones are
on the disk, so a killed agent goes on where it was. Sending has the lowest priority: two transfers at a time,
in threads of low priority.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import get_native_id
from typing import TypeVar

from agent.boundaries import StoreOpener
from agent.core.instructions import OutputDirs, PrepareOutputs
from agent.host.task_users import User
from agent.logs.storing import NodeLogs
from agent.models.publisher import TRIALS, Load, ModelPublisher, Node
from agent.outputs.directories import ASIDE, OutputFiles
from agent.outputs.leftover_work import NodeWork
from agent.outputs.mirrors import Mirrors
from agent.retry_log import MAX_TEXT, Tell, Trouble, raise_it, require_sound
from recovery.io.deadline import Motion, while_moving
from recovery.io.files import mapped_errors
from recovery.models.index import ModelVersion
from recovery.outputs.bring import Bringer
from recovery.outputs.index import OutputIndex
from recovery.outputs.note import OutputState, load_state, save_state, saves_are_over, state_path
from recovery.outputs.send import MOST_LEFT_OUT, OutputSender
from recovery.outputs.stored import read_index
from supervisor.contract import keys
from supervisor.contract.boundaries import CheckpointStore, Clock, Coordination, Logger
from supervisor.contract.codec import decode
from supervisor.contract.containment import contained
from supervisor.contract.desired import JobSwitch
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.observed import MODEL_PUBLISHED, MOST_NOTICES, OUTPUTS_LATE, OUTPUTS_LEFT_OUT, Notice

T = TypeVar("T")
SEND_S = 10.0
"""Seconds between two passes over a task's outputs."""
REFUSED_MS = (1_000, 60_000)
AT_ONCE = 2
NICE = 15
WAIT_MS = 30_000
"""Milliseconds for which a moved task waits for the last outputs of its former node, if that is alive."""

WAIT_POLL_S = 0.1
BRING_QUIET_MS = 20_000
LATE_MS = 30_000
MOST_NEWS, NEWS_MS = 8, 60_000
"""Milliseconds after which unsent outputs give an event."""


def quiet_threads() -> ThreadPoolExecutor:
    """Threads of the lowest priority."""

    def yield_to_others() -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, get_native_id(), NICE)

    return ThreadPoolExecutor(2 * AT_ONCE, "outputs", yield_to_others)


class _Task:
    """One task's outputs. `noted`: the note on the disk is up to date."""

    def __init__(self, sender: OutputSender, trouble: Trouble, models: ModelPublisher | None = None) -> None:
        self.sender = sender
        self.trouble = trouble
        self.models = models
        self.noted = False
        self.hurry = asyncio.Event()
        self.work: asyncio.Task[None] | None = None
        self.removal: asyncio.Task[None] | None = None

    @property
    def state(self) -> OutputState:
        return self.sender.state

    def put(self, state: OutputState) -> None:
        self.sender.state = state
        self.noted = False

    async def stop(self) -> None:
        """Stop a transfer; the files that it has sent are noted. A removal that has begun is waited for."""
        if self.work is not None:
            self.work.cancel()
        works = filter(None, [self.work, self.removal])
        await asyncio.gather(*works, return_exceptions=True)
        await asyncio.to_thread(saves_are_over)


class NodeOutputs:
    """`Outputs` of one node.

    Attributes:
        files: the directories.
        mirrors: copies for tasks that read others' outputs.
        work: keeps files that are in no store; None: they are not kept.
        logs: stores what tasks print; None: it stays on this node.
        load: tries models before they are published; None: their files alone are checked.
        published: counts a version of a model that was published.
        send_s: interval of passes over tasks' directories.
    """

    def __init__(
        self,
        files: OutputFiles,
        coordination: Coordination,
        opener: StoreOpener,
        clock: Clock,
        sink: Logger,
        new_id: Callable[[], str],
        threads: Executor | None = None,
    ) -> None:
        self.files = files
        self._coordination = coordination
        self._opener = opener
        self._clock = clock
        self._sink = sink
        self._new_id = new_id
        self._threads = threads
        self._tasks: dict[tuple[str, str], _Task] = {}
        self.mirrors = Mirrors(files, opener, clock, sink, threads)
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._trials = asyncio.Semaphore(TRIALS)
        self._ended: set[str] = set()
        self._over: set[AttemptId] = set()
        self.send_s = SEND_S
        self.work: NodeWork | None = None
        self.logs: NodeLogs | None = None
        self.load: Load | None = None
        self.published: Callable[[], None] = lambda: None
        self._news = deque[tuple[int, Notice]](maxlen=MOST_NEWS)

    def directories(self, job_uuid: str, task: TaskId) -> OutputDirs:
        """The directories of a task: one to write to, and one to read others' outputs from."""
        return OutputDirs(str(self.files.own(job_uuid, task.member)), str(self.files.copies(job_uuid)))

    async def prepare(self, prepare: PrepareOutputs) -> None:
        """Make the task's directory with its outputs from other nodes, and begin to send new ones."""
        task, uuid = prepare.attempt.task, prepare.job_uuid
        key = (uuid, task.member)
        entry = self._tasks.pop(key, None)
        if entry is not None:
            await entry.stop()
        self._ended.discard(uuid)
        state = OutputState(
            task.job,
            uuid,
            task.member,
            prepare.uri,
            self.files.node,
            prepare.attempt.generation,
            prepare.attempt.number,
            prepare.budget_bytes,
            prepare.keep_ms,
            follow=prepare.follow,
            exports=prepare.exports,
        )
        try:
            if self.work is not None:
                await self.work.in_use(uuid)
            await self._call(partial(self.files.make, state))
            note = state_path(self.files.notes(uuid), task.member)
            before = entry.state if entry is not None else await self._call(partial(load_state, note))
            if before is not None and not before.removing:
                state = replace(state, sent=before.sent, late=before.late)
            if not _goes_on(prepare.attempt, before):
                state = await self._bring(state)
            await self._call(partial(self.files.mark, state))
            # Before its program writes: a successor of this agent knows of it by the note alone.
            await self._call(partial(save_state, self.files.notes(uuid), state))
            await self._call(partial(self.files.link_exports, state))
        except TfSupervisorError as error:
            self._sink.error(
                "the output directory of a task cannot be prepared", task=str(task), reason=str(error)
            )
        reached = await self._reached(state)
        if reached is not None:
            self._begin(key, state, *reached)

    def over(self, attempt: AttemptId) -> None:
        """Send the rest in full, unless another attempt has begun here."""
        self._over.add(attempt)
        if self.logs is not None:
            self.logs.over(attempt)
        for entry in self._tasks.values():
            self._apply_ends(entry)

    def job_ended(self, job_uuid: str) -> None:
        """Remove the job's outputs here once all are in the store."""
        self._ended.add(job_uuid)
        for entry in self._tasks.values():
            self._apply_ends(entry)

    def _apply_ends(self, entry: _Task) -> None:
        """Apply ends of attempts and jobs that were reported before the task's note was read."""
        state = entry.state
        ended = state.job_uuid in self._ended
        over = _attempt_of(state) in self._over or ended
        if (over and not state.over) or (ended and not state.ended):
            entry.put(replace(state, over=True, ended=state.ended or ended))
            if state.follow:
                self.mirrors.keep([each.state for each in self._tasks.values()])
            entry.hurry.set()
            # The pause of a store that failed before ends now, too.
            entry.trouble.press(pressing=True)
            entry.trouble.press(pressing=False)

    def check(self, tell: Tell = raise_it) -> None:
        """Report errors that ended background work, once each.

        The outputs of such a task stay on this node.
        """
        self.mirrors.check(tell)
        if self.logs is not None:
            self.logs.check(tell)
        for entry in self._tasks.values():
            work = entry.work
            with contained(partial(tell, _attempt_of(entry.state))):
                if work is not None and work.done():
                    entry.work = None
                    require_sound((work,))

    def notices(self) -> tuple[Notice, ...]:
        """Notices about unsent outputs and kept work: at most `MOST_NOTICES`, some of each."""
        found = [notice for entry in self._tasks.values() for notice in self._notices(entry)]
        found += self.logs.notices() if self.logs is not None else ()
        kept = self.work.notices() if self.work is not None else ()
        room = max(MOST_NOTICES // 2, MOST_NOTICES - len(kept))
        since_ms = self._clock.now_ms() - NEWS_MS
        news = [notice for told_ms, notice in self._news if told_ms >= since_ms]
        return (*found[:room], *kept, *news)[:MOST_NOTICES]

    def _notices(self, entry: _Task) -> Iterator[Notice]:
        state, trouble = entry.state, entry.trouble
        task = f"{state.job}/{state.member}"
        for source, why in list(entry.models.refused.items())[-1:] if entry.models is not None else ():
            about = f"{state.job_uuid} {state.member} model {source}"[:MAX_TEXT]
            text = f"an export of {task} on {self.files.node} is not published as a model: {source}: {why}"
            yield Notice(state.job, state.job_uuid, OUTPUTS_LEFT_OUT, about, text)
        if state.left_out:
            path, why = next(iter(state.left_out.items()))
            count = len(state.left_out)
            many = f"{count} or more" if count >= MOST_LEFT_OUT else str(count)
            text = f"{many} outputs of {task} on {self.files.node} are not sent to the store: {path}: {why}"
            # Told of the first, and whenever there are twice as many.
            about = f"{state.job_uuid} {state.member} {count.bit_length()}"
            yield Notice(state.job, state.job_uuid, OUTPUTS_LEFT_OUT, about, text)
        late_ms = self._clock.now_ms() - trouble.since_ms if trouble.text else 0
        if late_ms >= LATE_MS:
            text = f"outputs of {task} stay on {self.files.node} for now: {trouble.text}"
            about = f"{state.job_uuid} {state.member} since {trouble.since_ms}"
            yield Notice(state.job, state.job_uuid, OUTPUTS_LATE, about, text)

    async def run(self, living: Callable[[], Collection[AttemptId]]) -> None:
        """Go on with the outputs of earlier lives, and remove kept work whose time is over."""
        with suppress(TfSupervisorError):
            for state in await self._call(self.files.states):
                key = (state.job_uuid, state.member)
                reached = await self._reached(state) if key not in self._tasks else None
                # An attempt may have begun here meanwhile.
                if reached is not None and key not in self._tasks:
                    lives = _attempt_of(state) in living()
                    self._begin(key, state if lives else replace(state, over=True), *reached)
        if self.work is not None:
            await self.work.run()

    async def close(self) -> None:
        """Stop; a successor goes on."""
        for each in list(self._tasks.values()):
            await each.stop()
        await self.mirrors.close()
        if self.logs is not None:
            await self.logs.close()

    async def _bring(self, state: OutputState) -> OutputState:
        """Fetch the outputs that other nodes have sent since.

        Failures are reported; the task starts anyway.
        """
        task, files = f"{state.job}/{state.member}", self.files
        directory, notes = files.own(state.job_uuid, state.member), files.notes(state.job_uuid)
        aside = directory.with_name(f"{ASIDE}{state.member}-g{state.generation}.{state.attempt}")
        motion = Motion(self._clock)
        try:
            async with while_moving(motion, self._clock, BRING_QUIET_MS, f"reading outputs of {task}"):
                index = await self._index_of(state, motion)
                if index is None:
                    return state
                user = await asyncio.to_thread(files.user, state.job_uuid)
                bringer = Bringer(self._opener(state.uri), directory, notes, aside, None, user)
                brought = await bringer.bring(state, index, motion)
        except TfSupervisorError as error:
            # Sent later, files of the same names are told apart by their versions, and none is removed.
            self._sink.warning("a task starts without its earlier outputs", task=task, reason=str(error))
            return state
        if brought.count:
            self._sink.info(
                "earlier outputs of a task were copied to this node",
                task=task,
                files=brought.count,
                bytes=brought.size,
            )
        if brought.missing:
            first = next(f"{path}: {why}" for path, why in brought.missing.items())
            self._sink.warning(
                "some earlier outputs of a task were not copied to this node",
                task=task,
                count=len(brought.missing),
                first=first,
            )
        if brought.aside:
            names = ", ".join(brought.aside[:3])
            self._sink.warning(
                "unsent files moved aside: the store has others of their names",
                task=task,
                directory=str(aside),
                files=names,
            )
            if self.work is not None:
                await self.work.keep(state.job, state.job_uuid, aside.name, state.keep_ms)
        return replace(state, sent=brought.sent)

    async def _index_of(self, state: OutputState, motion: Motion) -> OutputIndex | None:
        """The index to fetch from; None if there is none, or if this directory is its source.

        It waits for the last outputs of a node that is alive.
        """
        store, until_ms, waited = self._opener(state.uri), self._clock.now_ms() + WAIT_MS, False
        while True:
            index = await read_index(store, state.base)
            if index is None:
                return None
            is_of = partial(self.files.is_of, state.job_uuid, state.member, index.node, *index.writer)
            if not waited and index.node != self.files.node and await self._call(is_of):
                return None
            if not index.writing or index.node == self.files.node or not await self._is_alive(index.node):
                return index
            if self._clock.now_ms() >= until_ms:
                reason = f"{index.node} has not sent the last of them within {WAIT_MS / 1000:g} s"
                self._sink.warning(
                    "a task starts without the last of its earlier outputs",
                    task=f"{state.job}/{state.member}",
                    reason=reason,
                )
                return index
            waited = True
            motion()
            await asyncio.sleep(WAIT_POLL_S)

    async def _is_alive(self, node: str) -> bool:
        try:
            return await self._coordination.get(keys.node(node)) is not None
        except TfSupervisorError:
            return False

    async def _reached(self, state: OutputState) -> tuple[CheckpointStore, User | None] | None:
        """A task's store and user; None if outputs cannot be sent, which is reported."""
        try:
            return self._opener(state.uri), await self._call(partial(self.files.user, state.job_uuid))
        except TfSupervisorError as error:
            name = f"{state.job}/{state.member}"
            self._sink.error(
                "a task's outputs cannot be sent; they stay on this node", task=name, reason=str(error)
            )
        return None

    def _begin(
        self, key: tuple[str, str], state: OutputState, store: CheckpointStore, user: User | None
    ) -> None:
        uuid, member = key
        name = f"{state.job}/{member}"
        if self.logs is not None:
            self.logs.begin(_attempt_of(state), uuid, state.uri, over=state.over)
        sender = OutputSender(
            store,
            self.files.own(uuid, member),
            self.files.notes(uuid),
            state,
            self._clock,
            self._new_id,
            self._threads,
            user[0] if user is not None and os.geteuid() == 0 else None,
        )
        sender.turn = self._slots
        trouble = Trouble("outputs cannot be sent", name, self._clock, self._sink, REFUSED_MS)
        entry = _Task(sender, trouble, self._publisher(state, store, user))
        self._tasks[key] = entry
        entry.work = asyncio.get_running_loop().create_task(self._tend(key, entry))
        if state.follow and not state.over:
            self.mirrors.begin(state)
        self._apply_ends(entry)

    def _publisher(
        self, state: OutputState, store: CheckpointStore, user: User | None
    ) -> ModelPublisher | None:
        if state.exports is None:
            return None
        return ModelPublisher(
            store,
            self.files.own(state.job_uuid, state.member),
            self.files.notes(state.job_uuid),
            state,
            Node(
                self._clock,
                self._sink,
                self._new_id,
                self.load,
                self._threads,
                self._trials,
                partial(self._published, state),
            ),
            partial(self._in_force, state),
            user[0] if user is not None and os.geteuid() == 0 else None,
        )

    def _published(self, state: OutputState, version: ModelVersion) -> None:
        """Tell of a version for a while: its task may be over, and a new leader hears of it later."""
        self.published()
        model = state.exports.serving.model if state.exports is not None else ""
        about = f"{state.job_uuid} model {model} version {version.version}"
        text = (
            f"version {version.version} of model {model} is published: {version.source} of {version.member}"
        )
        notice = Notice(state.job, state.job_uuid, MODEL_PUBLISHED, about, text[:MAX_TEXT])
        self._news.append((self._clock.now_ms(), notice))

    async def _in_force(self, state: OutputState) -> bool:
        """Whether no later generation of the job is in force; true for a job that was deleted meanwhile."""
        found = await self._coordination.get(keys.switch(state.job))
        return found is None or decode(JobSwitch, found.value).generation <= state.generation

    async def _tend(self, key: tuple[str, str], entry: _Task) -> None:
        """Send a task's outputs until the job has ended and all are in the store and removed here."""
        told: tuple[str, ...] = ()
        while True:
            final = entry.state.over
            try:
                await self._note(entry)
                if not entry.state.done:
                    await entry.sender.send(final=final)
                    if entry.models is not None:
                        await entry.models.look(final=final)
                    entry.trouble.over()
                    told = self._tell(entry.state, told)
                    if final:
                        entry.put(replace(entry.state, done=True))
                        await self._note(entry)
                        self._sink.info(
                            "all outputs of a task are in the store", task=f"{entry.state.job}/{key[1]}"
                        )
                if entry.state.ended and entry.state.done:
                    entry.removal = asyncio.get_running_loop().create_task(self._retire(entry))
                    # In its thread it cannot be stopped: whoever comes next waits for it.
                    await asyncio.shield(entry.removal)
                    self._forget(key, entry)
                    return
            except TfSupervisorError as error:
                await entry.trouble.failed(error)
                continue
            if entry.state.over == final:
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if entry.state.done else self.send_s):
                        await entry.hurry.wait()
            entry.hurry.clear()

    def _forget(self, key: tuple[str, str], entry: _Task) -> None:
        if self._tasks.get(key) is entry:
            del self._tasks[key]
        self._over.discard(_attempt_of(entry.state))
        if all(uuid != key[0] for uuid, _ in self._tasks):
            self._ended.discard(key[0])

    def _tell(self, state: OutputState, told: tuple[str, ...]) -> tuple[str, ...]:
        left = tuple(f"{path}: {why}" for path, why in list(state.left_out.items())[:3])
        if left and left != told:
            self._sink.warning(
                "some outputs of a task are not sent",
                task=f"{state.job}/{state.member}",
                count=len(state.left_out),
                first="; ".join(left),
            )
        return left

    async def _note(self, entry: _Task) -> None:
        if not entry.noted:
            state = entry.state
            await self._call(partial(save_state, self.files.notes(state.job_uuid), state))
            entry.noted = entry.state is state

    async def _retire(self, entry: _Task) -> None:
        """After the end of the job and of sending: keep the unsent rest for a while."""
        state = entry.state
        if not state.removing:
            aside = await self._call(partial(self.files.put_aside, state))
            if aside and self.work is not None:
                await self.work.keep(state.job, state.job_uuid, aside, state.keep_ms)
            # What is missing from now on was not removed by the program.
            entry.put(replace(entry.state, removing=True))
            await self._note(entry)
        await self._call(partial(self.files.remove, state))

    async def _call(self, work: Callable[[], T]) -> T:
        def mapped() -> T:
            with mapped_errors("keep outputs"):
                return work()

        return await asyncio.to_thread(mapped)


def _attempt_of(state: OutputState) -> AttemptId:
    return AttemptId(TaskId.from_member(state.job, state.member), state.generation, state.attempt)


def _goes_on(attempt: AttemptId, before: OutputState | None) -> bool:
    """Whether the task cannot have run on another node since the last attempt here, or ever."""
    if before is None:
        return (attempt.generation, attempt.number) == (1, 1)
    return (attempt.generation, attempt.number) == (before.generation, before.attempt + 1)
