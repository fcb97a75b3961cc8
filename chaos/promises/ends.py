"""The end of a run: wanted jobs run, and ended ones have left nothing."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.history.formats import StepLine
from chaos.history.history import History
from chaos.history.lives import FOREVER, Life
from chaos.history.past import State, record
from chaos.history.records import Assignment, Intent, Switch
from chaos.promises.violation import Broken

SAMPLE_MS = 250
STEPPING_MS = 3_000
"""A task that trains makes a step in so long, unless the machine is much too busy for what runs on it."""


def converges(history: History) -> Iterator[Broken]:
    """After the last fault heals, desired equals actual within a bound."""
    run = history.run
    if not run.job or run.healed_ms < 0 or run.bound_ms < 0:
        return
    until_ms = min(run.healed_ms + run.bound_ms, history.ended_ms, _stopped_ms(history))
    why = ""
    for at_ms in _looks(max(run.healed_ms, run.converged_ms - 10 * SAMPLE_MS), until_ms):
        why = unlike(history, run.job, at_ms)
        if not why:
            return
    yield Broken(f"{run.job}, {until_ms - run.healed_ms:.0f} ms after the last heal: {why}", until_ms)


def _looks(begin_ms: float, until_ms: float) -> Iterator[float]:
    """The times at which to look; the last one always, as a run may end as soon as its job is well."""
    while begin_ms < until_ms:
        yield begin_ms
        begin_ms += SAMPLE_MS
    yield until_ms


def _stopped_ms(history: History) -> float:
    """The time at which the run itself had the job stopped, once it had seen enough."""
    key = f"intents/{history.run.job}"
    enough_ms = max(history.run.healed_ms, history.run.converged_ms)
    for moment in history.moments:
        for line in moment.put(key):
            late = moment.at_ms > enough_ms
            if line.key == key and late and record(Intent, key, line.value).wanted == "stop":
                return max(moment.after_ms, enough_ms)
    return FOREVER


def unlike(history: History, job: str, at_ms: float) -> str:
    """The difference between the tasks that run and those that etcd wants at a time; empty if none."""
    state = history.state_at(at_ms)
    switch = state.switch(job)
    if switch is None:
        return "it has no switch"
    ours = {
        life.attempt: life
        for life in history.lives
        if life.attempt.startswith(f"{job}/") and not life.launcher and life.born_ms <= at_ms < life.gone_ms
    }
    if switch.ended:
        ends = {end for fault in history.run.faults for end in fault.expects.ends}
        if switch.phase not in ends:
            return f"it is {switch.phase}: {switch.reason}"
        alive = [attempt for attempt, life in ours.items() if life.alive_at(at_ms)]
        return f"it is {switch.phase}, and {alive[0]} is alive" if alive else ""
    if switch.phase != "running" or switch.closing is not None:
        return f"it is {switch.phase}{', and closing' if switch.closing is not None else ''}"
    return _different(history, state, switch, ours, at_ms)


def _different(history: History, state: State, switch: Switch, ours: dict[str, Life], at_ms: float) -> str:
    """Between two looks of the recording nobody knows: what is wanted may run then, what is not may not."""
    wanted = state.assignments(switch.job, switch.plan_id)
    plan = state.plan(switch.job, switch.plan_id)
    if plan is None or len(wanted) != len(plan.placements):
        return "its plan or an assignment is gone"
    for each in wanted:
        life = ours.pop(each.attempt_id, None)
        if life is None or not life.may_run_at(at_ms):
            return f"{each.attempt_id} does not run"
        if life.node != each.node:
            return f"{each.attempt_id} runs on {life.node} instead of {each.node}"
        if _trains(history, each) and not _stepped(history, each.attempt_id, at_ms):
            return f"{each.attempt_id} does not step"
    alive = [attempt for attempt, life in ours.items() if life.alive_at(at_ms)]
    return f"{alive[0]} is alive, and nobody wants it" if alive else ""


def _trains(history: History, each: Assignment) -> bool:
    role = f"{each.job}/{each.role}:"
    return any(line.kind == "step" and line.attempt.startswith(role) for line in history.steps)


def _stepped(history: History, attempt: str, at_ms: float) -> bool:
    made: list[StepLine] = [
        line
        for line in history.steps
        if line.attempt == attempt
        and line.kind == "step"
        and at_ms - STEPPING_MS * history.run.patience <= line.at_ms <= at_ms + SAMPLE_MS
    ]
    return bool(made)


def nothing_is_left(history: History) -> Iterator[Broken]:
    """A job leaves no process, container, GPU, port, lease, directory or record behind."""
    for left in history.left:
        where = f" on {left.node}" if left.node else ""
        yield Broken(f"{left.kind}{where}: {left.what}", left.at_ms)
    final = history.final()
    for job in history.jobs():
        switch = final.switch(job)
        if switch is not None and switch.ended:
            for key in _records_left(final, job, switch):
                yield Broken(f"record: {key}", history.ended_ms)


def _records_left(final: State, job: str, switch: Switch) -> Iterator[str]:
    """The plan that was last in force stays: it says whose tasks a later start may have to wait for."""
    for key in sorted(final.held):
        family, *rest = key.split("/")
        of_plan = family in ("plans", "specs", "prepared", "staged") and rest[0] == job
        if (of_plan or (family == "assignments" and rest[1] == job)) and switch.plan_id not in rest:
            yield key
        if family == "spares" and rest[-1] == job:
            yield key
    for report in final.reports(job):
        if report.state == "running":
            yield f"attempts: {report.attempt_id} is still reported as running"
    for incident in final.incidents(job):
        if incident.outcome == "open":
            yield f"incidents: {incident.id} is open though the job has ended"


def no_secret_is_told(history: History) -> Iterator[Broken]:
    """No secret anywhere: logs, command lines, events, incidents, files that others can read."""
    for leak in history.leaks:
        yield Broken(f"{leak.which} is in {leak.where}")
