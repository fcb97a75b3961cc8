"""The leader's view of etcd: decoded into one frozen snapshot per decision, with the time it was taken.

`View` folds the mirror's changes; `View.snapshot` freezes them. Each record carries the time at which this
process first saw that version of it, on its own clock: never earlier than the write itself, so that waiting
D from it satisfies rule 3 also for a leader that took over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar, cast

from supervisor.contract import codec, keys
from supervisor.contract.boundaries import KeyDeleted, KeyValue
from supervisor.contract.checkpoint import CheckpointRef, CommitHead, CommitRecord
from supervisor.contract.code import ShippedCode
from supervisor.contract.containment import contained, place_of, told
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
from supervisor.contract.errors import IncompatibleRecord, NewerRelease
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.incident import Event, Incident
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
from supervisor.contract.promise import Word
from supervisor.contract.timing import Timing
from supervisor.control.decide.set_aside import Aside, Left, aside

T = TypeVar("T")
R = TypeVar("R", bound=object)
MAX_BEATS = 10_000
"""Nodes whose beats are kept."""
MAX_LIVES = 64
"""Incarnations of one node whose beats are kept."""
MAX_WHY = 1_000
"""Characters of why a record cannot be read."""
MAX_KEY = 300
"""Characters of a key, for people."""


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A decoded record, the revisions that a transaction compares, and when it was first seen.

    `seen_ms` is of this version, `created_ms` of the key since it was last created.
    """

    key: str
    value: T
    create_revision: int
    mod_revision: int
    seen_ms: int
    created_ms: int


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
        """The lost mark that holds for what was placed on `incarnation`: its own or its successor's."""
        if self.incarnation is not None and self.incarnation.value.acts_for(incarnation):
            current = self.marks.get(self.incarnation.value.incarnation)
            if current is not None:
                return current
        return self.marks.get(incarnation)


@dataclass(frozen=True, slots=True)
class JobState:
    """One job: what is wanted, what is in force, what is in preparation, what was reported."""

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
    derived: dict[Callable[[JobState], object], object] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def once(self, rule: Callable[[JobState], T]) -> T:
        """The result of a rule that reads the job's records alone; many snapshots share it."""
        if rule not in self.derived:
            self.derived[rule] = rule(self)
        return cast("T", self.derived[rule])

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
        """The report of the attempt that is wanted now of this placement."""
        held = self.assigned(plan.plan_id, placement.member)
        return None if held is None else self.attempts.get(held.value.attempt_id)

    def task(self, member: str) -> TaskId:
        """The task of a member of this job."""
        return TaskId.from_member(self.name, member)

    @property
    def saver(self) -> TaskId:
        """The task whose node commits checkpoints: the one that was seen to save, else the likeliest."""
        spec, member = self.record.value.spec, self.switch.value.saver
        seen = self.task(member) if member else None
        # Asked for each task of the job: it looks at no other task.
        known = seen is not None and any(
            role.name == seen.role and seen.index < role.count for role in spec.roles
        )
        return seen if seen is not None and known else spec.saver


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole input of one decision.

    `since_ms`: when this process began to listen to beats; `etcd_since_ms`: since when etcd has answered it
    without a gap in which agents run out of time.

    `wall_ms` is written into records for people; of decisions only the counts of earlier faults use it, after
    a change of leader (`recovery.policy.history`). `quarantines` are by node and UUID of the GPU, lifted ones
    among them. `word`: this supervisor's promises (rule 11). `deleted`: jobs that were deleted, by name;
    `strays`: records about those, which came late. `aside`: jobs that are not among `jobs`, because they are
    set aside; `nodes_aside`: nodes that are set aside, with the reasons.
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
    word: Word = field(default_factory=lambda: Word(""))
    deleted: Mapping[str, Versioned[DeletedJob]] = field(default_factory=dict)
    strays: tuple[Versioned[object], ...] = ()
    aside: Mapping[str, Aside] = field(default_factory=dict)
    nodes_aside: Mapping[str, Left] = field(default_factory=dict)

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

    def silence_ms(self, picture: NodeState) -> int:
        """How long the node's present incarnation has been silent."""
        heard = self.since_ms
        if picture.beat is not None:
            heard = max(heard, picture.beat.received_ms)
        if picture.incarnation is not None:
            heard = max(heard, picture.incarnation.seen_ms)
        return self.now_ms - heard

    def unread_ms(self, picture: NodeState) -> int:
        """Milliseconds for which etcd has not answered the node's agent, which still beats; 0 if that is
        normal.

        It is 0 too while etcd has not answered this process either: then the node is not at fault. An appeal
        counts as an answer of etcd.
        """
        if picture.beat is None or self.now_ms - self.etcd_since_ms < self.timing.d_ms:
            return 0
        unread_ms = min([picture.beat.unread_ms, *(self.now_ms - each for each in picture.appealed_ms())])
        return unread_ms if unread_ms >= self.timing.unread_ms else 0

    def blocked(self, node: str) -> str:
        """Why nothing new can start on the node, as its agent says; empty where it can."""
        picture = self.nodes.get(node)
        return picture.beat.blocked if picture is not None and picture.beat is not None else ""

    def usable(self, picture: NodeState) -> bool:
        """Whether new tasks may be placed on the node."""
        return (
            picture.incarnation is not None
            and not picture.incarnation.value.fenced
            and picture.node not in self.nodes_aside
            and picture.cordon is None
            and picture.incarnation.value.incarnation not in picture.marks
            and self.silence_ms(picture) < self.timing.suspect_ms
            and not self.unread_ms(picture)
            and not self.blocked(picture.node)
        )


