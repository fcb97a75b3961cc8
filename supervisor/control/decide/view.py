"""A supervisor's view of etcd and of the agents' beats, from which it takes its snapshots.

The mirror's changes are folded in one by one. Records are kept by the job or node that they are about, so
that a change costs what that job or node is large, however many others there are: the state of each is made
again only after a change to its own records, and snapshots share it until then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from supervisor.contract import codec, keys
from supervisor.contract.boundaries import KeyDeleted, KeyValue
from supervisor.contract.checkpoint import CommitHead
from supervisor.contract.code import ShippedCode
from supervisor.contract.containment import contained, place_of, told
from supervisor.contract.desired import (
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
    Plan,
)
from supervisor.contract.errors import IncompatibleRecord, NewerRelease
from supervisor.contract.incident import Event
from supervisor.contract.job.goodput import Goodput
from supervisor.contract.job.pause import Pause
from supervisor.contract.job.spec import JobIntent, JobRecord
from supervisor.contract.observed import (
    Appeal,
    AttemptReport,
    GpuReport,
    Incarnation,
)
from supervisor.contract.pool.record import PoolRecord
from supervisor.contract.promise import Word
from supervisor.contract.timing import Timing
from supervisor.control.decide.rest.news import is_news, settled
from supervisor.control.decide.set_aside import Aside, Left, aside
from supervisor.control.decide.snapshot import (
    BRAKE,
    BeatSeen,
    BrakeSettings,
    JobState,
    NodeState,
    Snapshot,
    Versioned,
)

K = TypeVar("K")
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
OWN = frozenset({keys.LEADER, keys.CLUSTER, keys.CLAIMS, keys.TIME})
"""Records that the daemon cannot go on without."""

_PARTS: Mapping[str, tuple[str, Callable[[Any], object]]] = {
    "plans": ("plans/", lambda record: record.plan_id),
    "specs": ("specs/", lambda record: record.plan_id),
    "assignments": ("assignments/", lambda record: (record.plan_id, f"{record.role}.{record.index}")),
    "prepared": ("prepared/", lambda record: (record.plan_id, f"{record.role}.{record.index}")),
    "staged": ("staged/", lambda record: (record.plan_id, record.node)),
    "attempts": ("attempts/", lambda record: record.attempt),
    "commits": ("commits/", lambda record: record.ref),
    "incidents": ("incidents/", lambda record: record.id),
    "spares": ("spares/", lambda record: record.node),
}
"""The mappings of a job's state: the family of the records, and the name of each."""

_STRAYS = "strays"
_NO_WORD = Word("")
_Records = dict[str, Versioned[object]]


