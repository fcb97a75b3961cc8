"""Jobs, tasks, nodes and GPUs of the leader's snapshot, as metrics. Pure.

It runs at each answer, beside the loop. So it asks for facts that are cheap, and for no assessment of a job.
"""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.adapters.metrics.samples import Rows, counter, gauge
from supervisor.api.nodes import node_state, tasks_by_node
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.containment import contained
from supervisor.contract.desired import JobPhase, Placement
from supervisor.contract.incident import Outcome
from supervisor.contract.job.goodput import Category
from supervisor.contract.observed import AttemptState, GpuHealth, TaskBeat
from supervisor.control.decide.checkpoints import saving
from supervisor.control.decide.facts.gpus import quarantined, reported
from supervisor.control.decide.facts.history import job_step, newest_commit
from supervisor.control.decide.facts.hold import held, held_cluster
from supervisor.control.decide.facts.standing import Standing, standing
from supervisor.control.decide.snapshot import JobState, Snapshot

NODE_STATES = (
    "ready",
    "suspected",
    "lost",
    "blocked",
    "cordoned",
    "draining",
    "drained",
    "gone",
    "aside",
)
WAITING, STARTING, LOST = "waiting", "starting", "lost"
TASK_STATES = (WAITING, STARTING, AttemptState.RUNNING.value, AttemptState.EXITED.value, LOST)
UNKNOWN_STRATEGY = "unknown"

JOBS = gauge("tfsup_jobs", "Jobs in each phase.", "phase")
TASKS = gauge("tfsup_tasks", "Tasks of jobs that have not ended, in each state.", "state")
NODES = gauge("tfsup_nodes", "Nodes in each state.", "state")
GPUS = gauge("tfsup_gpus", "GPUs of registered nodes, by the health that their agents report.", "health")
QUARANTINED = gauge("tfsup_gpus_quarantined", "GPUs of registered nodes that get no new task.")
PAUSED = gauge(
    "tfsup_paused",
    "1 while nothing is restarted and moved: an operator has paused the cluster, or the brake holds.",
)
INCIDENTS_OPEN = gauge("tfsup_incidents_open", "Failures whose recovery goes on.")

NODE_STATE = gauge("tfsup_node_state", "1 for the state that a node is in.", "node", "state")
NODE_BEAT_AGE = gauge(
    "tfsup_node_beat_age_seconds", "Time since the leader last heard a registered node.", "node"
)
GPU_QUARANTINED = gauge(
    "tfsup_gpu_quarantined", "1 for a GPU that gets no new task until an operator lifts it.", "node", "gpu"
)

JOB = gauge("tfsup_job_info", "1 for each job, with what does not change.", "job_name", "strategy", "owner")
JOB_PHASE = gauge("tfsup_job_phase", "1 for the phase that a job is in.", "job_name", "phase")
JOB_PAUSED = gauge("tfsup_job_paused", "1 while nothing of a job is restarted and moved.", "job_name")
JOB_TASKS = gauge("tfsup_job_tasks", "Tasks of a job that has not ended, by state.", "job_name", "state")
JOB_GENERATION = gauge("tfsup_job_generation", "The generation of a job that is in force.", "job_name")
JOB_SPENT = gauge(
    "tfsup_job_spent_seconds",
    "What a job's time since its submission was spent on, by the categories of docs/goodput.md. A recovery "
    "moves time from one to another, so that this is no counter.",
    "job_name",
    "category",
)
JOB_GOODPUT = gauge(
    "tfsup_job_goodput_ratio",
    "The productive part of a job's time in which nobody had stopped it.",
    "job_name",
)
JOB_STEP = gauge("tfsup_job_step", "The newest global step of a job; it goes back at a restart.", "job_name")
JOB_RATE = gauge(
    "tfsup_job_steps_per_second", "Steps per second of a job's fastest task, over a few seconds.", "job_name"
)
JOB_STEP_AGE = gauge(
    "tfsup_job_last_step_age_seconds",
    "Time since a task of a running job last made a step; absent while none is known.",
    "job_name",
)
JOB_WAITING = gauge(
    "tfsup_job_waiting_seconds",
    "Time for which a job has been in the phase `waiting`, as far as this leader has seen it.",
    "job_name",
)
JOB_RESTARTS = counter(
    "tfsup_job_restarts_total",
    "Restarts of a job since it was last started, by their cause: the `program` or the `infrastructure`.",
    "job_name",
    "cause",
)
JOB_STREAK = gauge(
    "tfsup_job_restarts_without_progress",
    "Restarts in a row that the program's faults have caused, without a new commit.",
    "job_name",
)
JOB_STREAK_ALLOWED = gauge(
    "tfsup_job_restarts_without_progress_allowed", "So many of them do not fail the job yet.", "job_name"
)
COMMITTED_STEP = gauge(
    "tfsup_job_committed_step", "The step of the newest commit that a restart would begin from.", "job_name"
)
COMMIT_LAG = gauge(
    "tfsup_job_commit_lag_seconds",
    "Time for which a running job has trained since its newest commit, or its generation's start.",
    "job_name",
)
SAVE_WAITING = gauge(
    "tfsup_job_save_waiting_seconds",
    "Time for which a finished save has waited for its commit; 0 while none waits.",
    "job_name",
)
SAVE_BOUND = gauge(
    "tfsup_job_save_waiting_bound_seconds",
    "The job file's bound on that time, `checkpoint.lag_bound`.",
    "job_name",
)
SAVES_SKIPPED = counter(
    "tfsup_job_saves_skipped_total",
    "Finished saves of the generation in force that were given up for newer ones.",
    "job_name",
)
COMMIT_TROUBLE = gauge(
    "tfsup_job_commit_trouble_seconds",
    "Time for which finished saves have not become commits because of an error; 0 without one.",
    "job_name",
)


