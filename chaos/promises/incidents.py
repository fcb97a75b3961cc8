"""Promises about incidents: each failure has one, with the right cause, durations and cost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from chaos.history.formats import FaultRecord, StepLine
from chaos.history.history import History
from chaos.history.past import Moment, State, record
from chaos.history.records import ASKED_FOR, PROGRAM_FAULTS, Incident, Switch
from chaos.promises.nodes import marks
from chaos.promises.violation import Broken

STOPWATCH_MS = 500
STOPWATCH_SHARE = 0.1
"""Tolerance of phases against the stopwatch: what was detected is told with the next beat (250 ms in the fast
profile), the first step is read from output that is looked at now and then; and a tenth for long ones."""

FAMILY_OF_TASKS, FAMILIES_OF_NODES = "task", ("node",)
_MEMBER = re.compile(r"[A-Za-z]\w*[.:]\d+")


@dataclass(frozen=True, slots=True)
class Opened:
    """An incident: when it was first written, and as it was at last."""

    incident: Incident
    after_ms: float
    at_ms: float


def opened(history: History, job: str) -> list[Opened]:
    """Failures of a job that were written down while it was recorded; not what operators asked for."""
    found: dict[str, Opened] = {}
    for moment, state in history.walk():
        for line in moment.put(f"incidents/{job}/"):
            incident = record(Incident, line.key, line.value)
            if line.key in found:
                found[line.key] = Opened(incident, found[line.key].after_ms, found[line.key].at_ms)
            elif line.key not in state.held and moment.live and incident.cause not in ASKED_FOR:
                found[line.key] = Opened(incident, moment.after_ms, moment.at_ms)
    return list(found.values())


def one_failure_one_incident(history: History) -> Iterator[Broken]:
    """One failure, one incident; and none without a failure."""
    for job in history.jobs():
        yield from _opened_again(history, job)
        found = opened(history, job)
        for each in found:
            if not history.faults_between(each.after_ms, each.at_ms):
                yield Broken(f"nothing was injected, and there is {_told(each.incident)}", each.at_ms)
        for group in _together(history.run.faults, history):
            yield from _count(group, found, history)


def _opened_again(history: History, job: str) -> Iterator[Broken]:
    ever: set[str] = set()
    ends: dict[tuple[str, int, int], str] = {}
    for moment, state in history.walk():
        for line in moment.put(f"incidents/{job}/"):
            incident = record(Incident, line.key, line.value)
            before = state.get(Incident, line.key)
            if before is None and line.key in ever and incident.cause not in ASKED_FOR:
                yield Broken(f"{_told(incident)} is opened a second time", moment.at_ms)
            if before is not None and before.outcome != "open" and before != incident:
                yield Broken(
                    f"{_told(incident)} was {before.outcome}, and has become {incident.outcome}", moment.at_ms
                )
            ever.add(line.key)
            end = (incident.member, incident.from_generation, incident.attempt)
            if incident.scope == "task" and incident.member and incident.attempt:
                other = ends.setdefault(end, line.key)
                if other != line.key:
                    yield Broken(f"{_told(incident)} is about the same restart as {other}", moment.at_ms)


def _together(faults: tuple[FaultRecord, ...], history: History) -> list[list[FaultRecord]]:
    """Faults whose consequences overlap in time are judged together."""
    groups: list[list[FaultRecord]] = []
    until_ms = float("-inf")
    for fault in sorted(faults, key=lambda each: each.begin_ms):
        if not groups or fault.begin_ms > until_ms:
            groups.append([])
        groups[-1].append(fault)
        until_ms = max(until_ms, history.until_ms(fault))
    return groups


def _count(group: list[FaultRecord], found: list[Opened], history: History) -> Iterator[Broken]:
    if any(fault.expects.incidents == "any" for fault in group):
        return
    allowed = sum(fault.expects.incidents == "one" for fault in group)
    until_ms = max(history.until_ms(fault) for fault in group)
    # A newer failure takes an older one's recovery along: the older one's record says so.
    made = [
        each
        for each in found
        if group[0].begin_ms <= each.at_ms
        and each.after_ms <= until_ms
        and each.incident.outcome != "superseded"
    ]
    if len(made) > allowed or (allowed == 1 == len(group) and not made):
        names = " and ".join(fault.name for fault in group)
        yield Broken(
            f"{names}: {len(made)} incidents where {allowed} {'is' if allowed == 1 else 'are'} due",
            made[-1].at_ms if made else group[0].begin_ms,
            tuple(_told(each.incident) for each in made),
        )


def reason_is_the_fault(history: History) -> Iterator[Broken]:
    """The reason given is the fault that was injected."""
    for job in history.jobs():
        for each in opened(history, job):
            faults = history.faults_between(each.after_ms, each.at_ms)
            if faults and all(fault.expects.causes for fault in faults):
                yield from _reason(history, each, faults)


def _reason(history: History, each: Opened, faults: list[FaultRecord]) -> Iterator[Broken]:
    incident = each.incident
    names = " and ".join(f"{fault.name} of {fault.target}" for fault in faults)
    causes = {cause for fault in faults for cause in fault.expects.causes}
    scopes = {scope for fault in faults for scope in fault.expects.scopes}
    if _came_back(history, each):
        return
    if incident.cause not in causes:
        yield Broken(f"{names}: the reason given is {incident.cause}: {incident.detail}", each.at_ms)
    elif all(fault.expects.scopes for fault in faults) and incident.scope not in scopes:
        yield Broken(f"{names}: {incident.scope} is restarted ({incident.rule})", each.at_ms)
    elif len(faults) == 1 and incident.outcome != "superseded":
        fault = faults[0]
        member = _MEMBER.fullmatch(fault.target) and fault.target.replace(":", ".")
        if fault.family == FAMILY_OF_TASKS and member and incident.member not in ("", member):
            yield Broken(f"{names}: {incident.member} is blamed: {incident.detail}", each.at_ms)
        # Who lost a peer tells of that at its own node.
        elsewhere = incident.cause != "peer_lost" and incident.node not in ("", *fault.target.split(","))
        if fault.family in FAMILIES_OF_NODES and elsewhere:
            yield Broken(f"{names}: {incident.node} is blamed: {incident.detail}", each.at_ms)


def _came_back(history: History, each: Opened) -> bool:
    """Its node was marked lost, and cleared before anything had taken the place of its tasks (rule 3): those
    that had ended by their deadline, or with their launcher, fail in the generation in force.
    """
    incident = each.incident
    if incident.cause not in ("deadline", "launcher_lost"):
        return False
    return any(mark.node == incident.node and mark.until_ms <= each.at_ms for mark in marks(history))


def phases_are_the_stopwatchs(history: History) -> Iterator[Broken]:
    """An incident's phases add up to the outside stopwatch."""
    for job in history.jobs():
        for each in opened(history, job):
            if each.incident.outcome != "recovered" or "first_step" not in each.incident.phases_ms:
                continue
            began = _began(history, each)
            if began is None:
                continue
            told = (
                ("the first new step", each.incident.to_first_step_ms, _stepped),
                ("all of it ran", each.incident.total_ms, _all_ran),
            )
            for what, told_ms, look in told if "all_running" in each.incident.phases_ms else told[:1]:
                end_ms = look(history, job, each.incident, began[0])
                if end_ms is not None:
                    yield from _stopwatch(history, each.incident, what, told_ms, began, end_ms)