class View:
    """The fold of all changes so far. Not shared between threads; holds nothing that etcd does not.

    Attributes:
        brake: the settings that the next snapshot has; they may be replaced.
    """

    def __init__(self, timing: Timing, brake: BrakeSettings = BRAKE) -> None:
        self._timing = timing
        self.brake = brake
        self._held: dict[str, _Records] = {family.prefix: {} for family in keys.FAMILIES}
        self._about_jobs: defaultdict[str, dict[str, _Records]] = defaultdict(dict)
        """Job -> prefix of a family -> the records of that family about the job, by key."""
        self._about_nodes: defaultdict[str, dict[str, _Records]] = defaultdict(dict)
        self._beats: dict[str, dict[str, BeatSeen]] = {}
        self._nodes: dict[str, NodeState] = {}
        self._jobs: dict[str, JobState] = {}
        self._aside: dict[str, Aside] = {}
        self._nodes_aside: dict[str, Left] = {}
        self._whole: dict[str, object] = {}
        """Prefix of a family -> all of its records as a snapshot has them; without those that changed."""
        self._changed_jobs: defaultdict[str, set[str]] = defaultdict(set)
        """Job -> prefixes of the families of which a record about it has changed."""
        self._changed_nodes: set[str] = set()
        self._beaten: dict[str, NodeState] = {}
        """Nodes of whose records none has changed since the last snapshot, and that have beaten."""
        self._news = 0
        self.unreadable: dict[str, str] = {}
        """Key -> the reason why its record cannot be read. No rule decides on the job or node of such a
        record."""
        self.revision = 0
        self._read_ms: int | None = None

    def apply(self, changes: Iterable[KeyValue | KeyDeleted], revision: int, now_ms: int) -> None:
        """Fold in what the mirror delivered.

        Raises NewerRelease for a record that leaders alone write, of a newer release, and IncompatibleRecord
        for one of this supervisor's own that cannot be read. Any other such record, also one of an agent's
        newer release, is set aside, with the job or node that it is about.
        """
        for change in changes:
            family = keys.known_family(change.key)
            if family is None:
                continue  # a newer release's: nothing here depends on it
            if isinstance(change, KeyDeleted):
                self.unreadable.pop(change.key, None)
                self._drop(family, change.key)
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
            size, revisions = len(change.value), (change.create_revision, change.mod_revision)
            held = Versioned(change.key, value, *revisions, now_ms, created_ms, size)
            self._keep(family, held)
        self.revision = max(self.revision, revision)
        if self._read_ms is None:
            self._read_ms = now_ms

    def _read(self, family: keys.Family, change: KeyValue) -> object | None:
        """The record; None for one that cannot be read, of which nothing is held any more."""

        def tell(error: Exception) -> None:
            of_leaders = family.writer is keys.Writer.LEADER
            if family.prefix in OWN or (of_leaders and isinstance(error, NewerRelease)):
                raise error
            why = str(error) if isinstance(error, IncompatibleRecord) else told(error)
            self.unreadable[change.key] = f"record {change.key[:MAX_KEY]} cannot be read: {why}"[:MAX_WHY]
            self._drop(family, change.key)

        self.unreadable.pop(change.key, None)
        with contained(tell):
            found: object = codec.decode(family.record, change.value)
            if isinstance(found, JobRecord) and keys.job_record(found.spec.name) != change.key:
                raise IncompatibleRecord(f"it is of job {found.spec.name!r}")
            return found
        return None

    def _keep(self, family: keys.Family, held: Versioned[object]) -> None:
        before = self._held[family.prefix].get(held.key)
        if before is not None and isinstance(before.value, Event):
            self._drop(family, held.key)  # it may have been about another job
        self._held[family.prefix][held.key] = held
        about = self._changing(family, held.key, held)
        if about is not None:
            about.setdefault(family.prefix, {})[held.key] = held

    def _drop(self, family: keys.Family, key: str) -> None:
        held = self._held[family.prefix].pop(key, None)
        about = self._changing(family, key, held) if keys.is_well_formed(key) else None
        if about is not None:
            about.get(family.prefix, {}).pop(key, None)

    def _changing(
        self, family: keys.Family, key: str, held: Versioned[object] | None
    ) -> dict[str, _Records] | None:
        """The records about the job or node of a key that changes; None for a key about neither.

        An event names its job in its record, which is `held`.
        """
        job, node = keys.subject_of(key)
        if held is not None and isinstance(held.value, Event):
            job = held.value.job
        self._whole.pop(family.prefix, None)
        if family.prefix in ("jobs/", "deleted/") or keys.deleted(job) in self._held["deleted/"]:
            self._whole.pop(_STRAYS, None)
        if job:
            self._changed_jobs[job].add(family.prefix)
            return self._about_jobs[job]
        if node:
            self._changed_nodes.add(node)
            return self._about_nodes[node]
        return None

    def beat(self, node: str, incarnation: str, seen: BeatSeen) -> None:
        """Remember an incarnation's last beat; of very many of one node, those heard last.

        A beat counts for the node that sent it alone, also when it names another node's incarnation. An agent
        that makes up incarnations crowds out those of its own node only.
        """
        lives = self._beats.pop(node, {})
        before = lives.pop(incarnation, None)
        lives[incarnation] = settled(before, seen, self._timing) if before is not None else seen
        if len(lives) > MAX_LIVES:
            del lives[next(iter(lives))]
        self._beats[node] = lives
        self._fold_beat(node)
        if len(self._beats) > MAX_BEATS:
            crowded_out = next(iter(self._beats))
            del self._beats[crowded_out]
            self._changed_nodes.add(crowded_out)

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
        etcd_since_ms: int = 0,
        word: Word | None = None,
    ) -> Snapshot:
        """Freeze the present state."""
        self._fold_nodes()
        self._fold_jobs()
        return Snapshot(
            now_ms=now_ms,
            wall_ms=wall_ms,
            since_ms=since_ms,
            revision=self.revision,
            token=token,
            timing=self._timing,
            etcd_since_ms=etcd_since_ms,
            nodes=self._nodes,
            jobs=self._jobs,
            deleted=self._all("deleted/", DeletedJob, lambda held: held.value.job),
            strays=self._once(_STRAYS, lambda: tuple(self._strays())),
            aside=self._aside,
            nodes_aside=self._nodes_aside,
            pools=self._all("pools/", PoolRecord, lambda held: held.value.name),
            events=self._once("events/", self._events),
            codes=self._all("code/", ShippedCode, lambda held: held.value.digest),
            quarantines=self._all(
                "quarantines/", GpuQuarantine, lambda held: (held.value.node, held.value.uuid)
            ),
            claims=self.get(Claims, keys.CLAIMS),
            cluster=self.get(ClusterRecord, keys.CLUSTER),
            time=self.get(ClusterTime, keys.TIME),
            pause=self.get(Pause, keys.PAUSE),
            brake=self.brake,
            word=word or _NO_WORD,
            news=self._news,
            read_ms=self._read_ms or 0,
        )

    def _once(self, name: str, make: Callable[[], T]) -> T:
        """The result of `make`; many snapshots share it, until a record that it is made of changes."""
        if name not in self._whole:
            self._whole[name] = make()
        return cast("T", self._whole[name])

    def _all(
        self, prefix: str, _record: type[R], name: Callable[[Versioned[R]], K]
    ) -> Mapping[K, Versioned[R]]:
        """All records of a family, by name."""
        held = cast("list[Versioned[R]]", list(self._held[prefix].values()))
        return self._once(prefix, lambda: {name(each): each for each in held})

    def _events(self) -> tuple[Versioned[Event], ...]:
        held = self._held["events/"]
        return cast("tuple[Versioned[Event], ...]", tuple(held[key] for key in sorted(held)))

    def _strays(self) -> Iterator[Versioned[object]]:
        """Records about jobs that were deleted, and are not there again."""
        names = {keys.parse(key)[0] for key in self._held["deleted/"]}
        names -= {keys.parse(key)[0] for key in self._held["jobs/"]}
        for family in keys.FAMILIES if names else ():
            if family.prefix not in ("deleted/", "events/"):
                for name in sorted(names & self._about_jobs.keys()):
                    yield from self._about_jobs[name].get(family.prefix, {}).values()

    def _fold_nodes(self) -> None:
        """Make the changed nodes again. Earlier snapshots keep the mappings that they have."""
        if not self._changed_nodes and not self._beaten:
            return
        nodes, left = {**self._nodes, **self._beaten}, dict(self._nodes_aside)
        unreadable = self._unreadable_of("node")
        for name in self._changed_nodes:
            why = unreadable.get(name)
            _put(left, name, why)
            self._news += 1
            _put(nodes, name, self._node(name, is_aside=why is not None))
            _forget_empty(self._about_nodes, name)
        if nodes.keys() != self._nodes.keys():
            nodes = {name: nodes[name] for name in sorted(nodes)}
        # Whoever has read what is set aside reads it again only after a change.
        self._nodes, self._nodes_aside = nodes, left if left != self._nodes_aside else self._nodes_aside
        self._changed_nodes, self._beaten = set(), {}

    def _fold_beat(self, name: str) -> None:
        """Give a node its last beat, and note whether that is news."""
        before = self._beaten.get(name) or self._nodes.get(name)
        if before is None or name in self._changed_nodes:
            return
        state = self._with_beats(before)
        if state.heard_before_ms != before.heard_before_ms or is_news(before.beat, state.beat, self._timing):
            self._news += 1
            state = replace(state, news=self._news)
        self._beaten[name] = state

    def _fold_jobs(self) -> None:
        """Make the changed jobs again; set aside those of which a record cannot be read, or that make no
        state.
        """
        if not self._changed_jobs:
            return
        jobs, left = dict(self._jobs), dict(self._aside)
        unreadable = self._unreadable_of("job")
        for name in self._changed_jobs:
            state, why = None, unreadable.get(name)
            errors: list[Exception] = []
            with contained(errors.append):
                state = self._job(name) if why is None else None
            if errors:
                why = Left(told(errors[0]), place_of(errors[0]))
            _put(jobs, name, state)
            _put(left, name, self._set_aside(name, why) if why is not None else None)
            _forget_empty(self._about_jobs, name)
        self._jobs, self._aside = jobs, left if left != self._aside else self._aside
        self._changed_jobs.clear()

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

    def _events_of(self, record: Versioned[JobRecord], name: str) -> tuple[Versioned[Event], ...]:
        """The events about a job, oldest first. Those of a deleted job of this name are about another one."""
        found = self._of_job("events/", Event, name)
        own = [held for held in found if held.create_revision >= record.create_revision]
        return tuple(sorted(own, key=lambda held: held.key))

    def _of_job(self, prefix: str, record: type[R], name: str) -> list[Versioned[R]]:
        return _of(self._about_jobs, prefix, record, name)

    def _of_node(self, prefix: str, record: type[R], name: str) -> list[Versioned[R]]:
        return _of(self._about_nodes, prefix, record, name)

    def _node(self, name: str, *, is_aside: bool) -> NodeState | None:
        """A node's state; None for one that is not registered, and of which nothing was declared."""
        incarnation = self.get(Incarnation, keys.node(name))
        cordon = self.get(Cordon, keys.cordon(name))
        state = NodeState(
            node=name,
            incarnation=incarnation,
            marks={held.value.incarnation: held for held in self._of_node("lost/", LostMark, name)},
            appeals={held.value.incarnation: held for held in self._of_node("appeals/", Appeal, name)},
            cordon_record=cordon,
            beat=None,
            gpus=self.get(GpuReport, keys.gpus(name)),
            pardon=self.get(Pardon, keys.pardon(name)),
            news=self._news,
        )
        known = incarnation or state.marks or state.appeals or state.cordon or is_aside
        return self._with_beats(state) if known else None

    def _with_beats(self, state: NodeState) -> NodeState:
        if state.incarnation is None:
            return state
        life, lives = state.incarnation.value, self._beats.get(state.node, {})
        before = [lives[each].received_ms for each in life.succeeds if each in lives]
        heard_before_ms = max(before, default=None)
        # Not `replace`, which takes longer than all else that a beat costs.
        return NodeState(
            node=state.node,
            incarnation=state.incarnation,
            marks=state.marks,
            appeals=state.appeals,
            cordon_record=state.cordon_record,
            beat=lives.get(life.incarnation),
            gpus=state.gpus,
            pardon=state.pardon,
            heard_before_ms=heard_before_ms,
            news=state.news,
        )

    def _job(self, name: str) -> JobState | None:
        """A job's state; None until all of its records are there."""
        record = self.get(JobRecord, keys.job_record(name))
        intent = self.get(JobIntent, keys.intent(name))
        switch = self.get(JobSwitch, keys.switch(name))
        if record is None or intent is None or switch is None:
            return None
        before, changed, about = self._jobs.get(name), self._changed_jobs[name], self._about_jobs[name]
        parts: dict[str, Any] = {
            part: getattr(before, part)
            if before is not None and prefix not in changed
            else {name_of(held.value): held for held in about.get(prefix, {}).values()}
            for part, (prefix, name_of) in _PARTS.items()
        }
        return JobState(
            name=name,
            record=record,
            intent=intent,
            switch=switch,
            head=self.get(CommitHead, keys.head(name)),
            **parts,
            events=self._events_of(record, name),
            goodput=self.get(Goodput, keys.goodput_of(name)),
        )


def _of(
    about: Mapping[str, Mapping[str, _Records]], prefix: str, _record: type[R], name: str
) -> list[Versioned[R]]:
    return cast("list[Versioned[R]]", list(about.get(name, {}).get(prefix, {}).values()))


def _put(found: dict[str, T], name: str, value: T | None) -> None:
    """Keep a value under its name; None takes the name away."""
    if value is None:
        found.pop(name, None)
    else:
        found[name] = value


def _forget_empty(about: dict[str, dict[str, _Records]], name: str) -> None:
    if name in about and not any(about[name].values()):
        del about[name]