def fill(snap: Snapshot, rows: Rows) -> None:
    """All samples of a snapshot. An error about a job is raised when all else is there."""
    errors: list[Exception] = []
    for phase in JobPhase:
        rows.put(JOBS, 0, phase.value)
    for state in TASK_STATES:
        rows.put(TASKS, 0, state)
    rows.put(INCIDENTS_OPEN, 0)
    rows.put(PAUSED, bool(held_cluster(snap)))
    for job in snap.jobs.values():
        with contained(errors.append):
            _job(snap, job, rows)
    for name in snap.aside:
        _phase(name, JobPhase.PARKED, rows)
        rows.put(JOB, 1, name, UNKNOWN_STRATEGY, "")
    _nodes(snap, rows)
    _gpus(snap, rows)
    if errors:
        raise errors[0]


def _phase(name: str, phase: JobPhase, rows: Rows) -> None:
    rows.add(JOBS, 1, phase.value)
    rows.put(JOB_PHASE, 1, name, phase.value)


def _job(snap: Snapshot, job: JobState, rows: Rows) -> None:
    name, record, switch = job.name, job.record.value, job.switch.value
    _phase(name, switch.shown_phase, rows)
    rows.put(JOB, 1, name, record.spec.strategy.value, record.owner)
    rows.put(JOB_PAUSED, bool(held(snap, job)), name)
    rows.put(JOB_GENERATION, switch.generation, name)
    rows.put(JOB_RESTARTS, switch.ledger.program, name, "program")
    rows.put(JOB_RESTARTS, switch.ledger.infrastructure, name, "infrastructure")
    rows.put(JOB_STREAK, switch.ledger.streak, name)
    rows.put(JOB_STREAK_ALLOWED, record.spec.restart.max_restarts, name)
    rows.add(INCIDENTS_OPEN, sum(each.value.outcome is Outcome.OPEN for each in job.incidents.values()))
    _goodput(snap, job, rows)
    _steps(snap, job, rows)
    if switch.shown_phase is JobPhase.WAITING:
        rows.put(JOB_WAITING, (snap.now_ms - job.switch.seen_ms) / 1000, name)
    if not switch.shown_phase.ended:
        _tasks(snap, job, rows)
        _commits(snap, job, rows)


def _goodput(snap: Snapshot, job: JobState, rows: Rows) -> None:
    """What the ledger has, and the time since by what it says that runs."""
    if job.goodput is None or job.goodput.value.job_uuid != job.record.value.uuid:
        return
    ledger, phase = job.goodput.value, job.switch.value.phase
    spent_ms = dict(ledger.spent_ms)
    if not phase.ended or phase is JobPhase.STOPPED:
        now = ledger.category.value
        spent_ms[now] = spent_ms.get(now, 0) + max(0, snap.wall_ms - ledger.wall_ms)
    for category, ms in spent_ms.items():
        rows.put(JOB_SPENT, ms / 1000, job.name, category)
    counted_ms = sum(spent_ms.values()) - spent_ms.get(Category.STOPPED.value, 0)
    if counted_ms > 0:
        rows.put(JOB_GOODPUT, spent_ms.get(Category.PRODUCTIVE.value, 0) / counted_ms, job.name)


