"""The records of a run under load: restarts, starts of jobs, lost nodes, and whether each node has room.

Changes are taken in the order of etcd. After those of each revision no node may be overcommitted.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from supervisor.contract import codec, keys
from supervisor.contract.boundaries import KeyDeleted, KeyValue
from supervisor.contract.desired import Assignment, JobSwitch, LeaderRecord, LostMark, Plan
from supervisor.contract.job.spec import JobRecord
from supervisor.contract.observed import AttemptReport, AttemptState, ExitReason, Incarnation

T = TypeVar("T")
SLACK = 1e-6
Room = tuple[float, int]
"""CPUs and bytes of memory."""


@dataclass(slots=True)
class Kill:
    """A kill of the attempt of this generation and number, and when etcd has shown each step of what follows.

    Times are of `time.monotonic`; -1: not yet.
    """

    job: str
    member: str
    version: tuple[int, int]
    at_s: float
    reported_s: float = -1.0
    ordered_s: float = -1.0
    running_s: float = -1.0


@dataclass(slots=True)
class Start:
    """A submitted job, and when etcd has shown that all its tasks are prepared, and that all run."""

    at_s: float
    tasks: int
    prepared_s: float = -1.0
    running_s: float = -1.0


@dataclass(slots=True, eq=False)
class LoadRecords:
    """The records of a cluster under load.

    `elections`: supervisors in the order in which they came to lead, and when. `overcommitted`: sentences.
    `lost`: when each node was marked lost, and why. `ended`: the node of each attempt that has ended and that
    nobody killed, and what ended it.
    """

    kills: list[Kill] = field(default_factory=list)
    starts: dict[str, Start] = field(default_factory=dict)
    elections: list[tuple[str, float]] = field(default_factory=list)
    overcommitted: list[str] = field(default_factory=list)
    lost: dict[str, tuple[float, str]] = field(default_factory=dict)
    ended: list[tuple[str, str]] = field(default_factory=list)
    checks: int = 0
    fullest: float = 0.0
    nodes: dict[str, Incarnation] = field(default_factory=dict)
    orders: dict[tuple[str, str], Assignment] = field(default_factory=dict)
    attempts: dict[str, dict[str, AttemptReport]] = field(default_factory=dict)
    _killed: dict[tuple[str, str], Kill] = field(default_factory=dict)
    """The last kill of each task."""
    _asks: dict[str, dict[str, Room]] = field(default_factory=dict)
    _plans: dict[str, dict[str, Plan]] = field(default_factory=dict)
    _switches: dict[str, JobSwitch] = field(default_factory=dict)
    _prepared: dict[str, set[str]] = field(default_factory=dict)
    _shares: dict[str, dict[str, Room]] = field(default_factory=dict)
    _taken: dict[str, dict[str, Room]] = field(default_factory=dict)
    """By node, the share of each job."""

    def take(self, changes: Sequence[KeyValue | KeyDeleted], now_s: float) -> None:
        """Take in a batch of a watch, which came at `now_s`."""
        for _, group in itertools.groupby(changes, lambda each: each.mod_revision):
            jobs: set[str] = set()
            for change in group:
                jobs.update(self._take(change, now_s))
            self._check(jobs)

    def killed(self, report: AttemptReport, now_s: float) -> Kill:
        """Note that an attempt is about to be killed."""
        member = report.attempt.task.member
        kill = Kill(report.job, member, (report.generation, report.number), now_s)
        self.kills.append(kill)
        self._killed[report.job, member] = kill
        return kill

    def submitted(self, job: str, now_s: float, tasks: int) -> None:
        """Note that a job is about to be submitted."""
        self.starts[job] = Start(now_s, tasks)

    def knows(self, job: str) -> bool:
        """Whether a job of this name is recorded."""
        return job in self._switches

    def summary(self) -> str:
        """The progress of the run, for people."""
        running = sum(each.running_s >= 0 for each in self.starts.values())
        open_kills = [f"{each.job} {each.member}" for each in self.kills if each.running_s < 0]
        jobs = f"{running} of {len(self.starts)} jobs have run"
        return f"{len(self.nodes)} nodes, {jobs}, not restarted: {open_kills[:5]}"

    def on(self, nodes: Sequence[str]) -> set[tuple[str, str]]:
        """The tasks that run on these nodes: job and member."""
        return {
            (each.job, each.attempt.task.member)
            for reports in self.attempts.values()
            for each in reports.values()
            if each.node in nodes and each.state is AttemptState.RUNNING
        }

    def run_elsewhere(self, tasks: Iterable[tuple[str, str]], nodes: Sequence[str]) -> bool:
        """Whether each of these tasks runs on another node."""
        return all(
            any(
                each.attempt.task.member == member
                and each.state is AttemptState.RUNNING
                and each.node not in nodes
                for each in self.attempts.get(job, {}).values()
            )
            for job, member in tasks
        )

    def victims(self, gone: Collection[str]) -> list[AttemptReport]:
        """A worker of each job that runs on a node that is not `gone`."""
        found = []
        for reports in self.attempts.values():
            for each in reports.values():
                if each.role == "worker" and each.state is AttemptState.RUNNING and each.node not in gone:
                    found.append(each)
                    break
        return found

    def _take(self, change: KeyValue | KeyDeleted, now_s: float) -> Iterable[str]:
        """Take in one change; returns the jobs whose shares it may change."""
        family = keys.known_family(change.key)
        parts = keys.parse(change.key)
        match family.prefix if family is not None else "":
            case keys.LEADER if isinstance(change, KeyValue):
                self.elections.append((codec.decode(LeaderRecord, change.value).supervisor, now_s))
            case "nodes/":
                _put(self.nodes, parts[0], Incarnation, change)
                return list(self._taken.get(parts[0], ()))
            case "lost/" if isinstance(change, KeyValue):
                reason = codec.decode(LostMark, change.value).reason
                self.lost.setdefault(parts[0], (now_s, reason))
            case "jobs/" if isinstance(change, KeyValue):
                spec = codec.decode(JobRecord, change.value).spec
                self._asks[spec.name] = {
                    each.name: (each.resources.cpus, each.resources.memory_bytes) for each in spec.roles
                }
            case "plans/":
                _put(self._plans.setdefault(parts[0], {}), parts[1], Plan, change)
                return parts[:1]
            case "switches/":
                _put(self._switches, parts[0], JobSwitch, change)
                return parts[:1]
            case "prepared/" if isinstance(change, KeyValue):
                self._prepare(parts, now_s)
            case "assignments/" if isinstance(change, KeyValue):
                self._order(codec.decode(Assignment, change.value), now_s)
            case "attempts/":
                self._report(parts, change, now_s)
                return parts[:1]
            case _:
                pass
        return ()

    def _prepare(self, parts: Sequence[str], now_s: float) -> None:
        job, _, member = parts
        start, ready = self.starts.get(job), self._prepared.setdefault(job, set())
        ready.add(member)
        if start is not None and start.prepared_s < 0 and len(ready) >= start.tasks:
            start.prepared_s = now_s

    def _order(self, order: Assignment, now_s: float) -> None:
        self.orders[order.job, order.task.member] = order
        kill = self._killed.get((order.job, order.task.member))
        if kill is not None and kill.ordered_s < 0 and (order.generation, order.attempt) > kill.version:
            kill.ordered_s = now_s

    def _report(self, parts: Sequence[str], change: KeyValue | KeyDeleted, now_s: float) -> None:
        job, member, attempt = parts
        reports = self.attempts.setdefault(job, {})
        before = reports.get(f"{member}/{attempt}")
        _put(reports, f"{member}/{attempt}", AttemptReport, change)
        report = reports.get(f"{member}/{attempt}")
        if report is None:
            return
        kill, start = self._killed.get((job, member)), self.starts.get(job)
        version = report.generation, report.number
        if report.state is AttemptState.RUNNING:
            if kill is not None and version > kill.version and kill.running_s < 0:
                kill.running_s = now_s
            running = {each.attempt.task for each in reports.values() if each.state is AttemptState.RUNNING}
            if start is not None and start.running_s < 0 and len(running) >= start.tasks:
                start.running_s = now_s
        elif kill is not None and version == kill.version:
            if kill.reported_s < 0 and report.confirmed_dead:
                kill.reported_s = now_s
        elif (before is None or before.exit is None) and _by_itself(report):
            self.ended.append((report.node, f"{report.attempt}: {report.exit and report.exit.reason.value}"))

    # Room.

    def _check(self, jobs: Iterable[str]) -> None:
        """Charge the nodes of these jobs anew, and compare each with what it offers."""
        touched: set[str] = set()
        for job in jobs:
            before, now = self._shares.get(job, {}), self._share(job)
            self._shares[job] = now
            for node in before.keys() - now.keys():
                del self._taken[node][job]
            for node, room in now.items():
                self._taken.setdefault(node, {})[job] = room
            touched.update(now)
        for node in touched:
            self._compare(node)

    def _compare(self, node: str) -> None:
        offer = self.nodes[node].resources
        taken = self._taken[node].values()
        cpus, memory = sum(each[0] for each in taken), sum(each[1] for each in taken)
        self.checks += 1
        self.fullest = max(self.fullest, cpus / offer.cpus)
        if cpus > offer.cpus + SLACK or memory > offer.memory_bytes:
            self.overcommitted.append(f"{node}: {cpus:g} CPUs of {offer.cpus:g}: {self._taken[node]}")

    def _share(self, job: str) -> dict[str, Room]:
        """The resources that a job takes of each node.

        Of its generations the one that takes most counts, as the next one takes over the room of the present
        one. An attempt takes its room until it is confirmed dead.
        """
        switch = self._switches.get(job)
        found: dict[str, dict[int, set[str]]] = {}
        for plan in self._plans.get(job, {}).values():
            if switch is None or (not switch.phase.ended and plan.generation >= switch.generation):
                for place in plan.placements:
                    if self._is_life(place.node, place.incarnation):
                        found.setdefault(place.node, {}).setdefault(plan.generation, set()).add(place.member)
        for report in self.attempts.get(job, {}).values():
            if not report.confirmed_dead and self._is_life(report.node, report.incarnation):
                members = found.setdefault(report.node, {}).setdefault(report.generation, set())
                members.add(report.attempt.task.member)
        return {node: self._most(job, generations.values()) for node, generations in found.items()}

    def _most(self, job: str, generations: Iterable[set[str]]) -> Room:
        asks = self._asks.get(job, {})
        rooms = [
            [asks.get(member.rpartition(".")[0], (0.0, 0)) for member in members] for members in generations
        ]
        return max(sum(each[0] for each in room) for room in rooms), max(
            sum(each[1] for each in room) for room in rooms
        )

    def _is_life(self, node: str, incarnation: str) -> bool:
        holder = self.nodes.get(node)
        return holder is not None and holder.acts_for(incarnation)


def _by_itself(report: AttemptReport) -> bool:
    """Whether an attempt was not killed: the leader kills those that it restarts together with others."""
    return report.exit is not None and report.exit.reason is not ExitReason.KILLED


def _put(records: dict[str, T], name: str, kind: type[T], change: KeyValue | KeyDeleted) -> None:
    if isinstance(change, KeyDeleted):
        records.pop(name, None)
    else:
        records[name] = codec.decode(kind, change.value)
