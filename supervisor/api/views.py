"""From the leader's snapshot to the documents of the API. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from recovery.formats.lineage import on_lineage
from supervisor.contract import keys
from supervisor.contract.containment import contained, told
from supervisor.contract.desired import JobPhase, LeaderRecord, Placement, Plan
from supervisor.contract.errors import Conflict, nothing_named
from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Incident
from supervisor.contract.job.spec import JobRecord
from supervisor.contract.observed import MODEL_PUBLISHED, AttemptReport, Exit, TaskBeat
from supervisor.contract.views.jobs import (
    BudgetView,
    CheckpointList,
    CheckpointView,
    ClusterStatus,
    EventView,
    Explanation,
    IncidentView,
    JobView,
    SupervisorView,
    TaskView,
)
from supervisor.control.decide.assess.assess import assess
from supervisor.control.decide.assess.hanging import suspected
from supervisor.control.decide.assess.progress import slow_tasks
from supervisor.control.decide.assess.verdicts import standing_of
from supervisor.control.decide.checkpoints import cadence, saving
from supervisor.control.decide.checkpoints.advice import advice
from supervisor.control.decide.checkpoints.notices import notices_of
from supervisor.control.decide.facts import hold
from supervisor.control.decide.facts.history import job_step, newest_commit
from supervisor.control.decide.facts.standing import Standing, standing
from supervisor.control.decide.goodput import ledger
from supervisor.control.decide.jobs.failing import is_held
from supervisor.control.decide.reconcile import waiting_for
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned

TENSORBOARD = "tensorboard"


def cluster_status(
    snap: Snapshot, cluster: str, leader: LeaderRecord | None, jobs: Iterable[JobView]
) -> ClusterStatus:
    """The cluster with these jobs."""
    supervisors = (
        () if leader is None else (SupervisorView(leader.supervisor, leader.address, True, leader.pid),)
    )
    return ClusterStatus(
        cluster=cluster,
        profile=snap.timing.profile,
        d_ms=snap.timing.d_ms,
        supervisors=supervisors,
        jobs=tuple(jobs),
        paused=hold.held_cluster(snap),
        paused_wall_ms=hold.since_wall_ms(snap),
    )


def shown_jobs(snap: Snapshot, job: str = "") -> Iterator[JobView]:
    """Every job, or the one that is named, each made when it is asked for; raises NotFound."""
    for name in [job] if job else sorted({*snap.jobs, *snap.aside}):
        yield shown_job(snap, name)


def shown_job(snap: Snapshot, name: str) -> JobView:
    """A job by name, even one that is parked or cannot be shown in full; raises NotFound."""
    if name in snap.aside:
        return _parked_view(name, snap.aside[name].why)
    job = find_job(snap, name)
    errors: list[Exception] = []
    with contained(errors.append):
        return job_view(snap, job)
    switch = job.switch.value
    why = switch.reason if switch.parked is not None else told(errors[0])
    shown = _parked_view(name, why, job.record.value)
    return replace(shown, phase=switch.shown_phase, generation=switch.generation)


def _parked_view(name: str, why: str, record: JobRecord | None = None) -> JobView:
    """The view of a job whose records are unreliable."""
    return JobView(
        name=name,
        uuid=record.uuid if record is not None else "",
        strategy=record.spec.strategy.value if record is not None else "",
        phase=JobPhase.PARKED,
        generation=0,
        step=-1,
        rate=0.0,
        base=None,
        newest_commit=None,
        commit_lag_steps=0,
        restarts_program=0,
        restarts_infrastructure=0,
        restarts_left=0,
        reason=why,
        waiting_for="",
        submitted_wall_ms=record.submitted_wall_ms if record is not None else 0,
    )


def find_job(snap: Snapshot, name: str) -> JobState:
    """A job by name; raises NotFound that lists the jobs, Conflict for a job that is set aside."""
    if name in snap.jobs:
        return snap.jobs[name]
    if name in snap.aside:
        raise Conflict(f"job {name} is set aside: {snap.aside[name].why}")
    raise nothing_named("job", name, snap.jobs)


def job_view(snap: Snapshot, job: JobState) -> JobView:
    """One job with its tasks."""
    spec, switch = job.record.value.spec, job.switch.value
    found, saver = assess(snap, job), saving.saver_beat(snap, job)
    slow, hung = slow_tasks(snap, found), suspected(found)
    tasks = tuple(_task_view(snap, job, task, slow.get(task), hung.get(task, "")) for task in spec.tasks())
    newest = newest_commit(job)
    saved = newest.step if newest is not None else -1
    base = switch.base.step if switch.base is not None else -1
    step = _newest_step(job_step(snap, job), saved, base)
    return JobView(
        name=job.name,
        uuid=job.record.value.uuid,
        strategy=spec.strategy.value,
        phase=switch.shown_phase,
        generation=switch.generation,
        step=step,
        rate=round(max((task.rate for task in tasks), default=0.0), 3),
        base=switch.base,
        newest_commit=newest,
        commit_lag_steps=max(0, step - max(saved, 0)) if step >= 0 else 0,
        restarts_program=switch.ledger.program,
        restarts_infrastructure=switch.ledger.infrastructure,
        restarts_left=max(0, spec.restart.max_restarts - switch.ledger.streak),
        reason=switch.reason,
        uncommitted=switch.uncommitted,
        waiting_for=waiting_for(snap, job, found),
        submitted_wall_ms=job.record.value.submitted_wall_ms,
        tasks=tasks,
        budget=_budget(snap, job),
        tensorboard=_tensorboard(tasks),
        code=_code_of(job),
        commit_lag_ms=saving.lag_ms(snap, job),
        commit_trouble=saving.trouble_of(saver)[0] or saving.missing(snap, job, saver),
        saves_skipped=saver.skipped if saver is not None else 0,
        notices=tuple(notice.text for _, notice in notices_of(snap, job) if notice.kind != MODEL_PUBLISHED),
        advice=(*(each.text for each in advice(snap, job)), *saving.unusable(saver)),
        owner=job.record.value.owner,
        group=job.record.value.group,
        cadence=cadence.line(snap, job),
        paused=found.held or hold.own(job),
        paused_wall_ms=hold.since_wall_ms(snap, job),
        goodput=ledger.view(snap, job, found.need),
    )


def _newest_step(seen: int, saved: int, base: int) -> int:
    """The newest step that is known. Some programs number a save by the step that comes next."""
    newest = max(saved, base)
    return seen if newest == seen + 1 and seen >= 0 else max(seen, newest)


def _budget(snap: Snapshot, job: JobState) -> BudgetView:
    policy = job.record.value.spec.restart
    return BudgetView(
        in_a_row=job.switch.value.ledger.streak,
        in_a_row_allowed=policy.max_restarts,
        in_window=standing_of(snap, job).window,
        in_window_allowed=policy.max_in_window,
        window_ms=policy.window_ms,
    )


def _tensorboard(tasks: tuple[TaskView, ...]) -> str:
    """The URL of TensorBoard: the program serves HTTP at its task's address."""
    for task in tasks:
        if task.role == TENSORBOARD and task.address and task.state == "running":
            return f"http://{task.address}"
    return ""


