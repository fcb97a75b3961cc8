"""The end of a job that has failed, and what is kept of it for inspection.

A process that has ended cannot be kept. One that we would kill now (it hangs, prints NaN, is late, or its job
is out of time) is stopped where it is instead, for `limits.hold_on_failure`. It has no effect on a later
generation: it is stopped, nothing of an ended job is committed, its port stays held by its own launcher, and
all that ends an attempt (a start of the job, the dead-man's switch, its agent) ends it as ever.
"""

from __future__ import annotations

from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Cause
from supervisor.contract.observed import AttemptReport, AttemptState
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.facts.standing import Standing, standing
from supervisor.control.decide.jobs import incidents
from supervisor.control.decide.plan import Action, short, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot
from supervisor.control.decide.switch import Transition, turn

LAST_RESTART = "budget_low"
"""Kind of the event that tells that the next fault ends the job."""
HELD = frozenset({Cause.HANG, Cause.NAN_LOSS, Cause.NEVER_READY, Cause.WALL_TIME})
"""Causes of a job's end whose processes still run."""


def fail(snap: Snapshot, job: JobState, need: Need, reason: str, base: CheckpointRef | None = None) -> Action:
    """End the job as failed, and remove what was prepared for it.

    `base`: a checkpoint that a start is to find on the lineage again; None: the base stays as it is.
    """
    kept = _to_hold(snap, job, need)
    reason = "; ".join(filter(None, (short(need.detail), short(reason), _how_to_look(job, kept))))
    failed = turn(
        job.switch,
        Transition.FAIL,
        phase=JobPhase.FAILED,
        base=base or job.switch.value.base,
        closing=None,
        reason=reason,
        # The wish that led here is answered; only a later one starts the job again (rule 8).
        restart_serial=job.intent.value.restart_serial,
        held=tuple(report.attempt.task.member for report in kept),
        ledger=need.judgement.verdict.ledger,
    )
    return Action(
        kind="job_failed",
        job=job.name,
        text=f"job failed: {reason}",
        compares=(unchanged(job.switch), unchanged(job.intent)),
        ops=(
            failed,
            *incidents.failed(snap, job, need, reason),
        ),
        fields={"cause": need.cause.value, "rule": need.rule, "incident": need.incident},
    )


def warn(job: JobState) -> list[Action]:
    """An event when the next fault of the program ends the job; once for each restart that comes so far."""
    switch, allowed = job.switch.value, job.record.value.spec.restart.max_restarts
    if switch.phase is not JobPhase.RUNNING or not 0 < allowed <= switch.ledger.streak:
        return []
    about = f"{switch.restart_serial}-{switch.ledger.program}"
    if any(
        held.value.kind == LAST_RESTART and held.value.fields.get("about") == about for held in job.events
    ):
        return []
    text = (
        f"its restart budget is nearly used: {switch.ledger.streak} faults of the program in a row without "
    )
    text += "progress; the next one ends the job"
    fields = {"about": about, "allowed": str(allowed)}
    return [Action(LAST_RESTART, job.name, text, (unchanged(job.switch),), (), fields)]


def release(job: JobState) -> list[Action]:
    """Once nothing that was kept is left, the switch says so."""
    switch = job.switch.value
    if not switch.held or any(is_held(job, held.value) for held in job.attempts.values()):
        return []
    text = "what was kept of it for inspection has ended"
    ops = (turn(job.switch, Transition.END_HOLD, held=()),)
    return [Action("hold_over", job.name, text, (unchanged(job.switch),), ops)]


def is_held(job: JobState, report: AttemptReport) -> bool:
    """Whether this attempt is reported alive, and is to be kept."""
    switch = job.switch.value
    named = report.plan_id == switch.plan_id and report.attempt.task.member in switch.held
    return named and report.state is AttemptState.RUNNING


def _to_hold(snap: Snapshot, job: JobState, need: Need) -> tuple[AttemptReport, ...]:
    plan = job.plan_in_force
    if plan is None or need.cause not in HELD or not job.record.value.spec.limits.hold_on_failure_ms:
        return ()
    found = []
    for placement in plan.value.placements:
        report = job.report(placement, plan.value)
        accused = not need.member or placement.member == need.member
        if not accused or report is None or report.value.state is not AttemptState.RUNNING:
            continue
        if standing(snap, placement) is Standing.ALIVE:
            found.append(report.value)
    return tuple(found)


def _how_to_look(job: JobState, kept: tuple[AttemptReport, ...]) -> str:
    if not kept:
        return ""
    seconds = job.record.value.spec.limits.hold_on_failure_ms / 1000
    where = ", ".join(f"{each.attempt.task} (pid {each.pid} on {each.node})" for each in kept[:4])
    more = f" and {len(kept) - 4} more" if len(kept) > 4 else ""
    return (
        f"kept, stopped, for {seconds:g} s: {where}{more}; attach there with `gdb -p PID`, "
        f"end it with `supervisorctl stop {job.name}`"
    )