def _stopwatch(
    history: History, incident: Incident, what: str, told_ms: int, began: tuple[float, float], end_ms: float
) -> Iterator[Broken]:
    """It began at some time between the two; where steps cannot be told of, its end is told at the heal."""
    hidden = [
        fault.heal_ms
        for fault in history.run.faults
        if fault.expects.hides_steps and fault.begin_ms <= end_ms <= fault.heal_ms
    ]
    longest, shortest = max([end_ms, *hidden]) - began[0], end_ms - began[1]
    slack_ms = (STOPWATCH_MS + STOPWATCH_SHARE * longest) * history.run.patience
    if not shortest - slack_ms <= told_ms <= longest + slack_ms:
        yield Broken(
            f"{_told(incident)}: its phases until {what} add up to {told_ms} ms, the stopwatch shows "
            f"{shortest:.0f} to {longest:.0f} ms",
            end_ms,
            tuple(f"{name}: {ms} ms" for name, ms in incident.phases_ms.items()),
        )


def _began(history: History, each: Opened) -> tuple[float, float] | None:
    """Between which times the failure really was. None where that cannot be told from outside."""
    incident = each.incident
    ended = [
        life.gone_ms
        for life in history.lives
        if not life.launcher
        and life.attempt.startswith(f"{incident.task}@{incident.from_generation}.")
        and life.gone_ms <= each.at_ms
    ]
    if incident.cause == "node_lost":
        faults = history.faults_between(each.after_ms, each.at_ms)
        times = [(fault.begin_ms, _lost_by(fault)) for fault in faults]
        return (min(begin for begin, _ in times), max(end for _, end in times)) if times else None
    return (max(ended), max(ended)) if ended and incident.cause in _DEATHS else None


