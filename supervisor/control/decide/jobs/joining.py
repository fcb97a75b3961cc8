"""Workers join and leave a running job one after the other, while all other tasks run on (rule 6.11).

A worker joins in one transaction. It gives the worker a place in the plan in force, an assignment, and an
entry in the ClusterSpec, and counts it in the job's record. The worker takes a port when it starts, as one
that has moved does (`moves`), and the ClusterSpec tells of it once it runs.

The last worker leaves. Its attempt is ended first, and confirmed dead, or its node is lost (rule 3). Then one
transaction takes all of that back. It is fenced as a move is: it compares the mark, and makes it final.

Both compare the switch, the plan, the job's record and the operator's wish. So two leaders in a row, or one
that did not hear of its own success, make no step twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from supervisor.contract import keys
from supervisor.contract.boundaries import Absent, Compare, Delete, ModifiedAt, Op
from supervisor.contract.desired import ClusterSpec, JobPhase, Placement, Plan
from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Cause, NotJoined, Outcome
from supervisor.contract.job.spec import JobIntent, JobRecord, Scope, resized
from supervisor.contract.observed import AttemptReport
from supervisor.control.decide.assess import sizing
from supervisor.control.decide.assess.assessment import Assessment
from supervisor.control.decide.assess.failures import judgement_of
from supervisor.control.decide.assess.members import Member, MemberState, ended_as
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.assess.progress import ran_ms
from supervisor.control.decide.assess.sizing import WORKER
from supervisor.control.decide.facts.claims import claiming
from supervisor.control.decide.facts.history import incident_id
from supervisor.control.decide.facts.standing import ENDED_AFTER, Standing, not_dead, standing
from supervisor.control.decide.jobs import incidents
from supervisor.control.decide.jobs.moves import next_attempt
from supervisor.control.decide.jobs.prepare import assignment_of, find_place, has_room
from supervisor.control.decide.nodes.node_loss import by_marks, taking
from supervisor.control.decide.plan import Action, put, short, still, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned
from supervisor.control.decide.switch import Transition, turn

UNDONE = "resize_undone"
"""Kind of the event that a resize is taken back, as a program failed before its first step after it."""


def told(sizes: Mapping[str, int]) -> str:
    """Counts of roles, in words."""
    return ", ".join(f"{role}={count}" for role, count in sizes.items())


def goes_back(job: JobState, back: Mapping[str, int], tried: Mapping[str, int]) -> str:
    """The end of a resize that is taken back, and how to ask for it again, in words."""
    again = f"supervisorctl scale {job.name} {told(tried).replace(', ', ' ')}"
    return f"the job goes back to {told(back)} and stays there until `{again}` asks again"


def having(job: JobState, sizes: Mapping[str, int]) -> JobIntent:
    """The operator's wish, with these counts."""
    return replace(job.intent.value, sizes={**job.intent.value.sizes, **sizes})


def resize(snap: Snapshot, job: JobState, assessed: Assessment) -> list[Action]:
    """The next worker that joins or leaves; empty where the job has its size, or something is awaited."""
    switch, plan = job.switch.value, job.plan_in_force
    spec = job.specs.get(switch.plan_id)
    if plan is None or spec is None or switch.phase is not JobPhase.RUNNING or switch.closing is not None:
        return []
    leaving = assessed.leaving
    for member in leaving:
        if ended := _end(snap, job, member):
            return ended
    for member in assessed.members:
        if kept := _keep(job, member):
            return kept
    if leaving:
        return _leave(snap, job, plan, spec, leaving[0])
    return _join(snap, job, plan, spec) if grows(snap, job) else []


def grows(snap: Snapshot, job: JobState) -> bool:
    """Whether a worker can join now: there is room for it beside all others.

    An operator's wish is not begun where there is no room for all of it. An elastic role takes no room from
    a job that has none at all, unless its own job comes first.
    """
    now, wanted = sizing.counts(job)
    if wanted <= now or sizing.why_all_restart(job):
        return False
    if asked := sizing.asked(job):
        if not has_room(snap, job, resized(job.record.value.spec, asked)):
            return False
    elif somebody_waits(snap, job) or somebody_is_away(snap, job):
        return False
    return not find_place(snap, job, f"{WORKER}.{now}").waiting_for


def somebody_waits(snap: Snapshot, job: JobState) -> bool:
    """Whether a job of at least this one's priority waits for room for its first generation."""
    return any(
        each.switch.value.phase is JobPhase.WAITING
        and each.next_plan is None
        and each.record.value.spec.priority >= job.record.value.spec.priority
        for each in snap.jobs.values()
    )


def somebody_is_away(snap: Snapshot, job: JobState) -> bool:
    """Whether a task of the job may need the room for itself: its node is suspected, or lost."""
    return any(standing(snap, each) is not Standing.ALIVE for each in not_dead(job))


