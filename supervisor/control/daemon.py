"""The supervisor daemon: inbox -> reconcile -> apply, on one asyncio loop.

Followers fold the same changes and hear the same beats as the leader, so that taking over costs nothing
but the election; they decide nothing. All that matters is in etcd: a new leader goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from supervisor.adapters.election import Election
from supervisor.adapters.mirror import Mirror, MirrorUpdate
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import CheckpointStore, Clock, Coordination, Op, Sink
from supervisor.contract.desired import ClusterRecord, LeaderRecord, LeaderToken
from supervisor.contract.errors import Fenced, TfSupervisorError, UserError, first_of
from supervisor.contract.observed import Beat
from supervisor.contract.timing import Timing
from supervisor.control.apply import Applied, Applier
from supervisor.control.desk import Desk
from supervisor.control.plan import Action, DeleteFiles, put
from supervisor.control.reconcile import reconcile
from supervisor.control.snapshot import BeatSeen, Snapshot, View
from supervisor.control.sweep import Sweeper

MAX_BATCH = 1000


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """What a supervisor must be told. `address`: where its API and link are reached."""

    supervisor: str
    cluster: str
    address: str
    pid: int
    timing: Timing


@dataclass(frozen=True, slots=True)
class Elected:
    """This supervisor leads from now on, under `token`."""

    token: LeaderToken


@dataclass(frozen=True, slots=True)
class Deposed:
    """This supervisor leads no more."""


@dataclass(frozen=True, slots=True)
class BeatArrived:
    """An agent's sign of life."""

    beat: Beat


Message = MirrorUpdate | Elected | Deposed | BeatArrived


class ControlDaemon:
    """One supervisor. `run` returns when cancelled, and raises what its keeper must restart it for."""

    def __init__(
        self,
        settings: ControlSettings,
        coordination: Coordination,
        open_store: Callable[[str], CheckpointStore],
        clock: Clock,
        sink: Sink,
        new_id: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._coordination = coordination
        self._open_store = open_store
        self._clock = clock
        self._sink = sink
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._view = View()
        self._since_ms = clock.now_ms()
        self._turned_ms = self._since_ms
        self._etcd_since_ms = self._since_ms
        self._due_ms = self._since_ms
        self._token: LeaderToken | None = None
        self._applier: Applier | None = None
        self._deletions: set[asyncio.Task[None]] = set()
        self._sweeper = Sweeper(coordination, open_store, clock, sink)
        record = LeaderRecord(settings.supervisor, settings.address, settings.pid)
        self._election = Election(
            coordination, keys.LEADER, codec.encode(record), settings.timing.leader_lease_s, clock, sink
        )
        self._mirror = Mirror(coordination, "", self._inbox.put_nowait, clock, sink)
        self.desk = Desk(coordination, open_store, clock, new_id, self._leader, self._picture, self._event)

    async def run(self) -> None:
        """Watch, campaign and decide until cancelled. Raises the error of our tree that ended one of them."""
        try:
            async with asyncio.TaskGroup() as group:
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
        self._inbox.put_nowait(BeatArrived(beat))

    def _leader(self) -> LeaderRecord | None:
        held = self._view.get(LeaderRecord, keys.LEADER)
        return held.value if held is not None else None

    def _event(self, action: Action) -> tuple[Op, ...]:
        """What tells of an operator's action, numbered among the leader's own."""
        return self._applier.event(action) if self._applier is not None else ()

    def _picture(self) -> Snapshot | None:
        """The present picture, if this supervisor leads and has caught up with its own election."""
        if self._token is None or self._view.revision < self._token.create_revision:
            return None
        timing = self._settings.timing
        return self._view.snapshot(
            self._clock.now_ms(),
            self._clock.wall_ms(),
            self._since_ms,
            self._token,
            timing,
            self._etcd_since_ms,
        )

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
            self._raise_faults()
            self._notice_stall()
            if not self._due(batch):
                continue
            picture = self._picture()
            if picture is not None and self._caught_up():
                await self._decide(picture)

    def _due(self, batch: list[Message]) -> bool:
        """Beats alone do not hurry a decision: of a thousand nodes they never cease."""
        now_ms = self._clock.now_ms()
        if now_ms < self._due_ms and all(isinstance(message, BeatArrived) for message in batch):
            return False
        self._due_ms = now_ms + self._settings.timing.tick_ms
        return True

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
                case BeatArrived():
                    tasks = {task.attempt: task for task in message.beat.tasks}
                    savers = {saver.job: saver for saver in message.beat.savers}
                    gpus = {gpu.uuid: gpu for gpu in message.beat.gpus}
                    seen = BeatSeen(now_ms, tasks, savers, message.beat.spares, gpus)
                    self._view.beat(message.beat.incarnation, seen)
                case Elected():
                    self._take_over(message.token)
                case Deposed():
                    self._step_down("its lease ran out, or it handed over")

    def _take_over(self, token: LeaderToken) -> None:
        self._token = token
        self._applier = None
        self._sink.info(
            "this supervisor leads; it goes on from what etcd holds",
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
        """Whether the mirror shows our own last write: deciding on an older picture would repeat it."""
        return self._applier is None or self._view.revision >= self._applier.revision

    async def _decide(self, picture: Snapshot) -> None:
        if self._applier is None:
            self._applier = Applier(
                picture.token,
                self._coordination,
                self._open_store,
                self._clock,
                self._sink,
                self._view.last_event_serial() + 1,
            )
        applier = self._applier
        decisions = reconcile(picture)
        try:
            if self._view.get(ClusterRecord, keys.CLUSTER) is None:
                await applier.run(self._cluster_action())
            self._check_cluster()
            actions = [applier.run(d) for d in decisions if isinstance(d, Action)]
            outcomes = await asyncio.gather(*actions)
        except Fenced as error:
            self._step_down(str(error))
            return
        if Applied.UNKNOWN in outcomes:
            await asyncio.sleep(self._settings.timing.tick_ms / 1000)
        for decision in decisions:
            if isinstance(decision, DeleteFiles):
                self._delete(applier, decision)
        for job in picture.jobs.values():
            if self._sweeper.due(job):
                spec, uuid = job.record.value.spec, job.switch.value.job_uuid
                self._begin(self._sweeper.sweep(picture.token, job.name, uuid, spec.checkpoint.uri))
                break

    def _cluster_action(self) -> Action:
        """The first leader of a cluster fixes its D (rule 11)."""
        settings = self._settings
        record = ClusterRecord(settings.cluster, settings.timing.profile, settings.timing.d_ms)
        text = f"cluster {settings.cluster} runs with D = {record.d_ms} ms (profile {record.profile})"
        return Action("cluster", "", text, (), (put(keys.CLUSTER, record),))

    def _check_cluster(self) -> None:
        held = self._view.get(ClusterRecord, keys.CLUSTER)
        own = self._settings.timing
        if held is not None and held.value.d_ms != own.d_ms:
            raise UserError(
                f"this supervisor is configured with D = {own.d_ms} ms (profile {own.profile}), but the "
                f"cluster runs with {held.value.d_ms} ms (profile {held.value.profile}): make them equal"
            )

    def _delete(self, applier: Applier, decision: DeleteFiles) -> None:
        if not applier.is_deleting(decision.key):
            self._begin(applier.delete_files(decision))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        self._deletions.add(asyncio.create_task(work))

    def _raise_faults(self) -> None:
        """Work in the background deals with errors of our tree itself: any other is a bug, and ends this."""
        for task in [each for each in self._deletions if each.done()]:
            self._deletions.discard(task)
            task.result()
