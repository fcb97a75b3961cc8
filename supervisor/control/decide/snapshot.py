"""The input of one decision: what etcd holds and what was heard, frozen, with the time it was taken.

Each record carries the time at which this process first saw that version of it, on its own clock: never
earlier than the write itself, so that waiting D from it satisfies rule 3 also for a leader that took over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from supervisor.contract.checkpoint import CheckpointRef, CommitHead, CommitRecord
from supervisor.contract.code import ShippedCode
from supervisor.contract.desired import (
    Assignment,
    Claims,
    ClusterRecord,
    ClusterSpec,
    ClusterTime,
    Cordon,
    DeletedJob,
    GpuQuarantine,
    JobSwitch,
    LeaderToken,
    LostMark,
    Pardon,
    Placement,
    Plan,
    Spare,
)
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.incident import Event, Incident
from supervisor.contract.job.goodput import Goodput
from supervisor.contract.job.pause import Pause
from supervisor.contract.job.spec import JobIntent, JobRecord, JobSpec, resized
from supervisor.contract.observed import (
    Appeal,
    AttemptReport,
    GpuBeat,
    GpuReport,
    Incarnation,
    Notice,
    Prepared,
    SaverBeat,
    Staged,
    TaskBeat,
)
from supervisor.contract.pool.record import PoolRecord, pool_of
from supervisor.contract.promise import Word
from supervisor.contract.timing import Timing
from supervisor.control.decide.set_aside import Aside, Left

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A decoded record, the revisions that a transaction compares, and when it was first seen.

    `seen_ms` is of this version, `created_ms` of the key since it was last created. `size`: bytes in etcd.
    """

    key: str
    value: T
    create_revision: int
    mod_revision: int
    seen_ms: int
    created_ms: int
    size: int = 0


@dataclass(frozen=True, slots=True)
class BeatSeen:
    """The last beat of an incarnation: when it arrived, what it said of attempts, commits, spares, GPUs.

    `free`: no promise of a supervisor is in use there (rule 11). `unread_ms`: how long before it was sent
    its agent's last good read of etcd was sent. `blocked`: why nothing new can start there.
    """

    received_ms: int
    tasks: Mapping[str, TaskBeat] = field(default_factory=dict)
    savers: Mapping[str, SaverBeat] = field(default_factory=dict)
    spares: tuple[str, ...] = ()
    gpus: Mapping[str, GpuBeat] = field(default_factory=dict)
    free: bool = True
    unread_ms: int = 0
    blocked: str = ""
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node: its agent's present incarnation, and what was declared of this and earlier ones.

    `cordon_record`: of its cordon, also of one that was lifted. `pardon`: of an earlier release.
    `heard_before_ms`: when an incarnation that it succeeded was heard last; None if this leader heard none.
    `news`: the number of its newest news: a beat that tells of nothing but progress is none.
    """

    node: str
    incarnation: Versioned[Incarnation] | None
    marks: Mapping[str, Versioned[LostMark]]
    appeals: Mapping[str, Versioned[Appeal]]
    cordon_record: Versioned[Cordon] | None
    beat: BeatSeen | None
    gpus: Versioned[GpuReport] | None = None
    pardon: Versioned[Pardon] | None = None
    heard_before_ms: int | None = None
    news: int = field(default=0, compare=False)

    def acts_for(self, incarnation: str) -> bool:
        """Whether the agent registered now is that incarnation or adopted from it."""
        return self.incarnation is not None and self.incarnation.value.acts_for(incarnation)

    def fenced(self, incarnation: str) -> Versioned[Incarnation] | None:
        """The node's key, if it says that nothing is left of this incarnation; None otherwise."""
        held = self.incarnation
        return held if held is not None and held.value.fenced and held.value.acts_for(incarnation) else None

    @property
    def cordon(self) -> Versioned[Cordon] | None:
        """The cordon that keeps new tasks away; None where there is none, or it was lifted."""
        held = self.cordon_record
        return held if held is not None and held.value.in_force else None

    @property
    def lifted(self) -> int:
        """The revision of etcd up to which nothing is held against the node; 0 where no cordon was lifted."""
        lifted = self.cordon_record.value.lifted if self.cordon_record is not None else 0
        return max(lifted, self.pardon.mod_revision - 1 if self.pardon is not None else 0)

    def pardons(self, revision: int) -> bool:
        """Whether what began then is not held against the node any more."""
        return revision <= self.lifted

    def appealed_ms(self) -> list[int]:
        """When appeals of the agent registered now, or of lives that it adopted from, were seen."""
        return [appeal.seen_ms for life, appeal in self.appeals.items() if self.acts_for(life)]

    def mark_of(self, incarnation: str) -> Versioned[LostMark] | None:
        """The lost mark that holds for what was placed on `incarnation`: its own or its successor's.

        A final mark of its own holds, whatever came after.
        """
        own = self.marks.get(incarnation)
        if own is not None and own.value.final:
            return own
        if self.incarnation is not None and self.incarnation.value.acts_for(incarnation):
            current = self.marks.get(self.incarnation.value.incarnation)
            if current is not None:
                return current
        return own


