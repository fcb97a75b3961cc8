"""etcd as it was at any revision, replayed from the recorded changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from chaos.history.formats import BASE, CUT, DELETE, EtcdLine
from chaos.history.lines import NotReadable, parse
from chaos.history.records import (
    COMMITTED,
    Assignment,
    Cluster,
    Commit,
    Incarnation,
    Incident,
    Intent,
    Mark,
    Plan,
    Ref,
    Report,
    Switch,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Held:
    """A key's value, the revisions that made and last wrote it, how often it was, and when the last time."""

    value: str
    created: int
    modified: int
    version: int
    at_ms: float
    after_ms: float


@dataclass(frozen=True, slots=True)
class Moment:
    """All changes of one revision: one transaction. It happened after `after_ms`, and not after `at_ms`."""

    revision: int
    after_ms: float
    at_ms: float
    changes: tuple[EtcdLine, ...]

    @property
    def live(self) -> bool:
        """It happened while the recording ran, so that its times mean something."""
        return self.after_ms >= 0

    def put(self, prefix: str) -> Iterator[EtcdLine]:
        """The keys that it wrote."""
        return (each for each in self.changes if each.kind != DELETE and each.key.startswith(prefix))

    def deleted(self, prefix: str) -> Iterator[EtcdLine]:
        """The keys that it removed."""
        return (each for each in self.changes if each.kind == DELETE and each.key.startswith(prefix))


class State:
    """Keys and values between two revisions. The typed readers return None for a key that is not there."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self._read: dict[tuple[str, int], object] = {}

    def apply(self, moment: Moment) -> None:
        """Go on to after a revision."""
        for change in moment.changes:
            self.held.pop(change.key, None)
            if change.kind != DELETE:
                self.held[change.key] = Held(
                    change.value,
                    change.created,
                    change.revision,
                    change.version,
                    moment.at_ms,
                    moment.after_ms,
                )

    def get(self, kind: type[T], key: str) -> T | None:
        """A record, read once for each of its revisions. Raises NotReadable."""
        held = self.held.get(key)
        if held is None:
            return None
        known = self._read.get((key, held.modified))
        if not isinstance(known, kind):
            known = record(kind, key, held.value)
            self._read[(key, held.modified)] = known
        return known

    def all(self, kind: type[T], prefix: str) -> list[T]:
        """Every record below a prefix, by key."""
        found = (self.get(kind, key) for key in sorted(self.held) if key.startswith(prefix))
        return [each for each in found if each is not None]

    def switch(self, job: str) -> Switch | None:
        """A job's switch."""
        return self.get(Switch, f"switches/{job}")

    def intent(self, job: str) -> Intent | None:
        """The operator's intent for a job; None without a record."""
        return self.get(Intent, f"intents/{job}")

    def plan(self, job: str, plan_id: str) -> Plan | None:
        """One of its plans."""
        return self.get(Plan, f"plans/{job}/{plan_id}")

    def incarnation(self, node: str) -> Incarnation | None:
        """The incarnation that is registered for a node; None without one."""
        return self.get(Incarnation, f"nodes/{node}")

    def mark(self, node: str, incarnation: str) -> Mark | None:
        """The lost mark of an incarnation."""
        return self.get(Mark, f"lost/{node}/{incarnation}")

    def assignments(self, job: str, plan_id: str) -> list[Assignment]:
        """The assignments of a plan."""
        return [
            each
            for each in self.all(Assignment, "assignments/")
            if (each.job, each.plan_id) == (job, plan_id)
        ]

    def reports(self, job: str) -> list[Report]:
        """The agents' reports on a job's attempts."""
        return self.all(Report, f"attempts/{job}/")

    def incidents(self, job: str) -> list[Incident]:
        """Its failures."""
        return self.all(Incident, f"incidents/{job}/")

    def commits(self, job: str) -> list[Commit]:
        """Its checkpoints."""
        return self.all(Commit, f"commits/{job}/")

    @property
    def d_ms(self) -> int:
        """The cluster's D; the largest that any agent runs under, if that is more; 0: unknown."""
        cluster = self.get(Cluster, "cluster")
        own = [each.d_ms for each in self.all(Incarnation, "nodes/")]
        return max([cluster.d_ms if cluster is not None else 0, *own])


def record(kind: type[T], key: str, value: str) -> T:
    """A record of the product. Raises NotReadable with the key in it."""
    try:
        return parse(kind, value)
    except NotReadable as error:
        raise NotReadable(f"{key}: {error}") from error


def moments(lines: Iterable[EtcdLine]) -> list[Moment]:
    """The changes by revision. The state at the start of the recording is one moment, the first."""
    base = [line for line in lines if line.kind == BASE]
    by_revision: dict[int, list[EtcdLine]] = {}
    for line in lines:
        if line.kind not in (BASE, CUT):
            by_revision.setdefault(line.revision, []).append(line)
    found = [
        Moment(revision, changes[0].after_ms, changes[0].at_ms, tuple(changes))
        for revision, changes in sorted(by_revision.items())
    ]
    if not base:
        return found
    return [Moment(min(line.revision for line in base), -1.0, base[0].at_ms, tuple(base)), *found]


def walk(all_moments: Iterable[Moment]) -> Iterator[tuple[Moment, State]]:
    """Each moment with the state before it. The state is one object that goes on as the iteration does."""
    state = State()
    for moment in all_moments:
        yield moment, state
        state.apply(moment)


def lineage(commits: Iterable[Commit], switch: Switch) -> list[Ref]:
    """Committed checkpoints that the generation in force descends from or made, newest first.

    All of this generation; then its base and what is older in the base's generation; then that generation's
    own base, which its commits name as their parent.
    """
    mine = {each.ref: each for each in commits if each.job_uuid == switch.job_uuid}
    found: list[Ref] = []
    generation, upto, base = switch.generation, Ref(switch.generation, 1 << 62), switch.base
    while True:
        family = sorted((ref for ref in mine if ref.generation == generation and ref <= upto), reverse=True)
        found += family
        if generation != switch.generation:
            base = mine[family[0]].parent if family else None
        if base is None or base.generation >= generation:
            return [ref for ref in found if mine[ref].state == COMMITTED]
        generation, upto = base.generation, base
