"""The jobs and nodes that a look need not visit again. Pure.

Most jobs run and most nodes beat, and nothing has to be decided about them for seconds on end. A look that
finds nothing about one keeps what was read of the snapshot for that (`watched.Reads`). Until any of it
changes, the next look would find nothing again, and leaves it out. The decisions are the same as without
that. The simulator compares them, and every few seconds a look visits one job and one node that rest, in
turn, all the same.

Three kinds of jobs never rest, as they wait for progress, which is no news: those with an open incident,
those with a task that may hang, and those that come to their end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Outcome
from supervisor.control.decide.plan import Action, Decision
from supervisor.control.decide.rest.watched import NEVER, Fact, Reads, part_of, watch, whole_parts
from supervisor.control.decide.snapshot import JobState, NodeState, Snapshot

S = TypeVar("S")
T = TypeVar("T")

SAMPLE_MS = 2_000
UNHURRIED = frozenset({"straggler", "goodput"})
"""The kinds of what is only told or counted: at the next visit is soon enough."""


@dataclass(slots=True)
class Visit(Generic[S]):
    """A job or a node that a look turns to, or the cluster as a whole.

    Attributes:
        is_sample: it rests, and is visited to see whether it should.
        made: what was decided about it so far.
        seen: the snapshot that `of` was asked for last, without and with notes.
    """

    subject: S
    reads: Reads
    known: Rests
    is_sample: bool = False
    made: list[Decision] = field(default_factory=list)
    seen: tuple[Snapshot, Snapshot] | None = None

    def of(self, snap: Snapshot) -> Snapshot:
        """The snapshot in which the reads of this visit are noted."""
        if self.seen is None or self.seen[0] is not snap:
            self.seen = snap, watch(snap, self.reads, self.known)
        return self.seen[1]

    def found(self, decisions: Iterable[Decision]) -> Iterable[Decision]:
        """Note the decisions of a rule about it."""
        self.made += decisions
        return decisions


@dataclass(slots=True)
class _Rest:
    """The reads of a visit that found nothing to decide, or of a fact.

    `due_ms`: until then no answer about time changes. `epoch`: in which all else was compared last.
    """

    reads: Reads
    job: JobState | None = None
    due_ms: float = -math.inf
    epoch: int = -1


@dataclass(slots=True)
class _Known:
    """A fact about whole snapshots. `jobs`: those of the snapshot in which it was compared last."""

    value: object
    rest: _Rest
    jobs: Mapping[str, JobState]


class _At:
    """A snapshot without notes of what is read of it. `is_next`: it is the one that the look began with."""

    __slots__ = ("is_next", "jobs", "nodes", "now_ms", "snap")

    def __init__(self, snap: Snapshot, *, is_next: bool = False) -> None:
        self.snap, self.is_next = snap, is_next
        self.now_ms = cast("int", part_of(snap, "now_ms"))
        self.nodes = cast("Mapping[str, NodeState]", part_of(snap, "nodes"))
        self.jobs = cast("Mapping[str, JobState]", part_of(snap, "jobs"))


def _turn(job: JobState) -> tuple[int, int]:
    return -job.record.value.spec.priority, job.record.create_revision


def _turn_of(visit: Visit[JobState]) -> tuple[int, int]:
    return _turn(visit.subject)


def hurried(decisions: Iterable[Decision]) -> list[Decision]:
    """Those that no look may leave out."""
    return [each for each in decisions if not isinstance(each, Action) or each.kind not in UNHURRIED]


class Rests:
    """The memory of a leader from look to look. A new one knows of nothing that rests: all is visited."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Rest] = {}
        self._jobs: dict[str, _Rest] = {}
        self._cluster: dict[str, _Rest] = {}
        self._facts: dict[Fact, _Known] = {}
        self._whole: dict[str, object] = {}
        self._at: _At | None = None
        self._epoch = 0
        """The number of different snapshots so far, but for time and progress."""
        self._changed: set[str] = set()
        """The parts in which this one differs from the one before."""
        self._newer: set[str] = set()
        """The nodes of which there is news since."""
        self._sample, self._sampled_ms = 0, -SAMPLE_MS
        self._samples = False
        self.suspicious: set[str] = set()
        """Jobs with a task that may hang."""
        self.wrong: list[str] = []
        """Jobs and nodes that did not rest rightly: a sample found something to decide."""

    def begin(self, snap: Snapshot) -> None:
        """A look begins."""
        at, before = _At(snap, is_next=True), self._at
        whole = whole_parts(snap)
        changed = {name for name, part in whole.items() if _differs(part, self._whole.get(name))}
        if changed:
            self._epoch, self._changed, self._newer = self._epoch + 1, changed, set()
            if "news" in changed and before is not None:
                last = before.snap.news
                self._newer = {name for name, state in at.nodes.items() if state.news > last}
                self._newer |= before.nodes.keys() - at.nodes.keys()
            self._whole = whole
            _forget(self._nodes, at.nodes)
            _forget(self._jobs, at.jobs)
            self.suspicious &= at.jobs.keys()
        self._at = at
        self._samples = at.now_ms - self._sampled_ms >= SAMPLE_MS
        if self._samples:
            self._sample, self._sampled_ms = self._sample + 1, at.now_ms

    def cluster(self) -> list[Visit[str]]:
        """One visit, for what is decided about the cluster as a whole, if that does not rest."""
        at = self._begun()
        rest = self._cluster.get("")
        rests = rest is not None and self._rests(rest, at)
        return [] if rests else [Visit("", Reads(at.now_ms), self)]

    def nodes(self) -> list[Visit[NodeState]]:
        """The nodes that do not rest, and now and then one that does."""
        at, epoch = self._begun(), self._epoch
        now_ms, sample, visits = at.now_ms, self._sampled(len(at.nodes)), []
        for number, (name, picture) in enumerate(at.nodes.items()):
            rest = self._nodes.get(name)
            rests = rest is not None and (
                (rest.epoch == epoch and now_ms < rest.due_ms) or self._rests(rest, at)
            )
            if not rests or number == sample:
                visit = Visit(picture, Reads(now_ms), self, rests)
                visit.reads.nodes[name] = picture.news
                visits.append(visit)
        return visits

    def jobs(self) -> list[Visit[JobState]]:
        """The jobs that do not rest, and now and then one that does.

        The one of the highest priority comes first, and of equal ones the one that was submitted first.
        """
        at, epoch = self._begun(), self._epoch
        now_ms, sample, visits = at.now_ms, self._sampled(len(at.jobs)), []
        for number, (name, job) in enumerate(at.jobs.items()):
            rest = self._jobs.get(name)
            rests = (
                rest is not None
                and rest.job is job
                and ((rest.epoch == epoch and now_ms < rest.due_ms) or self._rests(rest, at))
            )
            if not rests or number == sample:
                visits.append(Visit(job, Reads(now_ms), self, rests))
        return sorted(visits, key=_turn_of)

    def _begun(self) -> _At:
        assert self._at is not None, "a look begins first"
        return self._at

    def _sampled(self, there: int) -> int:
        """The number of the one that is visited although it rests; -1 for none."""
        return self._sample % there if there and self._samples else -1

    def keep(
        self,
        cluster: Iterable[Visit[str]],
        nodes: Iterable[Visit[NodeState]],
        jobs: Iterable[Visit[JobState]],
    ) -> None:
        """A look is over: what it found nothing about rests."""
        for visit in cluster:
            _settle(self._cluster, visit.subject, visit)
        for about in nodes:
            self._judge(about, f"node {about.subject.node}")
            _settle(self._nodes, about.subject.node, about)
        for each in jobs:
            self._judge(each, f"job {each.subject.name}")
            _settle(self._jobs, each.subject.name, each, each.subject)

    def _judge(self, visit: Visit[S], name: str) -> None:
        if visit.is_sample and hurried(visit.made):
            self.wrong.append(name)

    def suspect(self, visit: Visit[JobState], *, suspected: bool) -> None:
        """Whether a task of a visited job may hang."""
        job = visit.subject
        self.suspicious = self.suspicious | {job.name} if suspected else self.suspicious - {job.name}
        is_hurt = any(held.value.outcome is Outcome.OPEN for held in job.incidents.values())
        if suspected or is_hurt or job.switch.value.phase in (JobPhase.FINISHING, JobPhase.STOPPING):
            visit.reads.hold(0)

    def disturbed(self, left: list[Visit[JobState]], snap: Snapshot, by: JobState) -> list[Visit[JobState]]:
        """The visits that are left after a plan was made: also to jobs that have read what it changes."""
        at, turn = _At(snap), _turn(by)
        there = {visit.subject.name: visit for visit in left}
        for name, job in at.jobs.items():
            rest, visit = self._jobs.get(name), there.get(name)
            if rest is None or _turn(job) <= turn or not self._reads_jobs(rest.reads):
                continue
            if visit is not None:
                visit.is_sample = visit.is_sample and self._rests(rest, at)
            elif not self._rests(rest, at):
                left.append(Visit(job, Reads(at.now_ms), self))
        return sorted(left, key=_turn_of)

    def _reads_jobs(self, reads: Reads) -> bool:
        return "jobs" in reads.whole or any(
            self._reads_jobs(self._facts[fact].rest.reads) for fact in reads.facts if fact in self._facts
        )

    def of(self, fact: Callable[[Snapshot], T], snap: Snapshot) -> T:
        """A fact about a snapshot: the same object for as long as it is equal."""
        return self._fact(fact, _At(snap))

    def _fact(self, fact: Callable[[Snapshot], T], at: _At) -> T:
        known = self._facts.get(fact)
        if known is not None:
            rest = known.rest
            same = rest.epoch == self._epoch and known.jobs is at.jobs and at.now_ms < rest.due_ms
            if same or self._rests(rest, at):
                known.jobs = at.jobs
                return cast("T", known.value)
        reads = Reads(at.now_ms)
        value: object = fact(watch(at.snap, reads, self))
        if known is not None and known.value == value:
            value = known.value
        made = self._facts[fact] = _Known(value, _Rest(reads), at.jobs)
        self._rests(made.rest, at)
        return cast("T", value)

    def _rests(self, rest: _Rest, at: _At) -> bool:
        """Whether all that was read is still so."""
        reads, now_ms = rest.reads, at.now_ms
        if now_ms >= reads.until_ms:
            return False
        if at.is_next and rest.epoch == self._epoch - 1:
            if not self._changed.isdisjoint(reads.whole) or not self._newer.isdisjoint(reads.nodes):
                return False
        elif not _is_same(reads, at):
            return False
        due_ms = reads.until_ms
        for name, patience_ms in reads.patience_ms.items():
            beat = at.nodes[name].beat
            due_ms = min(due_ms, beat.received_ms + patience_ms) if beat is not None else -math.inf
        for fact, value in reads.facts.items():
            if self._fact(fact, at) is not value:
                return False
            due_ms = min(due_ms, self._facts[fact].rest.due_ms)
        # Reads of a snapshot with plans of this look are compared part by part the next time.
        rest.due_ms, rest.epoch = due_ms, self._epoch if at.jobs is self._begun().jobs else -1
        return now_ms < due_ms


def _is_same(reads: Reads, at: _At) -> bool:
    """Whether what was read is there again, but for time and facts."""
    if any(_differs(part_of(at.snap, name), value) for name, value in reads.whole.items()):
        return False
    for name, news in reads.nodes.items():
        state = at.nodes.get(name)
        if (state.news if state is not None else NEVER) != news:
            return False
    return True


def _settle(rests: dict[S, _Rest], name: S, visit: Visit[T], job: JobState | None = None) -> None:
    if not visit.made:
        rests[name] = _Rest(visit.reads, job)
    else:
        rests.pop(name, None)


def _forget(rests: dict[str, _Rest], there: Mapping[str, object]) -> None:
    if len(rests) > len(there):
        for name in rests.keys() - there.keys():
            del rests[name]


def _differs(one: object, other: object) -> bool:
    """Whether a part of a snapshot has changed. Mappings are made anew then."""
    return one is not other and (type(one) is not int or one != other)