@dataclass(frozen=True, slots=True)
class JobState:
    """One job: what is wanted, what is in force, what is in preparation, what was reported.

    `events`: the kept events that are about it, oldest first.
    """

    name: str
    record: Versioned[JobRecord]
    intent: Versioned[JobIntent]
    switch: Versioned[JobSwitch]
    head: Versioned[CommitHead] | None
    plans: Mapping[str, Versioned[Plan]]
    specs: Mapping[str, Versioned[ClusterSpec]]
    assignments: Mapping[tuple[str, str], Versioned[Assignment]]
    prepared: Mapping[tuple[str, str], Versioned[Prepared]]
    staged: Mapping[tuple[str, str], Versioned[Staged]]
    attempts: Mapping[AttemptId, Versioned[AttemptReport]]
    commits: Mapping[CheckpointRef, Versioned[CommitRecord]]
    incidents: Mapping[str, Versioned[Incident]]
    spares: Mapping[str, Versioned[Spare]] = field(default_factory=dict)
    events: tuple[Versioned[Event], ...] = ()
    goodput: Versioned[Goodput] | None = None
    derived: dict[Callable[[JobState], object], object] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def once(self, rule: Callable[[JobState], T]) -> T:
        """The result of a rule that reads the job's records alone; many snapshots share it."""
        return _once(self.derived, rule, self)

    @property
    def plan_in_force(self) -> Versioned[Plan] | None:
        """The plan that the switch names."""
        return self.plans.get(self.switch.value.plan_id)

    @property
    def next_plan(self) -> Versioned[Plan] | None:
        """The newest plan above the generation in force, if one is in preparation."""
        ahead = [held for held in self.plans.values() if held.value.generation > self.switch.value.generation]
        return max(ahead, key=lambda held: held.create_revision, default=None)

    @property
    def wanted(self) -> JobSpec:
        """The job in the size that its next generation is to have, at most."""
        spec, sizes = self.record.value.spec, self.intent.value.sizes
        return resized(spec, {role.name: role.most or role.count for role in spec.roles} | sizes)

    def planned(self, plan: Plan) -> JobSpec:
        """The job in the size of a plan."""
        return resized(self.record.value.spec, Counter(placement.role for placement in plan.placements))

    def assigned(self, plan_id: str, member: str) -> Versioned[Assignment] | None:
        """A member's assignment in a plan."""
        return self.assignments.get((plan_id, member))

    def report(self, placement: Placement, plan: Plan) -> Versioned[AttemptReport] | None:
        """The report of the attempt that is wanted now of this placement, by its node."""
        if plan.plan_id == self.switch.value.plan_id:
            found = self.once(_reports_in_force).get(placement.member)
        else:
            found = _report_of(self, self.assigned(plan.plan_id, placement.member))
        return found if found is not None and found.value.node == placement.node else None

    def task(self, member: str) -> TaskId:
        """The task of a member of this job."""
        return TaskId.from_member(self.name, member)

    @property
    def saver(self) -> TaskId:
        """The task whose node commits checkpoints; before the first generation, the task that is to do so."""
        member = self.switch.value.saver
        return self.task(member) if member else self.record.value.spec.saver

    def saver_in(self, plan: Plan) -> str:
        """The member that saves once a plan is in force: as now, if it is a member of that plan, too."""
        member, expected = self.switch.value.saver, self.record.value.spec.saver.member
        return member if any(each.member == member for each in plan.placements) else expected


@dataclass(frozen=True, slots=True)
class BrakeSettings:
    """The loss of nodes at which the leader holds restarts and moves (rule 6.15).

    `lost_fraction`: of the nodes, more than that. `window_ms`: lost within this time.
    """

    lost_fraction: float = 0.5
    window_ms: int = 300_000


