"""The supervisor daemon: inbox -> reconcile -> apply, on one asyncio loop.

Followers fold the same changes and hear the same beats as the leader, so that taking over costs nothing
but the election; they decide nothing. All that matters is in etcd: a new leader goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from recovery.stores.allowed import ANYWHERE, AllowedStores
from supervisor.adapters.etcd.election import Election
from supervisor.adapters.etcd.mirror import Mirror, MirrorUpdate
from supervisor.adapters.secret_sources import SecretSources
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import (
    CheckpointStore,
    Clock,
    Coordination,
    Get,
    Logger,
    Op,
    PowerSwitch,
)
from supervisor.contract.containment import told
from supervisor.contract.desired import ClusterRecord, LeaderRecord, LeaderToken, LostMark
from supervisor.contract.errors import (
    CoordinationFull,
    Fenced,
    TfSupervisorError,
    Unreachable,
    first_of,
)
from supervisor.contract.observed import MOST_NOTICES, Beat, Incarnation
from supervisor.contract.pool.record import PoolRecord
from supervisor.contract.promise import PromiseAnswer, PromiseRequest, Taking
from supervisor.contract.timing import Timing
from supervisor.control.decide.assess.assess import Assessments
from supervisor.control.decide.assess.stacks import to_dump
from supervisor.control.decide.plan import Action, DeleteFiles, PowerOff
from supervisor.control.decide.reconcile import reconcile
from supervisor.control.decide.rest.rests import Rests
from supervisor.control.decide.snapshot import BRAKE, BeatSeen, BrakeSettings, Snapshot
from supervisor.control.decide.view import MAX_BEATS, MAX_KEY, View
from supervisor.control.loop.apply import Applied, Applier
from supervisor.control.loop.background import Background
from supervisor.control.loop.broken import Broken
from supervisor.control.loop.cluster_terms import ClusterTerms
from supervisor.control.loop.etcd_identity import EtcdGuard, MarkFile
from supervisor.control.loop.power_off import PowerOffs
from supervisor.control.loop.promise_log import Promiser, Surroundings, Terms, WordFile
from supervisor.control.loop.sweep import Sweeper
from supervisor.control.services.jobs import JobService

MAX_BATCH = 1000
SAY_AGAIN_MS = 60_000
MOST_TOLD = 100
"""Jobs of which it is remembered what was said of them."""


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """The settings of a supervisor.

    Attributes:
        address: the address of its API and its link.
        stores: the places that new jobs may use for their checkpoints.
        secrets: those that new jobs may name.
        code_store: the URI of the store of code; empty: etcd holds it.
        brake: the loss of nodes at which it holds restarts and moves.
        http: the URL of its HTTP door; empty: it has none.
    """

    supervisor: str
    cluster: str
    address: str
    pid: int
    timing: Timing
    terms: Terms = field(default_factory=Terms)
    stores: AllowedStores = ANYWHERE
    secrets: SecretSources = field(default_factory=SecretSources)
    code_store: str = ""
    brake: BrakeSettings = BRAKE
    http: str = ""


@dataclass(frozen=True, slots=True)
class StateFiles:
    """The files that a supervisor keeps across restarts. None: it keeps nothing."""

    word: WordFile | None = None
    mark: MarkFile | None = None


@dataclass(frozen=True, slots=True)
class Elected:
    """This supervisor leads from now on, under `token`."""

    token: LeaderToken


@dataclass(frozen=True, slots=True)
class Deposed:
    """This supervisor leads no more."""


@dataclass(frozen=True, slots=True)
class BeatArrived:
    """A beat of this life waits to be taken in."""

    node: str
    incarnation: str


Message = MirrorUpdate | Elected | Deposed | BeatArrived


Looked = Callable[[float, float, Sequence[str]], None]
"""Told of each look of a leader: the seconds that it took to decide and to write, and what became of each
action, as a value of `Applied` or FENCED."""
FENCED = "fenced"


class ControlDaemon:
    """One supervisor. `run` returns when cancelled, and raises what its keeper must restart it for.

    Attributes:
        looked: told of each look while it leads.
        sweeper: it deletes what nobody needs from jobs' stores.
    """

    def __init__(
        self,
        settings: ControlSettings,
        coordination: Coordination,
        open_store: Callable[[str], CheckpointStore],
        clock: Clock,
        sink: Logger,
        new_id: Callable[[], str],
        files: StateFiles = StateFiles(),
        devices: PowerSwitch | None = None,
    ) -> None:
        self._settings = settings
        self._coordination = coordination
        self._open_store = open_store
        self._clock = clock
        self._sink = sink
        self._new_id = new_id
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._beats: dict[tuple[str, str], Beat] = {}
        """(node, incarnation) -> the last beat that the loop has not taken in yet."""
        self._refused_until_ms = 0
        self._view = View(settings.timing, settings.brake)
        self._since_ms = clock.now_ms()
        self._turned_ms = self._since_ms
        self._etcd_since_ms = self._since_ms
        self._due_ms = self._since_ms
        self._decided: Assessments | None = None
        self._rests = Rests()
        self._token: LeaderToken | None = None
        self._applier: Applier | None = None
        self._promiser = Promiser(
            settings.supervisor, settings.terms, settings.timing.d_ms, files.word, clock, sink
        )
        self._power_offs = PowerOffs(devices, sink) if devices is not None else None
        self.sweeper = Sweeper(coordination, open_store, clock, sink)
        self._background = Background(self.sweeper)
        record = LeaderRecord(settings.supervisor, settings.address, settings.pid, settings.http)
        self._election = Election(
            coordination, keys.LEADER, codec.encode(record), settings.timing.leader_lease_s, clock, sink
        )
        self._mirror = Mirror(coordination, "", self._inbox.put_nowait, clock, sink)
        self._etcd = EtcdGuard(files.mark, self._mirror, sink)
        self._looked_back = False
        self._broken = Broken(sink)
        self._terms = ClusterTerms(
            _own_terms(settings),
            self._view,
            lambda: self._etcd.identity.cluster,
            new_id,
            self._promiser.first_of_all,
        )
        self._told_unreadable: set[str] = set()
        self._told_broken: dict[str, str] = {}
        self.job_service = JobService(
            coordination,
            open_store,
            clock,
            new_id,
            self._leader,
            self._seen,
            self._event,
            settings.stores,
        )
        self.job_service.submissions.secrets = settings.secrets
        self.job_service.uploads.store = settings.code_store
        self.job_service.stacks_wanted = self._stacks_wanted
        self.job_service.pools.record = self._pool
        self.looked: Looked = lambda _decided_s, _applied_s, _outcomes: None

    def set_brake(self, brake: BrakeSettings) -> None:
        """Replace the settings of the brake, from the next look on."""
        self._view.brake = brake

    async def run(self) -> None:
        """Watch, campaign and decide until cancelled. Raises the error of our tree that ended one of them."""
        self._promiser.open()
        self._etcd.open()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._etcd.keep())
                group.create_task(self._mirror.run())
                group.create_task(self._campaign())
                group.create_task(self._decide_for_ever())
        except BaseExceptionGroup as group:
            ours = group.subgroup(TfSupervisorError)
            if ours is None:
                raise
            raise first_of(ours) from group

    async def hand_over(self) -> None:
        """Stop leading at once, so that another supervisor need not wait for the lease to run out."""
        self._token = None
        await self._election.resign()

    def on_beat(self, beat: Beat) -> None:
        """Take an agent's beat into the inbox."""
        life = beat.node, beat.incarnation
        # Each tells all: of a life whose last beat is not taken in yet the newest counts.
        if life not in self._beats:
            if len(self._beats) >= MAX_BEATS:
                self._say_refused(beat)
                return
            self._inbox.put_nowait(BeatArrived(*life))
        self._beats[life] = beat

    def _say_refused(self, beat: Beat) -> None:
        now_ms = self._clock.now_ms()
        if now_ms >= self._refused_until_ms:
            self._refused_until_ms = now_ms + SAY_AGAIN_MS
            self._sink.warning(
                "too many beats wait; a node's beat is dropped", node=beat.node, most=MAX_BEATS
            )

    async def on_promise(self, request: PromiseRequest) -> PromiseAnswer:
        """Promise to leave an agent alone that etcd does not answer, or say why not (rule 11)."""
        return await self._promiser.answer(request, Surroundings(self._etcd_answers, self._is_marked))

    def promised(self) -> str:
        """A sentence about the promises in force, for people; empty without any."""
        return self._promiser.told()

    def troubles(self) -> tuple[str, ...]:
        """The reasons why this supervisor cannot lead, or cannot write to its own disk, for people."""
        found = (
            ("it cannot campaign to lead", self._election.trouble),
            ("it cannot write to its own disk", self._etcd.trouble),
        )
        return tuple(f"{self._settings.supervisor}: {what}: {why}" for what, why in found if why)

    def promises(self) -> int:
        """The number of nodes that this supervisor has promised to leave alone."""
        return len(self._promiser.in_force())

    async def _etcd_answers(self) -> bool:
        try:
            await self._coordination.txn((), [Get(keys.CLUSTER)])
        except (Unreachable, CoordinationFull):
            return False
        return True

    def _is_marked(self, node: str, incarnation: str) -> bool:
        holder = self._view.get(Incarnation, keys.node(node))
        lives = {incarnation}
        if holder is not None and holder.value.acts_for(incarnation):
            lives |= {holder.value.incarnation, *holder.value.succeeds}
        return any(self._view.get(LostMark, keys.lost(node, life)) is not None for life in lives)

    def _leader(self) -> LeaderRecord | None:
        held = self._view.get(LeaderRecord, keys.LEADER)
        return held.value if held is not None else None

    def _pool(self, name: str) -> PoolRecord | None:
        if not self._view.revision:
            raise Unreachable("this supervisor has not read etcd yet")
        held = self._view.get(PoolRecord, keys.pool_record(name))
        return held.value if held is not None else None

    def _event(self, action: Action) -> tuple[Op, ...]:
        """The operations that add the event of an operator's action, numbered among the leader's own."""
        return self._applier.event(action) if self._applier is not None else ()

    def _picture(self) -> Snapshot | None:
        """The present snapshot, if this supervisor leads and has caught up with its own election."""
        if self._token is None or self._view.revision < self._token.create_revision:
            return None
        picture = self._view.snapshot(
            self._clock.now_ms(),
            self._clock.wall_ms(),
            self._since_ms,
            self._token,
            self._etcd_since_ms,
            self._promiser.word,
        )
        return self._broken.without(picture)

    def _glance(self) -> Assessments | None:
        """The last decision's assessments, if a tick old at most and only beats came since; else new ones.

        The answer to each beat of each node needs a snapshot, and the assessments of its jobs.
        """
        last = self._decided
        if last is not None and self._clock.now_ms() - last.snap.now_ms < self._settings.timing.tick_ms:
            known = (last.snap.token, last.snap.revision, last.snap.word)
            if known == (self._token, self._view.revision, self._promiser.word):
                return last
        picture = self._picture()
        return Assessments(picture) if picture is not None else None

    def _seen(self) -> Snapshot | None:
        known = self._glance()
        return known.snap if known is not None else None

    def _stacks_wanted(self, node: str) -> tuple[str, ...] | None:
        known = self._glance()
        return to_dump(known, self._rests.suspicious, node, self._say_broken) if known is not None else None

    async def _campaign(self) -> None:
        while True:
            token = await self._election.campaign()
            self._inbox.put_nowait(Elected(token))
            await self._election.wait_lost()
            self._inbox.put_nowait(Deposed())

    async def _decide_for_ever(self) -> None:
        while True:
            batch = await self._next_batch()
            self._fold(batch)
            if not await self._has_looked_back():
                continue
            self._background.raise_faults()
            self._notice_stall()
            if not self._due(batch):
                continue
            self._settle_promises()
            picture = self._picture()
            self._decided = Assessments(picture) if picture is not None else None
            if self._decided is not None and self._caught_up():
                await self._decide(self._decided)

    async def _has_looked_back(self) -> bool:
        """Whether etcd holds what an earlier life of this supervisor saw: nothing is decided before."""
        if not self._looked_back and self._etcd.identity.cluster:
            try:
                await self._etcd.check(self._coordination)
            except Unreachable:
                await asyncio.sleep(self._settings.timing.tick_ms / 1000)
                return False
            self._looked_back = True
        return True

    def _due(self, batch: list[Message]) -> bool:
        """Beats alone do not hurry a decision: of a thousand nodes they never cease."""
        now_ms = self._clock.now_ms()
        if now_ms < self._due_ms and all(isinstance(message, BeatArrived) for message in batch):
            return False
        self._due_ms = now_ms + self._settings.timing.tick_ms
        return True

    def _settle_promises(self) -> None:
        """A follower too: what it has promised counts whenever it leads."""
        # Before the first list is folded in, a snapshot without jobs and leader would show all to be over.
        if not self._view.revision or not self._promiser.unsettled:
            return
        leader = self._view.get(LeaderRecord, keys.LEADER)
        created = leader.create_revision if leader is not None else 0
        now_ms, wall_ms = self._clock.now_ms(), self._clock.wall_ms()
        token = LeaderToken(keys.LEADER, created)
        picture = self._view.snapshot(now_ms, wall_ms, self._since_ms, token)
        earlier = leader is not None and leader.value.supervisor == self._settings.supervisor
        leads = self._token is not None and self._token.create_revision == created
        self._promiser.settle(picture, self._say_broken, earlier_leads=earlier and not leads)

    def _notice_stall(self) -> None:
        """After this process was frozen, or etcd away, what has not been heard proves nothing."""
        now_ms = self._clock.now_ms()
        if now_ms - self._turned_ms > self._settings.timing.suspect_ms // 2:
            self._since_ms = now_ms
        self._turned_ms = now_ms
        alive_ms = self._mirror.last_alive_ms
        if alive_ms is None or now_ms - alive_ms > self._settings.timing.d_ms // 2:
            self._etcd_since_ms = now_ms

    async def _next_batch(self) -> list[Message]:
        """Everything in the inbox; waits for something to be there, but not past the next tick."""
        batch: list[Message] = []
        try:
            async with asyncio.timeout((self._due_ms - self._clock.now_ms()) / 1000):
                batch.append(await self._inbox.get())
        except TimeoutError:
            return batch
        while not self._inbox.empty() and len(batch) < MAX_BATCH:
            batch.append(self._inbox.get_nowait())
        return batch

    def _fold(self, batch: list[Message]) -> None:
        now_ms = self._clock.now_ms()
        for message in batch:
            match message:
                case MirrorUpdate():
                    self._view.apply(message.changes, message.revision, now_ms)
                    self._tell_unreadable()
                    held = self._view.get(ClusterRecord, keys.CLUSTER)
                    self._etcd.take(held.value if held is not None else None, message)
                case BeatArrived():
                    beat = self._beats.pop((message.node, message.incarnation))
                    tasks = {task.attempt: task for task in beat.tasks}
                    savers = {saver.job: saver for saver in beat.savers}
                    gpus = {gpu.uuid: gpu for gpu in beat.gpus}
                    free = beat.released >= beat.asked
                    seen = BeatSeen(
                        now_ms,
                        tasks,
                        savers,
                        beat.spares,
                        gpus,
                        free,
                        beat.unread_ms,
                        beat.blocked,
                        beat.notices[:MOST_NOTICES],
                    )
                    self._view.beat(beat.node, beat.incarnation, seen)
                    self._promiser.released(beat.node, beat.incarnation, beat.asked, beat.released)
                case Elected():
                    self._take_over(message.token)
                case Deposed():
                    self._step_down("its lease ran out, or it handed over")

    def _take_over(self, token: LeaderToken) -> None:
        self._token = token
        self._applier = None
        self._rests = Rests()
        self._sink.info(
            "this supervisor leads; it goes on from the records in etcd",
            supervisor=self._settings.supervisor,
            leader_token=token.create_revision,
        )

    def _step_down(self, why: str) -> None:
        if self._token is not None:
            self._sink.warning(
                "this supervisor no longer leads; it follows",
                supervisor=self._settings.supervisor,
                leader_token=self._token.create_revision,
                why=why,
            )
        self._token = None
        self._applier = None

    def _caught_up(self) -> bool:
        """Whether the mirror shows our own last write: deciding on an older snapshot would repeat it."""
        return self._applier is None or self._view.revision >= self._applier.revision

    async def _decide(self, assessments: Assessments) -> None:
        picture = assessments.snap
        if self._applier is None:
            self._applier = Applier(
                picture.token,
                self._coordination,
                self._open_store,
                self._clock,
                self._sink,
                self._view.last_event_serial() + 1,
                self._may_take,
            )
        applier, time_s = self._applier, asyncio.get_running_loop().time
        began_s = time_s()
        decisions = reconcile(picture, assessments, self._rests)
        decided_s = time_s()
        self._tell_wrong_rests()
        try:
            await self._terms.fix(applier)
            outcomes = await applier.run_all([each for each in decisions if isinstance(each, Action)])
            await self._broken.park(applier, picture)
        except Fenced as error:
            self.looked(decided_s - began_s, time_s() - decided_s, (FENCED,))
            self._step_down(str(error))
            return
        self.looked(decided_s - began_s, time_s() - decided_s, [each.value for each in outcomes])
        if Applied.UNKNOWN in outcomes:
            await asyncio.sleep(self._settings.timing.tick_ms / 1000)
        if self._power_offs is not None:
            self._power_offs.look(applier, [each for each in decisions if isinstance(each, PowerOff)])
        self._background.delete(applier, [each for each in decisions if isinstance(each, DeleteFiles)])
        self._background.sweep(picture)

    def _tell_wrong_rests(self) -> None:
        """A sample has shown that a job or node was left out wrongly: a bug, of which nothing is lost."""
        if self._rests.wrong:
            text = "looks left out what was to be decided; all jobs and nodes are looked at again"
            self._sink.error(text, what=", ".join(self._rests.wrong[:MOST_TOLD]))
            self._rests = Rests()

    def _say_broken(self, job: str, error: Exception) -> None:
        """An error met while something beside decisions was found out about a job; said once."""
        why = told(error)
        if self._told_broken.pop(job, "") != why:
            text = "an unexpected error about a job, beside decisions; the job is skipped here"
            self._sink.error(text, job=job, error=why)
        self._told_broken[job] = why
        if len(self._told_broken) > MOST_TOLD:
            del self._told_broken[next(iter(self._told_broken))]

    def _tell_unreadable(self) -> None:
        """Say once of each record that it cannot be read."""
        for key, why in self._view.unreadable.items():
            if key not in self._told_unreadable:
                self._sink.error(
                    "a record in etcd cannot be read; its job or node is set aside",
                    key=key[:MAX_KEY],
                    reason=why,
                )
        self._told_unreadable = set(self._view.unreadable)

    async def _may_take(self, taking: Taking) -> bool:
        picture = self._picture()
        return picture is not None and await self._promiser.take(picture, taking)


def _own_terms(settings: ControlSettings) -> ClusterRecord:
    terms, timing = settings.terms, settings.timing
    supervisors = tuple(sorted(terms.supervisors)) if terms.promise_ms else ()
    return ClusterRecord(settings.cluster, timing.profile, timing.d_ms, terms.promise_ms, supervisors, "")