def _code_of(job: JobState) -> str:
    """The digest of the code of the generation in force; before the first, of the one that it will run."""
    plan, code = job.plan_in_force, job.record.value.spec.code
    return plan.value.code if plan is not None else code.digest if code is not None else ""


def explanation(snap: Snapshot, name: str) -> Explanation:
    """A job and its incidents, oldest first; raises NotFound."""
    if name in snap.aside:
        return Explanation(shown_job(snap, name), ())
    job = find_job(snap, name)
    incidents = sorted(job.incidents.values(), key=lambda held: held.create_revision)
    return Explanation(shown_job(snap, name), tuple(_incident_view(held.value) for held in incidents))


def checkpoint_list(snap: Snapshot, name: str) -> CheckpointList:
    """A job's checkpoints, newest first; raises NotFound."""
    job = find_job(snap, name)
    switch = job.switch.value
    records = [held.value for held in job.commits.values()]
    lineage = {record.ref for record in on_lineage(records, switch.job_uuid, switch.generation, switch.base)}
    newest = newest_commit(job)
    return CheckpointList(
        job=name,
        uri=job.record.value.spec.checkpoint.uri,
        checkpoints=tuple(
            CheckpointView(
                ref=record.ref,
                parent=record.parent,
                size=record.size,
                state=record.state,
                reason=record.reason,
                path=record.path,
                node=record.node,
                wall_ms=record.wall_ms,
                on_lineage=record.ref in lineage,
                use="base" if record.ref == switch.base else "newest" if record.ref == newest else "",
                pinned=record.pinned,
                verified=record.verified.value,
                tensors=record.tensors,
            )
            for record in sorted(records, key=lambda record: record.ref, reverse=True)
        ),
    )


def events_after(snap: Snapshot, job: str, after: int) -> tuple[tuple[EventView, ...], int]:
    """Events of a job (empty: all) after revision `after`, oldest first, and the newest one's revision.

    They are ordered by revision, not by serial: a slow transaction may be written after later ones.
    """
    known = sorted(snap.events, key=lambda held: held.mod_revision)
    last = known[-1].mod_revision if known else 0
    if after > last:
        after = -1  # the store has lost its data since: all of it is new
    return tuple(
        EventView(
            int(keys.parse(held.key)[0]),
            held.value.wall_ms,
            held.value.kind,
            held.value.job,
            held.value.text,
            dict(held.value.fields),
        )
        for held in known
        if held.mod_revision > after and (not job or held.value.job == job)
    ), last