BRAKE = BrakeSettings()
"""Where nothing is configured."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole input of one decision.

    `since_ms`: when this process began to listen to beats; `etcd_since_ms`: since when etcd has answered it
    without a gap in which agents run out of time.

    `wall_ms` is written into records for people; of decisions only the counts of earlier faults use it, after
    a change of leader (`recovery.policy.history`). `quarantines` are by node and UUID of the GPU, lifted ones
    among them. `word`: this supervisor's promises (rule 11). `deleted`: jobs that were deleted, by name;
    `strays`: records about those, which came late. `aside`: jobs that are not among `jobs`, because they are
    set aside; `nodes_aside`: nodes that are set aside, with the reasons. `pools`: those that may have
    certificates. `news`: the number of the newest news of any node. `pause`: the record of the cluster's
    pause, also of one that is over. `read_ms`: when
    this process first read etcd: what is newer it has seen being written.
    """

    now_ms: int
    wall_ms: int
    since_ms: int
    revision: int
    token: LeaderToken
    timing: Timing
    nodes: Mapping[str, NodeState]
    jobs: Mapping[str, JobState]
    etcd_since_ms: int = 0
    events: tuple[Versioned[Event], ...] = ()
    codes: Mapping[str, Versioned[ShippedCode]] = field(default_factory=dict)
    quarantines: Mapping[tuple[str, str], Versioned[GpuQuarantine]] = field(default_factory=dict)
    claims: Versioned[Claims] | None = None
    cluster: Versioned[ClusterRecord] | None = None
    time: Versioned[ClusterTime] | None = None
    pause: Versioned[Pause] | None = None
    brake: BrakeSettings = BRAKE
    word: Word = field(default_factory=lambda: Word(""))
    deleted: Mapping[str, Versioned[DeletedJob]] = field(default_factory=dict)
    strays: tuple[Versioned[object], ...] = ()
    aside: Mapping[str, Aside] = field(default_factory=dict)
    nodes_aside: Mapping[str, Left] = field(default_factory=dict)
    pools: Mapping[str, Versioned[PoolRecord]] = field(default_factory=dict)
    news: int = field(default=0, compare=False)
    read_ms: int = 0
    derived: dict[Callable[[Snapshot], object], object] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def once(self, fact: Callable[[Snapshot], T]) -> T:
        """A fact about the whole snapshot, for all jobs that ask for it."""
        return _once(self.derived, fact, self)

    def former_ms(self) -> int:
        """Milliseconds for which tasks of an earlier, lost etcd may still run; 0 when none can.

        This etcd has no records of them. No agent could extend their time since the cluster's record was
        made.
        """
        if self.cluster is None:
            return self.timing.d_ms
        record = self.cluster.value
        return max(0, self.cluster.created_ms + record.d_ms + record.promise_ms - self.now_ms)

    def beat_of(self, node: str, attempt: AttemptId) -> TaskBeat | None:
        """The last beat about an attempt from its node's agent."""
        picture = self.nodes.get(node)
        if picture is None or picture.beat is None:
            return None
        return picture.beat.tasks.get(str(attempt))

    def mark_of(self, node: str, incarnation: str) -> Versioned[LostMark] | None:
        """The lost mark that holds for what was placed on an incarnation of a node; None without one."""
        state = self.nodes.get(node)
        return state.mark_of(incarnation) if state is not None else None

    def silence_ms(self, picture: NodeState) -> int:
        """The silence of the node's present incarnation, for all that this process knows."""
        heard_ms = self.since_ms
        if picture.beat is not None:
            heard_ms = max(heard_ms, picture.beat.received_ms)
        if picture.incarnation is not None:
            heard_ms = max(heard_ms, picture.incarnation.seen_ms)
        return self.since_heard_ms(picture, heard_ms)

    def unheard_ms(self, picture: NodeState) -> int:
        """The age of the last beat about the node's tasks, whether or not this process has listened since."""
        if picture.beat is None:
            return self.silence_ms(picture)
        return self.since_heard_ms(picture, picture.beat.received_ms)

    def since_heard_ms(self, _picture: NodeState, heard_ms: int) -> int:
        """The time since a node was heard."""
        return self.now_ms - heard_ms

    def unread_ms(self, picture: NodeState) -> int:
        """Milliseconds for which etcd has not answered the node's agent, which still beats; 0 if that is
        normal.

        It is 0 too while etcd has not answered this process either: then the node is not at fault. An appeal
        counts as an answer of etcd.
        """
        if picture.beat is None or picture.beat.unread_ms < self.timing.unread_ms:
            return 0
        if self.now_ms - self.etcd_since_ms < self.timing.d_ms:
            return 0
        unread_ms = min([picture.beat.unread_ms, *(self.now_ms - each for each in picture.appealed_ms())])
        return unread_ms if unread_ms >= self.timing.unread_ms else 0

    def blocked(self, node: str) -> str:
        """Why nothing new can start on the node, as its agent says; empty where it can."""
        picture = self.nodes.get(node)
        return picture.beat.blocked if picture is not None and picture.beat is not None else ""

    def is_revoked(self, node: str) -> bool:
        """Whether a node of a pool was revoked. Its agent cannot beat, and etcd lets it in for a while."""
        held = self.pools.get(pool_of(node))
        return held is not None and node in held.value.revoked

    def usable(self, picture: NodeState) -> bool:
        """Whether new tasks may be placed on the node."""
        return (
            picture.incarnation is not None
            and not picture.incarnation.value.fenced
            and picture.node not in self.nodes_aside
            and picture.cordon is None
            and not self.is_revoked(picture.node)
            and picture.incarnation.value.incarnation not in picture.marks
            and self.silence_ms(picture) < self.timing.suspect_ms
            and not self.unread_ms(picture)
            and not self.blocked(picture.node)
        )


def _reports_in_force(job: JobState) -> dict[str, Versioned[AttemptReport] | None]:
    """By member, the report of the attempt that is wanted now. Many rules ask for each."""
    in_force, plan_id = job.assignments.items(), job.switch.value.plan_id
    return {member: _report_of(job, held) for (of, member), held in in_force if of == plan_id}


def _report_of(job: JobState, held: Versioned[Assignment] | None) -> Versioned[AttemptReport] | None:
    return None if held is None else job.attempts.get(held.value.attempt_id)


def _once(derived: dict[Callable[[S], object], object], find: Callable[[S], T], subject: S) -> T:
    if find not in derived:
        derived[find] = find(subject)
    return cast("T", derived[find])