def _join(snap: Snapshot, job: JobState, plan: Versioned[Plan], spec: Versioned[ClusterSpec]) -> list[Action]:
    now, _ = sizing.counts(job)
    task = TaskId(job.name, WORKER, now)
    found = find_place(snap, job, task.member)
    offer, switch = found.placements[task.member], job.switch.value
    node = snap.nodes[offer.node].incarnation
    assert node is not None
    placed = Placement(WORKER, now, offer.node, offer.incarnation, found.gpus[task.member])
    number = next_attempt(job, task, None)
    order = replace(assignment_of(snap, job, plan.value, placed), attempt=number, joins=True, yields=False)
    grown = replace(
        plan.value,
        placements=(*plan.value.placements, placed),
        moved=tuple(sorted({*plan.value.moved, task.member})),
    )
    described = spec.value.with_new(WORKER, node.value.host)
    need = _need(snap, job, task)
    claimed, claim = claiming(snap, job.record.value.spec, grown, (placed,))
    compares: list[Compare] = [*_unchanged(job, plan, spec), still(node), *claimed]
    ops: list[Op] = [
        put(keys.assignment(placed.node, task, plan.value.plan_id), order),
        put(plan.key, grown),
        put(spec.key, described),
        put(job.record.key, _counting(snap, job, now + 1)),
        turn(job.switch, Transition.RESIZE, edition=described.edition),
        *claim,
        *incidents.opening(snap, job, need, switch.generation, switch.plan_id, attempt=number),
    ]
    text = f"{need.detail}; {task} joins on {placed.node} (rule {need.rule})"
    fields = {"task": str(task), "cause": need.cause.value, "rule": need.rule}
    return [Action("joined", job.name, text, tuple(compares), tuple(ops), fields, places=grown)]


def _need(snap: Snapshot, job: JobState, task: TaskId) -> Need:
    """The need that the record of the join tells of."""
    asked = sizing.asked(job)
    known_ms = job.intent.seen_ms if asked else snap.now_ms
    return Need(
        incident=incident_id(job, f"g{job.switch.value.generation}-join.{task.member}"),
        cause=Cause.RESIZED,
        scope=Scope.TASK,
        rule="operator.scale.live" if asked else "elastic.grow.live",
        judgement=judgement_of(job, Cause.RESIZED),
        known_ms=known_ms,
        member=task.member,
        detail=f"an operator asked for {WORKER}={asked[WORKER]}" if asked else f"there is room for {task}",
    )


def _end(snap: Snapshot, job: JobState, member: Member) -> list[Action]:
    """Have the agent end an attempt that is to leave, and start no other.

    If it leaves because it is late to join, the record of its join says so.
    """
    held = job.assigned(job.switch.value.plan_id, member.task.member)
    if held is None or held.value.ends or _is_dead(member):
        return []
    if standing(snap, member.placement) is not Standing.ALIVE:
        return []
    compares: list[Compare] = [unchanged(job.switch), unchanged(job.intent), unchanged(held)]
    compares += [unchanged(member.report)] if member.report is not None else []
    text = f"{member.task} ends on {member.placement.node}: it leaves"
    ops: list[Op] = [put(held.key, replace(held.value, ends=True))]
    join = sizing.joining(job).get(member.task.member)
    if join is not None and sizing.is_late(snap, job, member):
        ops.append(put(join.key, replace(join.value, not_joined=NotJoined.PROGRAM)))
        compares.append(unchanged(join))
    return [Action("leaves", job.name, text, tuple(compares), tuple(ops), {"task": str(member.task)})]


def _keep(job: JobState, member: Member) -> list[Action]:
    """Let a worker begin that was to leave before it had, and is wanted again."""
    held = job.assigned(job.switch.value.plan_id, member.task.member)
    if held is None or not held.value.ends or member.task.role != WORKER:
        return []
    if member.state is not MemberState.STARTING:
        return []
    compares: tuple[Compare, ...] = (
        unchanged(job.switch),
        unchanged(job.intent),
        unchanged(held),
        Absent(keys.attempt(held.value.attempt_id)),
    )
    text = f"{member.task} begins on {member.placement.node} after all: it is wanted again"
    kept = put(held.key, replace(held.value, ends=False))
    return [Action("stays", job.name, text, compares, (kept,), {"task": str(member.task)})]