def _task_view(snap: Snapshot, job: JobState, task: TaskId, slower: float | None, hung: str) -> TaskView:
    """The view of a task. `slower`: the factor by which a straggler is slower than its peers.

    `hung`: its missing signs of life.
    """
    plan, state = job.plan_in_force, "waiting"
    if plan is None:
        plan, state = job.next_plan, "preparing"
    placement = _placement(plan, task.member)
    if plan is None or placement is None:
        return _task_without_plan(job, task)
    held = job.report(placement, plan.value)
    report = held.value if held is not None else None
    assigned = job.assigned(plan.value.plan_id, task.member)
    attempt = assigned.value.attempt if assigned is not None else 0
    detail = ""
    if report is not None:
        state = report.state.value
        detail = describe_exit(report.exit) if report.exit is not None else ""
        if is_held(job, report):
            state, detail = "stopped", "kept for inspection"
    if job.plan_in_force is not None:
        state, detail = _doubt(snap, placement, state, detail)
    if slower is not None:
        detail = "; ".join(filter(None, (detail, f"{slower:g} times slower than its peers")))
    beat = snap.beat_of(placement.node, report.attempt) if report is not None else None
    step = _step(beat, report)
    if beat is not None and (step < 0 or (beat.is_local and job_step(snap, job) < 0)):
        # Its own count is told as such.
        step, detail = -1, "; ".join(filter(None, (beat.said, detail)))
    if state == "running" and beat is not None and beat.stopped:
        detail = "; ".join(filter(None, (detail, "is stopped by a signal")))
    if state == "running" and hung:
        detail = "; ".join(filter(None, (detail, f"may hang: {hung}")))
    return TaskView(
        task=str(task),
        role=task.role,
        index=task.index,
        node=placement.node,
        state=state,
        attempt=attempt,
        pid=report.pid if report is not None else 0,
        address=_address(job, plan, report, task),
        step=step,
        rate=round(beat.rate, 3) if beat is not None and state == "running" else 0.0,
        detail=detail,
        straggler=slower is not None,
    )


def _task_without_plan(job: JobState, task: TaskId) -> TaskView:
    """A task of a job that has ended, or has not begun: its last attempt, if one is remembered."""
    reports = [held.value for held in job.attempts.values() if held.value.attempt.task == task]
    if not reports:
        state = "exited" if job.switch.value.phase.ended else "waiting"
        return TaskView(str(task), task.role, task.index, "", state, 0, 0, "", -1, 0.0)
    last = max(reports, key=lambda report: (report.generation, report.number))
    return TaskView(
        task=str(task),
        role=task.role,
        index=task.index,
        node=last.node,
        state=last.state.value,
        attempt=last.number,
        pid=last.pid,
        address=last.address,
        step=last.last_step,
        rate=0.0,
        detail=describe_exit(last.exit) if last.exit is not None else "",
    )


def _doubt(snap: Snapshot, placement: Placement, state: str, detail: str) -> tuple[str, str]:
    """The state of a task, marked as its last known one if its node is silent."""
    if state == "exited":
        return state, detail
    found = standing(snap, placement)
    if found is Standing.LOST:
        return "lost", f"{placement.node} is lost"
    if found is Standing.SUSPECTED:
        return state, f"{placement.node} is suspected"
    return state, detail


def describe_exit(ending: Exit) -> str:
    """`exit code 1`, `signal 9`, with the detail if there is one."""
    how = ending.reason.value.replace("_", " ")
    if ending.signal is not None:
        how = f"signal {ending.signal}"
    elif ending.code is not None:
        how = f"exit code {ending.code}"
    return f"{how}: {ending.detail}" if ending.detail else how


def _placement(plan: Versioned[Plan] | None, member: str) -> Placement | None:
    if plan is None:
        return None
    return next((placement for placement in plan.value.placements if placement.member == member), None)


def _address(job: JobState, plan: Versioned[Plan], report: AttemptReport | None, task: TaskId) -> str:
    if report is not None and report.address:
        return report.address
    prepared = job.prepared.get((plan.value.plan_id, task.member))
    return prepared.value.address if prepared is not None else ""


def _step(beat: TaskBeat | None, report: AttemptReport | None) -> int:
    return max(beat.step if beat is not None else -1, report.last_step if report is not None else -1)


def _incident_view(incident: Incident) -> IncidentView:
    return IncidentView(
        id=incident.id,
        job=incident.job,
        cause=incident.cause.value,
        task=incident.task,
        node=incident.node,
        rule=incident.rule,
        scope=incident.scope.value,
        detail=incident.detail,
        from_step=incident.reached,
        to_step=incident.to_step,
        phases_ms=dict(incident.phases_ms),
        total_ms=incident.total_ms,
        outcome=incident.outcome,
        generation=incident.generation,
        wall_ms=incident.wall_ms,
        tail=incident.tail,
        stack=incident.stack,
        lost_steps=incident.lost_steps,
        base=incident.to_base,
        from_scratch=incident.to_base is None and "switched" in incident.phases_ms,
    )
