"""The node agent: inbox -> core.step -> effects, on one asyncio loop.

Watches, launchers and etcd only put events into the inbox. The loop takes those that wait and lets the core
decide, saves what a successor must find, and carries the instructions out; what waits becomes a task whose
result is another event. Grants to launchers and beats to supervisors are sent from this loop alone, so that
they vouch for it (rule 4).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import NoReturn, TypeVar

from agent.boundaries import Outside, Process
from agent.core.events import (
    Broken,
    Event,
    Evicted,
    Heard,
    Joined,
    LauncherGone,
    LauncherSaid,
    MemoryFree,
    Observed,
    Tick,
)
from agent.core.gpus import report
from agent.core.pool import ready_spares
from agent.core.saved import adopt
from agent.core.saved.record import AgentRecord, Saved
from agent.core.state import AgentState
from agent.core.step import step
from agent.effects import Effects
from agent.inside import protocol
from agent.logs.steps import reading
from agent.membership import Former, Membership
from agent.settings import AgentSettings
from agent.state_file_check import strange_lives
from agent.watches import Watches, jobs_of
from supervisor.adapters.etcd.identity import newest
from supervisor.adapters.etcd.mirror import MirrorUpdate
from supervisor.contract import codec
from supervisor.contract.boundaries import KeyValue
from supervisor.contract.containment import contained, told
from supervisor.contract.desired import Assignment, JobSwitch, Spare
from supervisor.contract.errors import IncompatibleRecord, Refused, TfSupervisorError, UserError, first_of
from supervisor.contract.ids import AttemptId
from supervisor.contract.observed import LINK_PROTOCOL, MOST_NOTICES, Beat
from supervisor.contract.secret import too_many

T = TypeVar("T")
MEMORY_MS = 1_000
MOST_AT_ONCE = 64
"""Events of one step. More wait for the next, so that what it leads to is on its way first."""
SAVE_AGAIN_S = 0.5
TIDY_S = 10.0
MOST_TOLD = 100
"""Jobs and attempts of which it is remembered that an error about them was said."""


class AgentDaemon:
    """One life of a node's agent. Everything outside comes through `outside`.

    Attributes:
        started: the state file is locked and launchers are served.
    """

    def __init__(self, settings: AgentSettings, outside: Outside) -> None:
        self._settings = settings
        self._out = outside
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._seq = 0
        self._saved: AgentRecord | None = None
        self._counted = Saved("", 0, "")
        self._unsaved = ""
        self._decodings: dict[str, tuple[int, object]] = {}
        self._beat_due_ms = 0
        self._observed: Observed | None = None
        """The newest view of etcd that waits in the inbox."""
        self._told: dict[object, str] = {}
        self._watches = Watches(
            outside.coordination,
            settings.node,
            self._changed,
            outside.clock,
            outside.sink,
            settings.apart_ms,
        )
        self._found: dict[str, str] = {}
        """Job -> UUID, of jobs whose files an earlier life has left here."""
        self._forked = False
        self._membership: Membership | None = None
        self.started = asyncio.Event()
        self._state: AgentState | None = None
        self._effects: Effects | None = None

    @property
    def state(self) -> AgentState:
        """The core's state; None is never seen once `run` has read the state file."""
        assert self._state is not None, "not running yet"
        return self._state

    def post(self, event: Event) -> None:
        """Put an event into the inbox."""
        self._inbox.put_nowait(event)

    async def run(self) -> NoReturn:
        """Serve until cancelled; launchers and tasks live on, for a successor to adopt.

        Raises Conflict (a second agent on this state directory or node), Fenced, UserError.
        """
        record = self._out.state_file.read()
        if record is not None and record.node != self._settings.node:
            raise UserError(
                f"the state directory belongs to node {record.node!r}, this is {self._settings.node!r}: "
                "give each node a `state_dir:` of its own"
            )
        life, boot_id = self._out.new_id(), self._out.runtime.boot_id()
        now_ms = self._out.clock.now_ms()
        restored = adopt.restore(record, self._settings, life, boot_id, now_ms, self._alive(record))
        last = self._out.state_file.saved()
        self._counted = adopt.counted(record, last, life)
        strange = await strange_lives(record, last, self._out)
        self._state = adopt.anew(record, self._settings, life, boot_id) if strange else restored
        self._state = replace(self._state, found=await self._out.checkpoints.found())
        own, adopts = (*restored.predecessors, *strange), not strange
        former = Former(own, restored.cluster, restored.seen, adopts=adopts)
        membership = Membership(self._settings, self._out, self.post, former, life, boot_id)
        self._membership = membership
        self._effects = Effects(self._settings, self._out, self.post, membership)
        try:
            await self._save_first()
            await self._out.launchers.open(self.post)
            await self._out.links.open(self.post)
            self._watch_restored()
            self.started.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(membership.run())
                group.create_task(self._watches.run())
                group.create_task(self._name_found())
                group.create_task(self._tick())
                group.create_task(self._tidy())
                group.create_task(self._effects.run())
                group.create_task(self._out.gpus.run(self.post))
                group.create_task(self._out.kill_times.run(self.post))
                group.create_task(self._out.disk.run(self._tenants, self.post))
                group.create_task(self._out.outputs.run(self._living))
                group.create_task(self._serve())
        except BaseExceptionGroup as group:
            ours = group.subgroup(TfSupervisorError)
            if ours is None:
                raise
            raise first_of(ours) from group
        finally:
            await self._close()
        raise AssertionError("the tasks of an agent never end by themselves")

    async def _close(self) -> None:
        await self._out.launchers.close()
        await self._out.links.close()
        await self._out.checkpoints.close()
        await self._out.data.close()
        await self._out.outputs.close()
        await self._out.runtime.close()

    async def _serve(self) -> NoReturn:
        while True:
            events, outputs = await self._next()
            now_ms = self._out.clock.now_ms()
            if events:
                await self._step(events, now_ms)
            # Output of an attempt that has begun in this step is followed by now.
            for message in outputs:
                self._on_output(message, now_ms)
            if now_ms >= self._beat_due_ms:
                self._beat(now_ms)

    async def _step(self, events: list[Event], now_ms: int) -> None:
        self._state, instructions = step(self.state, events, now_ms)
        # Where no rule was applied, nothing has changed that a successor has to find.
        saved = await self._save() if self.state.stepped_ms == now_ms else not self._unsaved
        assert self._effects is not None
        for instruction in instructions:
            if saved or not self._effects.refuse(instruction, self._unsaved):
                self._effects.perform(instruction, self.state)
        for event in events:
            match event:
                case Evicted():
                    self._begin_mirrors_anew()
                case Joined():
                    # What was noticed before is why the life before is over.
                    self._forked = False
                    self._observe()
                case _:
                    pass

    async def _next(self) -> tuple[list[Event], list[protocol.Output]]:
        """The events that wait, in their order, and the words that there is output to read."""
        taken = [await self._inbox.get()]
        while len(taken) < MOST_AT_ONCE and not self._inbox.empty():
            taken.append(self._inbox.get_nowait())
        events: list[Event] = []
        outputs: list[protocol.Output] = []
        for event in taken:
            match event:
                case LauncherSaid(launcher_id, message):
                    self._out.launchers.taken(launcher_id)
                    if isinstance(message, protocol.Output):
                        outputs.append(message)
                        continue
                    if isinstance(message, protocol.Hello):
                        self._learn_secrets(launcher_id, message)
                    events.append(event)
                case LauncherGone():
                    events.append(await self._with_last_words(event))
                case Observed():
                    # What was seen since counts, and is whole: no more than one such word waits.
                    events.append(self._observed or event)
                    self._observed = None
                case _:
                    events.append(event)
        return events, outputs

    def _learn_secrets(self, launcher_id: str, hello: protocol.Hello) -> None:
        """Learn the secrets of the attempt that runs there, which an earlier process of this agent has
        started.
        """
        running = hello.attempt
        if running is None or too_many(running.secrets):
            return
        for attempt in self.state.attempts.values():
            if str(attempt.id) == running.attempt and attempt.launcher_id == launcher_id:
                self._out.secrets.learn(running.attempt, running.secrets)

    async def _with_last_words(self, event: LauncherGone) -> LauncherGone:
        """Add what a launcher left: messages that it may not have sent, and the end of its log.

        The log of one that was given secrets is not told (decision 0112). That of one that a SIGKILL ended,
        or that ended as it should, says nothing of its end.
        """
        launcher_id, attempts = event.launcher_id, self.state.attempts.values()
        launcher = self.state.launchers.get(launcher_id)
        if launcher is None:
            return event
        live = tuple(str(each.id) for each in attempts if each.launcher_id == launcher_id and not each.end)
        left = await self._out.runtime.last_words(launcher_id, live)
        mute = event.code == -signal.SIGKILL or (event.code == 0 and launcher.settled)
        said = "" if mute or launcher.had_secrets else event.said or left.said
        return replace(event, said=said, exits=left.exits)

    async def _tick(self) -> NoReturn:
        due_ms = 0
        while True:
            await asyncio.sleep(2 * self._settings.timing.tick_ms / 1000)
            now_ms = self._out.clock.now_ms()
            if now_ms >= due_ms:
                due_ms = now_ms + MEMORY_MS
                self.post(MemoryFree(self._out.runtime.free_bytes()))
            heard = self._heard_ms()
            self.post(Tick() if heard is None else Heard(heard))

    async def _tidy(self) -> NoReturn:
        while True:
            await self._out.runtime.tidy(self._known_launchers)
            await asyncio.sleep(TIDY_S)

    def _known_launchers(self) -> AbstractSet[str]:
        return self.state.launchers.keys()

    async def _save_first(self) -> None:
        """A successor that could not know of this life must not find its key in etcd (rule 12)."""
        while True:
            if await self._save():
                return
            await asyncio.sleep(SAVE_AGAIN_S)

    async def _save(self) -> bool:
        """Whether a successor would find the present state. Said once when the disk begins to refuse it."""
        # What etcd has shown is not worth a write alone.
        record = adopt.record_of(self.state.but(seen=None))
        if record == self._saved:
            return True
        # A number is never used twice, whether or not what it was given to has come to the disk.
        self._counted = replace(self._counted, serial=self._counted.serial + 1)
        serial, origin = self._counted.serial, self._counted.origin
        counted = replace(record, seen=self.state.seen, serial=serial, origin=origin)
        try:
            await self._out.state_file.save(counted)
        except Refused as error:
            reason = str(error)
            if not self._unsaved:
                self._out.sink.error(
                    "the state file cannot be written: tasks run on, no task starts", reason=reason
                )
            # What is on the disk is not known now; a state that goes back to what was saved is saved again.
            self._saved, self._unsaved = None, reason
            return False
        if self._unsaved:
            self._out.sink.info("the state file is written again: tasks can start")
        self._saved, self._unsaved = record, ""
        return True

    # What the leader wants.

    def _changed(self, update: MirrorUpdate) -> None:
        if update.forked:
            # What is there now may have been wanted once. A read ends this life; until then nothing is new.
            assert self._membership is not None
            self._membership.forked()
            self._forked = True
        self._observe()

    def _begin_mirrors_anew(self) -> None:
        """They may show an etcd, or a time of it, that is gone."""
        self._watches.doubt()
        self._forked = False

    def _heard_ms(self) -> int | None:
        """The oldest of the signs of life of assignments and switches; None until all of them are whole.

        And while they show an etcd that has lost data.
        """
        return self._watches.heard_ms() if not self._forked else None

    async def _name_found(self) -> None:
        """Find the jobs of files that an earlier life has left, so that they are cleaned with their jobs."""
        while self.state.found:
            try:
                listing = await self._out.coordination.list("switches/")
            except TfSupervisorError as error:
                self._out.sink.warning("cannot list jobs yet; trying again", reason=str(error))
                await asyncio.sleep(self._settings.timing.beat_ms / 1000)
                continue
            found = (self._decoded(JobSwitch, each) for each in listing.entries)
            self._found = {each.job: each.job_uuid for each in found if each is not None}
            self._observe()
            return

    def _observe(self) -> None:
        watches = self._watches
        left = {job for job, uuid in self._found.items() if uuid in self.state.found}
        watches.follow({*watches.jobs(), *jobs_of(self.state), *left})
        heard_ms = self._heard_ms()
        if heard_ms is None:
            return
        assignments, spares = watches.assignments.entries, watches.spares.entries
        switches = {each.key: each for each in watches.switches()}
        for key in self._decodings.keys() - {*assignments, *spares, *switches}:
            del self._decodings[key]
        waits = self._observed is not None
        self._observed = Observed(
            self._all_decoded(Assignment, assignments),
            self._all_decoded(JobSwitch, switches),
            heard_ms,
            self._all_decoded(Spare, spares),
            newest((*assignments.values(), *switches.values())),
        )
        if not waits:
            self.post(self._observed)

    def _all_decoded(self, kind: type[T], entries: Mapping[str, KeyValue]) -> tuple[T, ...]:
        found = (self._decoded(kind, each) for each in entries.values())
        return tuple(record for record in found if record is not None)

    def _decoded(self, kind: type[T], entry: KeyValue) -> T | None:
        """The record. Of one that cannot be read the version before it counts; None where there was none."""
        found = self._decodings.get(entry.key)
        if found is None or found[0] != entry.mod_revision:
            before = found[1] if found is not None else None
            try:
                found = (entry.mod_revision, codec.decode(kind, entry.value))
            except IncompatibleRecord as error:
                does = "it is ignored" if before is None else "its last version still counts"
                self._out.sink.warning(
                    f"record in etcd cannot be read; {does}", key=entry.key, reason=str(error)
                )
                found = (entry.mod_revision, before)
            self._decodings[entry.key] = found
        record = found[1]
        assert record is None or isinstance(record, kind)
        return record

    # Progress.

    def _on_output(self, message: protocol.Output, now_ms: int) -> None:
        for attempt_id in self.state.attempts:
            if str(attempt_id) != message.attempt:
                continue
            with contained(partial(self._broken, attempt_id)):
                if self._out.files.wrote(attempt_id, now_ms):
                    self._beat(now_ms)

    def _broken(self, whose: object, error: Exception) -> None:
        """An unexpected error about one attempt, or about a job of that UUID, ends it here; said once."""
        why = told(error)
        if self._told.get(whose) != why:
            self._sink_broken(whose, why)
        attempt = whose if isinstance(whose, AttemptId) else None
        self.post(Broken(why, attempt=attempt, job_uuid="" if attempt is not None else str(whose)))

    def _broken_launcher(self, launcher_id: str, error: Exception) -> None:
        self._sink_broken(launcher_id, told(error))
        self.post(Broken(told(error), launcher_id=launcher_id))

    def _sink_broken(self, whose: object, why: str) -> None:
        if len(self._told) >= MOST_TOLD:
            self._told.clear()
        self._told[whose] = why
        self._out.sink.error(
            "an unexpected error ends an attempt, job or launcher on this node", what=str(whose), error=why
        )

    def _beat(self, now_ms: int) -> None:
        me = self.state.me
        self._beat_due_ms = now_ms + self._settings.timing.beat_ms
        self._out.outputs.check(self._broken)
        ended = {str(each.id) for each in self.state.attempts.values() if each.end is not None}
        self._out.data.check()
        waited = {
            str(each.id): self._out.data.waited_ms(each.job_uuid) for each in self.state.attempts.values()
        }
        tasks = tuple(
            replace(each, ended=True) if each.attempt in ended else each
            for each in self._out.files.progress(now_ms, report.utilisation(self.state), self._broken)
        )
        tasks = tuple(reading(each, waited.get(each.attempt, -1)) for each in tasks)
        if me is not None:
            self._seq += 1
            savers = self._out.checkpoints.beats(self._broken)
            self._out.links.send(
                Beat(
                    LINK_PROTOCOL,
                    me.node,
                    me.incarnation,
                    self._seq,
                    tasks,
                    savers,
                    ready_spares(self.state),
                    report.beats(self.state),
                    self.state.promises.asked,
                    self.state.promises.released,
                    now_ms - self.state.read_ms,
                    self._unsaved or self.state.blocked(now_ms),
                    self._out.outputs.notices()[:MOST_NOTICES],
                )
            )

    # What an earlier life has left.

    def _alive(self, record: AgentRecord | None) -> frozenset[tuple[int, int]]:
        if record is None:
            return frozenset()
        known = [(each.pid, each.start_ticks) for each in record.launchers if each.pid]
        return frozenset(each for each in known if self._out.runtime.is_alive(Process(*each)))

    def _living(self) -> tuple[AttemptId, ...]:
        """Attempts that may write more."""
        return tuple(each.id for each in self.state.attempts.values() if each.alive)

    def _tenants(self) -> dict[str, set[str]]:
        """The jobs that have attempts here that may write more, by UUID, with their launchers."""
        found: dict[str, set[str]] = {}
        for each in self.state.attempts.values():
            if each.alive and each.end is None:
                found.setdefault(each.job_uuid, set()).add(each.launcher_id)
        return found

    def _watch_restored(self) -> None:
        for launcher in self.state.launchers.values():
            if launcher.pid and not launcher.doomed:
                process = Process(launcher.pid, launcher.start_ticks)
                with contained(partial(self._broken_launcher, launcher.launcher_id)):
                    self._out.runtime.watch(launcher.launcher_id, process, self.post)
        for attempt in self.state.attempts.values():
            if attempt.pid and not attempt.settled:
                with contained(partial(self._broken, attempt.id)):
                    self._out.files.follow(attempt.follow())
                    self._out.runtime.began(Process(attempt.pid, attempt.start_ticks))