def _leave(
    snap: Snapshot, job: JobState, plan: Versioned[Plan], spec: Versioned[ClusterSpec], last: Member
) -> list[Action]:
    """The transaction by which the last worker leaves; empty while it may run."""
    member, placement = last.task.member, last.placement
    held = job.assigned(plan.value.plan_id, member)
    where, dead = standing(snap, placement), _is_dead(last)
    never_began = where is Standing.ALIVE and _never_began(snap, job, last)
    if held is None or not (dead or where is Standing.LOST or never_began):
        return []
    if _may_live(snap, job, last.task, held.value.attempt):
        return []
    shrunk = replace(
        plan.value,
        placements=tuple(each for each in plan.value.placements if each.member != member),
        moved=tuple(each for each in plan.value.moved if each != member),
        departed=plan.value.departed | {member: held.value.attempt},
    )
    described = spec.value.without_last(WORKER)
    mark = snap.mark_of(placement.node, placement.incarnation)
    # A dead attempt needs no mark, and a node that is only suspected may appeal.
    used = [mark] if mark is not None and where is Standing.LOST else []
    compared, made_final = by_marks(snap, used)
    attempt = held.value.attempt_id
    reported = unchanged(last.report) if last.report is not None else Absent(keys.attempt(attempt))
    switch, intent = job.switch.value, job.intent.value
    # A wish to restart it ends with it.
    ends_wish = intent.restart_member == member
    serial = intent.restart_serial if ends_wish else switch.restart_serial
    prepared = job.prepared.get((plan.value.plan_id, member))
    ops: list[Op] = [
        Delete(held.key),
        put(plan.key, shrunk),
        put(spec.key, described),
        put(job.record.key, _counting(snap, job, placement.index)),
        turn(job.switch, Transition.RESIZE, edition=described.edition, restart_serial=serial),
        *([Delete(prepared.key)] if prepared is not None else []),
        *made_final,
        *_ended_incidents(job, last),
    ]
    kind, text = "left", f"{last.task} has left {placement.node}; {WORKER}={placement.index} is in force"
    _, wanted = sizing.counts(job)
    if _fault(job, last) is NotJoined.PROGRAM and wanted > placement.index:
        # No other joins in its place by itself (rule 6.11).
        back, tried = {WORKER: placement.index}, {WORKER: placement.index + 1}
        ops.append(put(job.intent.key, having(job, back)))
        why = ended_as(last) or "it came to no work in time"
        kind, text = UNDONE, f"{last.task} left before it did any work: {why}; {goes_back(job, back, tried)}"
    compares = (*_unchanged(job, plan, spec), unchanged(held), reported, *compared)
    return [
        Action(
            kind,
            job.name,
            text,
            compares,
            tuple(ops),
            {"task": str(last.task)},
            taking=taking(snap, job, () if dead else (placement,)),
        )
    ]


def _unchanged(job: JobState, plan: Versioned[Plan], spec: Versioned[ClusterSpec]) -> tuple[Compare, ...]:
    """The compares of all that a resize is decided from and rewrites."""
    found = (job.switch, job.intent, job.record, plan, spec)
    return tuple(ModifiedAt(held.key, held.mod_revision) for held in found)


def _counting(snap: Snapshot, job: JobState, workers: int) -> JobRecord:
    """The job's record with another count of workers. Its running time counts on from this version."""
    spec = resized(job.record.value.spec, {WORKER: workers})
    return replace(job.record.value, spec=spec, ran_ms=ran_ms(snap, job))


def _is_dead(member: Member) -> bool:
    return member.report is not None and member.report.value.confirmed_dead


def _never_began(snap: Snapshot, job: JobState, member: Member) -> bool:
    """Whether an agent that lives has begun no attempt: it was to end it so long ago, and tells of none."""
    held = job.assigned(job.switch.value.plan_id, member.task.member)
    if held is None or not held.value.ends or member.report is not None:
        return False
    waited_ms = snap.now_ms - max(held.seen_ms, snap.etcd_since_ms)
    return waited_ms > ENDED_AFTER * snap.timing.d_ms


def _may_live(snap: Snapshot, job: JobState, task: TaskId, number: int) -> bool:
    """Whether an attempt before this one may live: the task may not leave, and come again elsewhere."""
    generation = job.switch.value.generation
    earlier = (
        held.value
        for attempt, held in job.attempts.items()
        if (attempt.task, attempt.generation) == (task, generation) and attempt.number < number
    )
    return any(not (each.confirmed_dead or _is_over(snap, each)) for each in earlier)


def _is_over(snap: Snapshot, report: AttemptReport) -> bool:
    """Whether the agent that reported it is lost, or another has taken its place and has killed all."""
    picture = snap.nodes.get(report.node)
    if picture is None or picture.incarnation is None or picture.acts_for(report.incarnation):
        where = Placement(report.role, report.index, report.node, report.incarnation)
        return standing(snap, where) is Standing.LOST
    return True


def _fault(job: JobState, member: Member) -> NotJoined | None:
    """Whose fault it is that a worker leaves before it did any work; None of one that is no longer wanted."""
    join = sizing.joining(job).get(member.task.member)
    if join is None or member.cause is None or member.cause is Cause.DRAINED:
        return join.value.not_joined if join is not None else None
    return NotJoined.PROGRAM if member.cause.program_fault else NotJoined.MACHINE


def _ended_incidents(job: JobState, member: Member) -> list[Op]:
    """Close the record of a join that came to nothing, and all others that are about this worker alone."""
    join, ops = sizing.joining(job).get(member.task.member), list[Op]()
    if join is not None:
        ended = replace(join.value, not_joined=_fault(job, member))
        why = f"{ended.detail}; {member.task} left before it did any work"
        if how := ended_as(member):
            why = f"{why}: {how}"
        ops.append(put(join.key, replace(ended, outcome=Outcome.SUPERSEDED, detail=short(why))))
    ops += [
        put(held.key, replace(held.value, outcome=Outcome.SUPERSEDED))
        for held in job.incidents.values()
        if (held.value.outcome, held.value.scope) == (Outcome.OPEN, Scope.TASK)
        and held.value.member == member.task.member
        and (join is None or held.key != join.key)
    ]
    return ops