def _lost_by(fault: FaultRecord) -> float:
    """The latest time at which a fault cost its node. The heal may do so too: it restarts an agent."""
    at_ms = fault.heal_ms if fault.expects.incidents == "any" else fault.in_force_ms
    return max(fault.begin_ms, fault.in_force_ms, at_ms)


_DEATHS = frozenset({"killed", "program_exit", "program_signal", "oom", "launcher_lost"})
"""Causes that are the end of a process; what hangs begins at a time that only the program knows."""


def _stepped(history: History, job: str, incident: Incident, from_ms: float) -> float | None:
    """The first new step of what was restarted."""
    if incident.scope == "task":
        whose = f"{job}/{incident.member.replace('.', ':')}@{incident.generation}.{incident.attempt}"
        steps = [line.at_ms for line in history.of_job(job) if line.attempt == whose]
    else:
        steps = [line.at_ms for line in _of_generation(history, job, incident, "step")]
    made = [at_ms for at_ms in steps if at_ms > from_ms]
    return min(made, default=None)


def _all_ran(history: History, job: str, incident: Incident, _: float) -> float | None:
    """The time at which the last task of the new generation came to its program."""
    began = [line.at_ms for line in _of_generation(history, job, incident, "start")]
    return max(began, default=None)


def _of_generation(history: History, job: str, incident: Incident, kind: str) -> list[StepLine]:
    """The lines of one kind that the first attempts of an incident's generation logged."""
    first = f"@{incident.generation}.1"
    return [line for line in history.of_job(job) if line.kind == kind and line.attempt.endswith(first)]


def budgets_are_kept(history: History) -> Iterator[Broken]:
    """Budgets survive a change of leader, and infrastructure does not burn them."""
    for job in history.jobs():
        burnt = 0
        for moment, state in history.walk():
            for line in moment.put(f"switches/{job}"):
                before, after = state.switch(job), record(Switch, line.key, line.value)
                if line.key != f"switches/{job}" or before is None or before.job_uuid != after.job_uuid:
                    continue
                if before.ended and not after.ended:
                    continue  # an operator has begun it anew
                yield from _charged(before, after, moment, state)
                burnt += max(0, after.ledger.program - before.ledger.program) if moment.live else 0
        allowed = sum(fault.program_faults for fault in history.run.faults)
        if history.run.job and burnt > allowed:
            yield Broken(f"{burnt} faults of the program are charged to {job}, {allowed} were injected")


def _charged(before: Switch, after: Switch, moment: Moment, state: State) -> Iterator[Broken]:
    program = after.ledger.program - before.ledger.program
    others = after.ledger.infrastructure - before.ledger.infrastructure
    if (program, others) not in ((0, 0), (0, 1), (1, 0)):
        yield Broken(
            f"revision {moment.revision}: the ledger goes from {before.ledger} to {after.ledger}",
            moment.at_ms,
        )
    if program != 1:
        return
    written = [record(Incident, line.key, line.value) for line in moment.put(f"incidents/{after.job}/")]
    held = [each for each in state.incidents(after.job) if each.id == after.incident]
    reasons = [each.cause for each in (written or held)]
    if reasons and not any(cause in PROGRAM_FAULTS for cause in reasons):
        yield Broken(
            f"revision {moment.revision}: {', '.join(reasons)} is charged to the program's budget",
            moment.at_ms,
        )


def _told(incident: Incident) -> str:
    whom = incident.task or incident.node or incident.job
    return f"incident {incident.id} ({incident.cause}, {whom}, {incident.rule}: {incident.detail})"