@dataclass(frozen=True, slots=True)
class _Folded:
    """The parts of a snapshot that depend on the state of etcd alone, not on the time.

    `nodes` are without beats.
    """

    nodes: Mapping[str, NodeState]
    jobs: Mapping[str, JobState]
    deleted: Mapping[str, Versioned[DeletedJob]]
    strays: tuple[Versioned[object], ...]
    aside: Mapping[str, Aside]
    nodes_aside: Mapping[str, Left]
    events: tuple[Versioned[Event], ...]
    codes: Mapping[str, Versioned[ShippedCode]]
    quarantines: Mapping[tuple[str, str], Versioned[GpuQuarantine]]


OWN = frozenset({keys.LEADER, keys.CLUSTER, keys.CLAIMS, keys.TIME})
"""Records that the daemon cannot go on without."""


class View:
    """The fold of all changes so far. Not shared between threads; holds nothing that etcd does not."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, Versioned[object]]] = {family.prefix: {} for family in keys.FAMILIES}
        self._beats: dict[str, dict[str, BeatSeen]] = {}
        self._folded: _Folded | None = None
        self.unreadable: dict[str, str] = {}
        """Key -> the reason why its record cannot be read. No rule decides on the job or node of such a
        record."""
        self.revision = 0

    def apply(self, changes: Iterable[KeyValue | KeyDeleted], revision: int, now_ms: int) -> None:
        """Fold in what the mirror delivered.

        Raises NewerRelease for a record that leaders alone write, of a newer release, and IncompatibleRecord
        for a record of the cluster's own that cannot be read. Any other such record, also one of an agent's
        newer release, is set aside, with the job or node that it is about.
        """
        self._folded = None
        for change in changes:
            family = keys.known_family(change.key)
            if family is None:
                continue  # a newer release's: nothing here depends on it
            if isinstance(change, KeyDeleted):
                self._held[family.prefix].pop(change.key, None)
                self.unreadable.pop(change.key, None)
                continue
            if not keys.is_well_formed(change.key):
                self.unreadable[change.key] = f"{change.key[:MAX_KEY]!r} is no key of tf-supervisor's"
                continue
            value = self._read(family, change)
            if value is None:
                continue
            before = self._held[family.prefix].get(change.key)
            same = before is not None and before.create_revision == change.create_revision
            created_ms = before.created_ms if before is not None and same else now_ms
            self._held[family.prefix][change.key] = Versioned(
                change.key, value, change.create_revision, change.mod_revision, now_ms, created_ms
            )
        self.revision = max(self.revision, revision)

    def _read(self, family: keys.Family, change: KeyValue) -> object | None:
        """The record; None for one that cannot be read, of which nothing is held any more."""

        def tell(error: Exception) -> None:
            of_leaders = family.writer is keys.Writer.LEADER
            if family.prefix in OWN or (of_leaders and isinstance(error, NewerRelease)):
                raise error
            self._held[family.prefix].pop(change.key, None)
            why = str(error) if isinstance(error, IncompatibleRecord) else told(error)
            self.unreadable[change.key] = f"record {change.key[:MAX_KEY]} cannot be read: {why}"[:MAX_WHY]

        self.unreadable.pop(change.key, None)
        with contained(tell):
            found: object = codec.decode(family.record, change.value)
            if isinstance(found, JobRecord) and keys.job_record(found.spec.name) != change.key:
                raise IncompatibleRecord(f"it is of job {found.spec.name!r}")
            return found
        return None

    def beat(self, node: str, incarnation: str, seen: BeatSeen) -> None:
        """Remember an incarnation's last beat; of very many of one node, those heard last.

        A beat counts for the node that sent it alone, also when it names another node's incarnation. An agent
        that makes up incarnations crowds out those of its own node only.
        """
        lives = self._beats.pop(node, {})
        lives.pop(incarnation, None)
        lives[incarnation] = seen
        if len(lives) > MAX_LIVES:
            del lives[next(iter(lives))]
        self._beats[node] = lives
        if len(self._beats) > MAX_BEATS:
            del self._beats[next(iter(self._beats))]

    def last_event_serial(self) -> int:
        """The newest event's number; 0 before the first."""
        return max((int(keys.parse(key)[0]) for key in self._held["events/"]), default=0)

    def get(self, record: type[R], key: str) -> Versioned[R] | None:
        """One record by key."""
        held = self._held[keys.family(key).prefix].get(key)
        if held is None:
            return None
        assert isinstance(held.value, record)
        return cast("Versioned[R]", held)

    def snapshot(
        self,
        now_ms: int,
        wall_ms: int,
        since_ms: int,
        token: LeaderToken,
        timing: Timing,
        etcd_since_ms: int = 0,
        word: Word | None = None,
    ) -> Snapshot:
        """Freeze the present picture."""
        folded = self._folded = self._folded or self._fold()
        return Snapshot(
            now_ms=now_ms,
            wall_ms=wall_ms,
            since_ms=since_ms,
            revision=self.revision,
            token=token,
            timing=timing,
            etcd_since_ms=etcd_since_ms,
            nodes={name: self._with_beats(picture) for name, picture in folded.nodes.items()},
            jobs=folded.jobs,
            deleted=folded.deleted,
            strays=folded.strays,
            aside=folded.aside,
            nodes_aside=folded.nodes_aside,
            events=folded.events,
            codes=folded.codes,
            quarantines=folded.quarantines,
            claims=self.get(Claims, keys.CLAIMS),
            cluster=self.get(ClusterRecord, keys.CLUSTER),
            time=self.get(ClusterTime, keys.TIME),
            word=word or Word(""),
        )

    def _fold(self) -> _Folded:
        jobs, left = self._all_jobs()
        return _Folded(
            self._nodes(),
            jobs,
            {held.value.job: held for held in self._family("deleted/", DeletedJob)},
            tuple(self._strays()),
            left,
            self._unreadable_of("node"),
            tuple(sorted(self._family("events/", Event), key=lambda held: held.key)),
            {held.value.digest: held for held in self._family("code/", ShippedCode)},
            {
                (held.value.node, held.value.uuid): held
                for held in self._family("quarantines/", GpuQuarantine)
            },
        )

    def _all_jobs(self) -> tuple[dict[str, JobState], dict[str, Aside]]:
        """All jobs, and those of which a record cannot be read or that make no picture."""
        jobs: dict[str, JobState] = {}
        left: dict[str, Aside] = {}
        for name, each in self._unreadable_of("job").items():
            left[name] = self._set_aside(name, each)
        for record in self._family("jobs/", JobRecord):
            (name,) = keys.parse(record.key)
            if name in left:
                continue
            errors: list[Exception] = []
            with contained(errors.append):
                picture = self._job(record)
                if picture is not None:
                    jobs[picture.name] = picture
            if errors:
                left[name] = self._set_aside(name, Left(told(errors[0]), place_of(errors[0])))
        return jobs, left

    def _strays(self) -> Iterator[Versioned[object]]:
        """Records about jobs that were deleted, and are not there again."""
        names = {keys.parse(key)[0] for key in self._held["deleted/"]}
        names -= {keys.parse(key)[0] for key in self._held["jobs/"]}
        for family in keys.FAMILIES if names else ():
            if family.prefix != "deleted/":
                held = self._held[family.prefix].values()
                yield from (each for each in held if keys.subject_of(each.key)[0] in names)

    def _unreadable_of(self, kind: str) -> dict[str, Left]:
        """The jobs or nodes of which a record cannot be read, and why."""
        found: dict[str, Left] = {}
        for key, why in self.unreadable.items():
            if keys.is_well_formed(key):
                job, node = keys.subject_of(key)
                found.setdefault(job if kind == "job" else node, Left(why, key))
        found.pop("", None)
        return found

    def _set_aside(self, name: str, why: Left) -> Aside:
        record = self.get(JobRecord, keys.job_record(name))
        return aside(
            name,
            why,
            record.value if record is not None else None,
            (held.value for held in self._of_job("attempts/", AttemptReport, name)),
            (held.value for held in self._of_job("plans/", Plan, name)),
            (held.value for held in self._of_job("specs/", ClusterSpec, name)),
        )

    def _family(self, prefix: str, _record: type[R]) -> list[Versioned[R]]:
        return cast("list[Versioned[R]]", list(self._held[prefix].values()))

    def _of_job(self, prefix: str, record: type[R], name: str) -> list[Versioned[R]]:
        return [held for held in self._family(prefix, record) if keys.parse(held.key)[0] == name]

    def _nodes(self) -> dict[str, NodeState]:
        names = set(self._unreadable_of("node"))
        for prefix in ("nodes/", "lost/", "appeals/"):
            names.update(keys.parse(key)[0] for key in self._held[prefix])
        cordons = self._family("cordons/", Cordon)
        names.update(keys.parse(held.key)[0] for held in cordons if held.value.in_force)
        marks = self._family("lost/", LostMark)
        appeals = self._family("appeals/", Appeal)
        pictures: dict[str, NodeState] = {}
        for name in sorted(names):
            pictures[name] = NodeState(
                node=name,
                incarnation=self.get(Incarnation, keys.node(name)),
                marks={held.value.incarnation: held for held in marks if held.value.node == name},
                appeals={held.value.incarnation: held for held in appeals if held.value.node == name},
                cordon_record=self.get(Cordon, keys.cordon(name)),
                beat=None,
                gpus=self.get(GpuReport, keys.gpus(name)),
                pardon=self.get(Pardon, keys.pardon(name)),
            )
        return pictures

    def _with_beats(self, picture: NodeState) -> NodeState:
        if picture.incarnation is None:
            return picture
        life, node = picture.incarnation.value, picture.node
        lives = self._beats.get(node, {})
        before = [lives[each].received_ms for each in life.succeeds if each in lives]
        beat = lives.get(life.incarnation)
        return replace(picture, beat=beat, heard_before_ms=max(before, default=None))

    def _job(self, record: Versioned[JobRecord]) -> JobState | None:
        name = record.value.spec.name
        intent = self.get(JobIntent, keys.intent(name))
        switch = self.get(JobSwitch, keys.switch(name))
        if intent is None or switch is None:
            return None
        plans = self._of_job("plans/", Plan, name)
        return JobState(
            name=name,
            record=record,
            intent=intent,
            switch=switch,
            head=self.get(CommitHead, keys.head(name)),
            plans={held.value.plan_id: held for held in plans},
            specs={held.value.plan_id: held for held in self._of_job("specs/", ClusterSpec, name)},
            assignments={
                (held.value.plan_id, held.value.task.member): held
                for held in self._family("assignments/", Assignment)
                if held.value.job == name
            },
            prepared={
                (held.value.plan_id, f"{held.value.role}.{held.value.index}"): held
                for held in self._of_job("prepared/", Prepared, name)
            },
            staged={
                (held.value.plan_id, held.value.node): held for held in self._of_job("staged/", Staged, name)
            },
            attempts={held.value.attempt: held for held in self._of_job("attempts/", AttemptReport, name)},
            commits={held.value.ref: held for held in self._of_job("commits/", CommitRecord, name)},
            incidents={held.value.id: held for held in self._of_job("incidents/", Incident, name)},
            spares={
                held.value.node: held for held in self._family("spares/", Spare) if held.value.job == name
            },
        )