def _steps(snap: Snapshot, job: JobState, rows: Rows) -> None:
    newest, base = job.once(newest_commit), job.switch.value.base
    step = max(job_step(snap, job), _step_of(newest), _step_of(base))
    if step >= 0:
        rows.put(JOB_STEP, step, job.name)
    if newest is not None:
        rows.put(COMMITTED_STEP, newest.step, job.name)


def _step_of(ref: CheckpointRef | None) -> int:
    return ref.step if ref is not None else -1


def _tasks(snap: Snapshot, job: JobState, rows: Rows) -> None:
    rate, ages_s = 0.0, list[float]()
    for state, beat, heard_ms in _each_task(snap, job):
        rows.add(TASKS, 1, state)
        rows.add(JOB_TASKS, 1, job.name, state)
        if beat is not None:
            rate = max(rate, beat.rate)
            if beat.step_age_ms >= 0:
                ages_s.append((beat.step_age_ms + snap.now_ms - heard_ms) / 1000)
    rows.put(JOB_RATE, rate, job.name)
    if ages_s and job.switch.value.phase is JobPhase.RUNNING:
        rows.put(JOB_STEP_AGE, min(ages_s), job.name)


def _each_task(snap: Snapshot, job: JobState) -> Iterator[tuple[str, TaskBeat | None, int]]:
    """The state of each task of a job, its last beat while it runs, and when that was heard."""
    plan = job.plan_in_force
    if plan is None:
        yield from ((WAITING, None, 0) for _ in job.record.value.spec.tasks())
        return
    for placement in plan.value.placements:
        report = job.report(placement, plan.value)
        state = report.value.state.value if report is not None else STARTING
        if state == AttemptState.EXITED.value:
            yield state, None, 0
        elif _is_lost(snap, placement):
            yield LOST, None, 0
        else:
            node = snap.nodes.get(placement.node)
            seen = node.beat if node is not None else None
            beat = (
                seen.tasks.get(str(report.value.attempt)) if seen is not None and report is not None else None
            )
            yield state, beat, seen.received_ms if seen is not None else 0


def _is_lost(snap: Snapshot, placement: Placement) -> bool:
    """Whether a task's node is lost. Nearly always it has no mark, and nothing more is asked."""
    marked = snap.mark_of(placement.node, placement.incarnation) is not None
    return marked and standing(snap, placement) is Standing.LOST


def _commits(snap: Snapshot, job: JobState, rows: Rows) -> None:
    lag_ms, saver = saving.lag_ms(snap, job), saving.saver_beat(snap, job)
    bound_ms = job.record.value.spec.checkpoint.lag_bound_ms
    if lag_ms >= 0:
        rows.put(COMMIT_LAG, lag_ms / 1000, job.name)
    if bound_ms is not None:
        rows.put(SAVE_BOUND, bound_ms / 1000, job.name)
    if saver is not None:
        rows.put(SAVE_WAITING, max(0, saver.waiting_ms) / 1000, job.name)
        rows.put(SAVES_SKIPPED, saver.skipped, job.name)
        rows.put(COMMIT_TROUBLE, max(0, saving.trouble_of(saver)[1]) / 1000, job.name)


def _nodes(snap: Snapshot, rows: Rows) -> None:
    for state in NODE_STATES:
        rows.put(NODES, 0, state)
    drains = any(node.cordon is not None for node in snap.nodes.values())
    tasks = tasks_by_node(snap) if drains else {}
    for name, node in snap.nodes.items():
        state, _ = node_state(snap, node, busy=name in tasks)
        rows.add(NODES, 1, state)
        rows.put(NODE_STATE, 1, name, state)
        if node.incarnation is not None:
            rows.put(NODE_BEAT_AGE, snap.silence_ms(node) / 1000, name)


def _gpus(snap: Snapshot, rows: Rows) -> None:
    for health in GpuHealth:
        rows.put(GPUS, 0, health.value)
    rows.put(QUARANTINED, 0)
    for name, node in snap.nodes.items():
        report = reported(node)
        for gpu in report.value.gpus if report is not None else ():
            barred = quarantined(snap, gpu.uuid) is not None
            rows.add(GPUS, 1, gpu.health.value)
            rows.add(QUARANTINED, barred)
            rows.put(GPU_QUARANTINED, barred, name, str(gpu.index))
