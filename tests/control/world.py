"""The pure leader over an in-memory etcd with scripted agents, stepped by hand: no loop, no real time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

from supervisor.adapters.etcd.memory_store import MemoryStore
from supervisor.api.views import job_view
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Delete, KeyDeleted, KeyValue, Op, Put
from supervisor.contract.checkpoint import CheckpointRef, CommitHead, CommitRecord
from supervisor.contract.desired import (
    LAST_LOOK,
    LOOK_ASIDE,
    Assignment,
    ClusterRecord,
    ClusterTime,
    JobPhase,
    JobSwitch,
    LeaderRecord,
    LeaderToken,
    Tick,
)
from supervisor.contract.ids import AttemptId
from supervisor.contract.incident import Event, Incident
from supervisor.contract.job.spec import JobIntent, JobRecord, JobSpec, Wanted
from supervisor.contract.observed import (
    STAYS,
    Appeal,
    AttemptReport,
    AttemptState,
    Exit,
    ExitReason,
    Gpu,
    GpuReport,
    Incarnation,
    NodeResources,
    Notice,
    Prepared,
    Saves,
    Staged,
    StageFailure,
    TaskBeat,
)
from supervisor.contract.timing import FAST
from supervisor.control.decide import invariants
from supervisor.control.decide.facts.cluster_time import ages
from supervisor.control.decide.plan import Action, DeleteFiles, PowerOff, put
from supervisor.control.decide.reconcile import reconcile
from supervisor.control.decide.rest.rests import Rests
from supervisor.control.decide.snapshot import BeatSeen, JobState, Snapshot
from supervisor.control.decide.view import View
from tests.support.builders import job_spec

T = TypeVar("T")
STEP_MS = 50
STARTS = ("prepare", "flip", "restart_in_place", "moved", "joined", "leaves", "servers_end")
"""Kinds of what a pause holds."""
RUNNING_PHASES = (JobPhase.RUNNING, JobPhase.FINISHING)


@dataclass
class Agent:
    """One node's agent, obedient unless told otherwise. `tells` changes what it says of an attempt, `omits`
    are those that it says nothing of. `no_code`: its refusal is about the code. `hopeless`: it is for ever.
    `starts`: it starts attempts. `delay`: why it prepares nothing for now. `segment`: of its docker network.
    `read_ms`: when etcd, which answers it no more, did so last; -1 where it does. `blocked`: why nothing new
    can start there. `stages`: it brings bases in. `looks`: it takes the last looks for saves; `aside`: what
    it finds of a task that is not the saver. `spares`: jobs for which it has a launcher in reserve.
    """

    node: str
    incarnation: str
    notices: tuple[Notice, ...] = ()
    beating: bool = True
    acting: bool = True
    refuses: str = ""
    staging: StageFailure | None = None
    steps: bool = True
    obedient: bool = True
    started: dict[AttemptId, int] = field(default_factory=dict)
    tells: dict[str, Callable[[TaskBeat], TaskBeat]] = field(default_factory=dict)
    omits: set[str] = field(default_factory=set)
    no_code: bool = False
    hopeless: bool = False
    starts: bool = True
    delay: str = ""
    segment: str = ""
    read_ms: int = -1
    blocked: str = ""
    boot_id: str = "boot"
    stages: bool = True
    looks: bool = True
    aside: str = ""
    spares: tuple[str, ...] = ()


@lru_cache(maxsize=1000)
def _plain(kind: type[object], raw: bytes) -> object:
    return codec.decode(kind, raw)


def decoded(kind: type[T], raw: bytes) -> T:
    """A record; agents read the same ones at each tick."""
    hint: Any = kind  # a type of records, which mypy does not know to be hashable
    found = _plain(hint, raw)
    assert isinstance(found, kind)
    return found


def check(snap: Snapshot) -> None:
    """Raise InvariantBroken for what is broken of all jobs together, or of one."""
    invariants.check(snap)
    for job in snap.jobs.values():
        invariants.check_job(snap, job)


def waiting_for(snap: Snapshot, job: JobState) -> str:
    """The reason for which a job waits, as `status` shows it."""
    return job_view(snap, job).waiting_for


class World:
    """A leader, its etcd, its agents and one job."""

    def __init__(self, spec: JobSpec | None = None, nodes: int = 3) -> None:
        self.now_ms = 1_000_000
        self.store = MemoryStore()
        self.spec = spec or job_spec()
        self.agents: dict[str, Agent] = {}
        self.done: list[str] = []
        self.wall_ms = 0
        self.deleted: list[DeleteFiles] = []
        self.to_switch_off: list[PowerOff] = []
        self.steps: dict[str, int] = {}
        self.ports = 20_000
        self.tells_warmth = True
        self.stays = STAYS
        """Why no program can take part in a move, as agents say."""
        self.adds_workers = self.drops_workers = False
        """Whether a coordinator takes more workers, or fewer, as agents say."""
        self.parks = False
        """Whether an error that parks a job or a node is what a test wants."""
        self.new_leader()
        for index in range(nodes):
            self.register(f"n{index}", f"i{index}")
        self.submit()

    def new_leader(self) -> None:
        """A fresh supervisor process takes over: it knows nothing but what it reads."""
        self.write(Delete(keys.LEADER))
        self.write(Put(keys.LEADER, codec.encode(LeaderRecord("s", "", 1))))
        (held,) = self.store.read(keys.LEADER)
        self.token = LeaderToken(keys.LEADER, held.create_revision)
        self.view, self.rests = View(FAST), Rests()
        self._seen: dict[str, int] = {}
        self._caught_up: tuple[object, ...] = ()
        self.since_ms = self.now_ms

    def form_cluster(self, promise_ms: int = 0) -> None:
        """A leader has written the cluster's record, D ago."""
        self.write(Delete(keys.CLUSTER))
        self.snapshot()
        record = ClusterRecord("c", FAST.profile, FAST.d_ms, promise_ms, uuid="cluster")
        self.write(put(keys.CLUSTER, record))
        self.snapshot()
        self.now_ms += FAST.d_ms

    def write(self, *ops: Op) -> None:
        """An unconditional write, as by somebody else."""
        assert self.store.commit([], ops, []).succeeded

    def register(
        self, node: str, incarnation: str, succeeds: tuple[str, ...] = (), boot_id: str = "boot"
    ) -> Agent:
        """A node's agent comes up."""
        record = Incarnation(
            node,
            incarnation,
            boot_id,
            FAST.d_ms,
            "127.0.0.1",
            "",
            20_000,
            29_999,
            1,
            NodeResources(4, 1 << 33, secrets=True),
        )
        self.write(put(keys.node(node), replace(record, succeeds=succeeds)))
        self.agents[node] = Agent(node, incarnation, boot_id=boot_id)
        return self.agents[node]

    def see_gpus(self, node: str, *gpus: Gpu, problem: str = "") -> None:
        """A node's agent reports its GPUs."""
        held = codec.decode(Incarnation, self.store.read(keys.node(node))[0].value)
        life = self.agents[node].incarnation
        self.write(put(keys.gpus(node), GpuReport(node, life, held.boot_id, "580.1", problem, gpus)))

    def submit(self) -> None:
        name = self.spec.name
        self.write(
            put(keys.job_record(name), JobRecord(self.spec, "uuid", 0)),
            put(keys.intent(name), JobIntent()),
            put(keys.switch(name), JobSwitch(name, "uuid", JobPhase.WAITING, 0)),
        )

    def snapshot(self) -> Snapshot:
        """Catch up with etcd and freeze the snapshot."""
        now = (self.view, self.store, self.store.life, self.store.revision)
        if self._caught_up != now:
            self._catch_up()
            self._caught_up = now
        return self.view.snapshot(self.now_ms, self.wall_ms, self.since_ms, self.token)

    def _catch_up(self) -> None:
        entries = {entry.key: entry for entry in self.store.select("")}
        changes: list[KeyValue | KeyDeleted] = [
            KeyDeleted(key, self.store.revision) for key in self._seen if key not in entries
        ]
        changes += [e for e in entries.values() if self._seen.get(e.key) != e.mod_revision]
        self._seen = {entry.key: entry.mod_revision for entry in entries.values()}
        self.view.apply(changes, self.store.revision, self.now_ms)

    def job(self) -> JobState:
        return self.snapshot().jobs[self.spec.name]

    def switch(self) -> JobSwitch:
        return self.job().switch.value

    def decide(self, most: int = 1000) -> int:
        """One round of the leader, of at most that many transactions; returns how many took effect."""
        effects, snap = 0, self.snapshot()
        decisions = reconcile(snap, rests=self.rests)
        # A rule that raises is met again where all is visited.
        assert self.parks or decisions == reconcile(snap), "what rests makes no difference"
        assert not self.rests.wrong
        for decision in decisions:
            if isinstance(decision, DeleteFiles):
                self.deleted.append(decision)
                self.write(Delete(decision.key))
                continue
            if isinstance(decision, PowerOff):
                self.to_switch_off.append(decision)
                continue
            assert self.parks or "parked" not in decision.kind, decision.text
            if effects < most and self.run(decision):
                effects += 1
        return effects

    def run(self, action: Action, token: LeaderToken | None = None) -> bool:
        """One transaction, under the token."""
        fence = (token or self.token).compare()
        succeeded = self.store.commit([fence, *action.compares], action.ops, []).succeeded
        if succeeded:
            self.done.append(action.kind)
        return succeeded

    def tick(self, ms: int = STEP_MS, *, leader: bool = True) -> None:
        """Agents act and beat, then the leader looks."""
        self.now_ms += ms
        for agent in self.agents.values():
            self._act(agent)
        if leader:
            self.decide()

    def let_pass(self, ms: int) -> None:
        """Tick for so long."""
        until_ms = self.now_ms + ms
        while self.now_ms < until_ms:
            self.tick()

    def has_started_nothing(self) -> bool:
        """Whether nothing was restarted or moved since `done` was cleared."""
        return not {*STARTS} & {*self.done}

    def until(self, condition: object, limit_ms: int = 60_000, step_ms: int = STEP_MS) -> int:
        """Tick until `condition()` holds; returns how long it took."""
        assert callable(condition)
        began = self.now_ms
        while not condition():
            assert self.now_ms - began < limit_ms, f"not within {limit_ms} ms; done: {self.done[-20:]}"
            self.tick(step_ms)
        return self.now_ms - began

    def start(self) -> World:
        """Bring the job's first generation up to its first step."""
        self.until(
            lambda: self.switch().phase is JobPhase.RUNNING and len(self.running()) == len(self.spec.tasks())
        )
        for _ in range(5):
            self.tick()
        return self

    def next_action(self, kind: str) -> Action:
        """The only action of this kind that the leader would take now; it takes none."""
        self.tick(leader=False)
        (action,) = [a for a in reconcile(self.snapshot()) if isinstance(a, Action) and a.kind == kind]
        return action

    def node_of(self, member: str) -> str:
        """The node of a running member."""
        return self.running()[member].node

    def staging(self, failure: StageFailure | None) -> None:
        """Let every attempt to stage a base end like this from now on, on every node."""
        for agent in self.agents.values():
            agent.staging = failure

    def switch_off(self, node: str) -> None:
        """Power off: no beat and no act from now on."""
        self.agents[node].acting = False

    def running(self) -> dict[str, AttemptReport]:
        """The running attempts of the generation in force, by member."""
        job = self.job()
        return {
            attempt.task.member: held.value
            for attempt, held in job.attempts.items()
            if held.value.state is AttemptState.RUNNING and attempt.generation == job.switch.value.generation
        }

    def incidents(self) -> dict[str, Incident]:
        return {held.value.id: held.value for held in self.job().incidents.values()}

    def end_task(
        self,
        member: str,
        code: int | None = None,
        signal: int | None = None,
        reason: ExitReason = ExitReason.EXIT,
        *,
        confirmed: bool = True,
        age_ms: int = 10,
        tail: str = "last words",
    ) -> None:
        """A running attempt has ended by itself, so long ago."""
        report = self.running()[member]
        self._exited(report, Exit(reason, code, signal, age_ms, confirmed, tail=tail))

    def commit(
        self, generation: int, step: int, parent: CheckpointRef | None = None, node: str = "n0"
    ) -> CheckpointRef:
        """A checkpoint is committed."""
        ref = CheckpointRef(generation, step)
        record = CommitRecord("uuid", ref, parent, str(ref), 1, "00000000", node, "i0", 0)
        held = self.job().head
        serial = held.value.serial + 1 if held is not None else 1
        self.write(
            put(keys.commit(self.spec.name, ref), record),
            put(keys.head(self.spec.name), CommitHead(serial, ref)),
        )
        return ref

    def pass_time(self, ms: int) -> None:
        """Leaders count so long, and nothing is written meanwhile."""
        known, revision = ages(self.snapshot()), self.store.revision
        passed = (Tick(revision, known.now_ms), Tick(revision, known.now_ms + ms))
        self.write(put(keys.TIME, ClusterTime((*known.ticks, *passed))))

    def appeal(self, node: str, incarnation: str, successor: str = "") -> None:
        self.write(put(keys.appeal(node, incarnation), Appeal(node, incarnation, successor)))

    def intend(
        self,
        wanted: Wanted = Wanted.RUN,
        serial: int = 0,
        member: str = "",
        from_ref: CheckpointRef | None = None,
        *,
        save: bool = False,
    ) -> None:
        """The operator changes their mind."""
        self.write(put(keys.intent(self.spec.name), JobIntent(wanted, serial, member, from_ref, save)))

    def lose(self, member: str) -> str:
        """Power off the node of a task; returns which."""
        node = self.running()[member].node
        self.agents[node].acting = self.agents[node].beating = False
        return node

    def come_back(self, node: str) -> None:
        """A node that is lost is marked; then its agent appeals, and all is well for a while."""
        self.until(lambda: bool(self.snapshot().nodes[node].marks))
        self.agents[node].acting = self.agents[node].beating = True
        self.appeal(node, self.agents[node].incarnation)
        for _ in range(150):
            self.tick()

    def move(self) -> Action | None:
        """The move that the leader would make now; it is not made."""
        found = [a for a in reconcile(self.snapshot()) if isinstance(a, Action) and a.kind == "moved"]
        return found[0] if found else None

    def next_move(self) -> Action:
        """The next move, decided and not yet carried out."""
        while (found := self.move()) is None:
            assert self.now_ms < 1_100_000
            self.tick(leader=False)
            for action in reconcile(self.snapshot()):
                if isinstance(action, Action) and action.kind != "moved":
                    self.run(action)
        return found

    def _exited(self, report: AttemptReport, end: Exit, *, drained: bool = False) -> None:
        ended = replace(report, state=AttemptState.EXITED, exit=end, drained=drained)
        self.write(put(keys.attempt(report.attempt), ended))

    def cut_off(self, node: str) -> None:
        """Etcd does not answer a node's agent from now on; supervisors hear it all the same."""
        self.agents[node].read_ms = self.now_ms

    def _act(self, agent: Agent) -> None:
        if not agent.acting:
            return
        if agent.read_ms >= 0:
            self._beat(agent)
            return
        held = self.store.read(keys.node(agent.node))
        registered = bool(held) and decoded(Incarnation, held[0].value).incarnation == agent.incarnation
        if registered:
            for entry in self.store.select(keys.assignments_of(agent.node)):
                self._obey(agent, decoded(Assignment, entry.value))
            if agent.obedient:
                self._kill_unwanted(agent)
        if agent.beating:
            self._beat(agent)

    def _obey(self, agent: Agent, wanted: Assignment) -> None:
        found = self.store.read(keys.switch(wanted.job))
        if not found:
            return
        switch = decoded(JobSwitch, found[0].value)
        if wanted.generation > switch.generation and not switch.phase.ended:
            self._prepare(agent, wanted, switch)
        elif wanted.plan_id == switch.plan_id and switch.phase is JobPhase.RUNNING:
            if not wanted.ends:
                self._start(agent, wanted, switch)
            elif agent.obedient:
                self._end(wanted)

    def _end(self, wanted: Assignment) -> None:
        for report in self.running().values():
            if report.attempt == wanted.attempt_id:
                self._exited(report, Exit(ExitReason.KILLED, None, 9, 0, confirmed_dead=True), drained=True)

    def _start(self, agent: Agent, wanted: Assignment, switch: JobSwitch) -> None:
        if not agent.starts or self.store.read(keys.attempt(wanted.attempt_id)):
            return
        for report in self.running().values():
            if report.attempt.task == wanted.task and report.number < wanted.attempt:
                self._exited(report, Exit(ExitReason.KILLED, None, 9, 0, confirmed_dead=True), drained=True)
        agent.started[wanted.attempt_id] = self.now_ms
        known = self.snapshot().jobs[wanted.job].specs[wanted.plan_id].value
        outside = {each.role for each in known.outside}
        address = known.address(wanted.role, wanted.index)
        if wanted.joins or (wanted.role in outside and wanted.attempt > 1):
            self.ports += 1
            address = f"127.0.0.1:{self.ports}"
        report = AttemptReport(
            wanted.job,
            wanted.role,
            wanted.index,
            wanted.generation,
            wanted.attempt,
            wanted.plan_id,
            agent.node,
            agent.incarnation,
            AttemptState.RUNNING,
            100,
            1,
            address,
            gpus=wanted.gpus,
            warm=not (switch.cold and self.tells_warmth),
            stays=self.stays,
            adds_workers=self.adds_workers,
            drops_workers=self.drops_workers,
        )
        self.write(put(keys.attempt(wanted.attempt_id), report))

    def _prepare(self, agent: Agent, wanted: Assignment, switch: JobSwitch) -> None:
        key = keys.prepared(wanted.task, wanted.plan_id)
        (found,) = self.store.read(key) or (None,)
        told = decoded(Prepared, found.value).delay if found is not None else agent.delay
        if found is None or told != agent.delay:
            self.ports += 1
            ready = Prepared(
                wanted.job,
                wanted.plan_id,
                wanted.role,
                wanted.index,
                agent.node,
                agent.incarnation,
                "" if agent.delay else f"127.0.0.1:{self.ports}",
                failure=agent.refuses,
                no_code=agent.no_code,
                hopeless=agent.hopeless,
                delay=agent.delay,
                segment=agent.segment,
            )
            self.write(put(key, ready))
        closing = switch.closing
        if agent.stages and closing is not None and closing.plan_id == wanted.plan_id:
            staged = Staged(
                wanted.job,
                wanted.plan_id,
                agent.node,
                agent.incarnation,
                closing.base,
                agent.staging,
                "a flipped byte" if agent.staging else "",
                agent.boot_id,
            )
            self.write(put(keys.staged(wanted.job, wanted.plan_id, agent.node), staged))

    def _kill_unwanted(self, agent: Agent) -> None:
        job = self.snapshot().jobs.get(self.spec.name)
        for held in job.attempts.values() if job is not None else ():
            report = held.value
            if report.node != agent.node:
                continue
            switch = self.switch()
            in_force = report.plan_id == switch.plan_id
            wanted = in_force and switch.phase is JobPhase.RUNNING
            has_time = report.role == "evaluator" or switch.phase is JobPhase.STOPPING
            lets_end = in_force and has_time and bool(switch.save_grace_ms)
            lets_end |= in_force and report.attempt.task.member in switch.held
            if report.state is AttemptState.RUNNING and not wanted and not lets_end:
                self._exited(report, Exit(ExitReason.KILLED, None, 9, 0, confirmed_dead=True), drained=True)
            elif report.state is AttemptState.EXITED and not wanted:
                saves = in_force and report.attempt.task.member == switch.saver and not switch.phase.ended
                aside = in_force and not saves and switch.look >= LOOK_ASIDE and not switch.phase.ended
                look = min(switch.look, LAST_LOOK) if saves else LOOK_ASIDE if aside else 0
                look = max(look, report.look) if agent.looks else report.look
                left = agent.aside if aside and agent.looks else report.uncommitted
                told = replace(report, look=look, drained=not saves or look >= LAST_LOOK, uncommitted=left)
                if told != report:
                    self.write(put(keys.attempt(report.attempt), told))

    def _beat(self, agent: Agent) -> None:
        tasks = {}
        for attempt, began in agent.started.items():
            if agent.steps and attempt.task.role != "ps":
                beat = TaskBeat(
                    str(attempt), self.steps.get(attempt.task.role, 10), 0, 5, self.now_ms - began, 100.0, 100
                )
            else:
                beat = TaskBeat(str(attempt))
            if str(attempt) not in agent.omits:
                tasks[str(attempt)] = agent.tells.get(str(attempt), _as_it_is)(beat)
        unread_ms = self.now_ms - agent.read_ms if agent.read_ms >= 0 else 0
        seen = BeatSeen(
            self.now_ms,
            tasks,
            unread_ms=unread_ms,
            blocked=agent.blocked,
            notices=agent.notices,
            spares=agent.spares,
        )
        self.view.beat(agent.node, agent.incarnation, seen)


def _as_it_is(beat: TaskBeat) -> TaskBeat:
    return beat


class Telling(World):
    """Its events are in etcd."""

    def __init__(self, spec: JobSpec | None = None, nodes: int = 3) -> None:
        self.serial = 0
        super().__init__(spec, nodes)

    def run(self, action: Action, token: LeaderToken | None = None) -> bool:
        done = super().run(action, token)
        if done and action.text:
            self.serial += 1
            event = Event(0, action.kind, action.job, action.text, action.fields)
            self.write(put(keys.event(self.serial), event))
        return done


def says_of_saves(world: World, member: str, saves: Saves) -> None:
    """From now on a running attempt's process says so of its saves."""
    report = world.running()[member]
    world.agents[report.node].tells[str(report.attempt)] = lambda beat: replace(beat, saves=saves)
