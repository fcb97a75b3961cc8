"""A follower, or a worker that can join, that is lost with its node moves alone, inside the generation.

No other task needs the address of a follower, or of a worker whose program joins those that run (rule 6.10);
what rule 6 asks of a flip is asked of this one transaction instead. It comes only when D has passed since the
lost mark was seen (rule 3), compares that mark's revision and that nobody has appealed, so that a withdrawal
in between makes it stale, and makes the mark final: no appeal is heard after it. It compares the switch, so
that no flip comes in between, and the plan, so that two leaders cannot move the same task. In it the old
assignment goes and the new one comes, under the same plan id: an old agent that thaws finds nothing that asks
for its attempt, and ends it. The number of the new attempt is higher than any that the old agent was ever
given.

The ClusterSpec in force tells of the new address once the new attempt runs. Agents learn from the switch that
it has another edition: a coordinator is told by its agent where its worker is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from supervisor.contract import keys
from supervisor.contract.boundaries import Compare, Delete, Op
from supervisor.contract.desired import Assignment, ClusterSpec, JobPhase, Placement, Plan
from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Cause
from supervisor.contract.observed import AttemptReport, AttemptState, Exit
from supervisor.control.decide.assess.moving import LEAVES, moves_alone
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.assess.sizing import WORKER, counts, why_all_restart
from supervisor.control.decide.facts.claims import claiming
from supervisor.control.decide.facts.gpus import befallen
from supervisor.control.decide.facts.standing import Standing, standing
from supervisor.control.decide.jobs import incidents
from supervisor.control.decide.jobs.prepare import assignment_of, find_place
from supervisor.control.decide.nodes.node_loss import by_marks, taking
from supervisor.control.decide.plan import Action, put, still, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned
from supervisor.control.decide.switch import Transition, turn


def must_move(snap: Snapshot, job: JobState, need: Need) -> bool:
    """Whether the task that `need` is about is to move, and cannot restart where it was."""
    plan = job.plan_in_force
    if plan is None or not moves_alone(job, job.task(need.member)):
        return False
    placement = _placement(plan.value, need.member)
    if standing(snap, placement) is Standing.LOST:
        return True
    shunned = placement.node in need.avoid_nodes or bool(snap.blocked(placement.node))
    if job.record.value.spec.role(placement.role).follow:
        return shunned
    report = job.report(placement, plan.value)
    end = report.value.exit if report is not None else None
    if end is None and need.cause not in LEAVES:
        return False
    # No other task needs a follower's address, whatever becomes of it; others have been told a worker's.
    return shunned or _leaves(snap, job, plan.value, placement) or _is_homeless(end)


def _leaves(snap: Snapshot, job: JobState, plan: Plan, placement: Placement) -> bool:
    """Whether a worker is to leave the node, or the GPUs, that it is on."""
    held, harm = job.assigned(plan.plan_id, placement.member), befallen(snap, job, plan, placement)
    picture = snap.nodes.get(placement.node)
    drained = picture is not None and picture.cordon is not None and picture.cordon.value.drain
    return drained or (harm is not None and harm.harmful) or (held is not None and held.value.ends)


def _is_homeless(end: Exit | None) -> bool:
    """Whether a worker's address, or what was staged beside it, is gone."""
    return end is not None and (end.address_lost or end.rebooted)


def waiting_for(snap: Snapshot, job: JobState, needs: Iterable[Need]) -> str:
    """The reasons for which tasks that are to move wait, for `status`; empty if there are none."""
    found = []
    for need in needs:
        if need.member and must_move(snap, job, need):
            why = find_place(snap, job, need.member, need.avoid_nodes).waiting_for
            found += [f"{job.task(need.member)} waits for a place: {why}"] if why else []
    return "; ".join(found)


def move(snap: Snapshot, job: JobState, need: Need) -> list[Action]:
    """Put the task that `need` is about on another node; empty while it may not or cannot be.

    It may when its node is lost, or when its last attempt is confirmed dead and the next cannot be there. An
    attempt of a worker that runs on is ended first, once there is a place for the next.
    """
    plan, switch = job.plan_in_force, job.switch.value
    assert plan is not None
    placement = _placement(plan.value, need.member)
    where = standing(snap, placement)
    if switch.closing is not None or where is Standing.SUSPECTED:
        return []
    report = job.report(placement, plan.value)
    dead = report is not None and report.value.confirmed_dead
    if where is Standing.ALIVE and snap.now_ms < need.due_ms:
        return []
    found = find_place(snap, job, need.member, need.avoid_nodes)
    if found.waiting_for:
        return []
    offer = found.placements[need.member]
    gpus = found.gpus[need.member]
    placed = Placement(placement.role, placement.index, offer.node, offer.incarnation, gpus)
    if where is Standing.ALIVE and not dead:
        if report is None or _another_leaves(snap):
            return []
        return _end_first(job, need, placement, report, _with(plan.value, placed))
    return [_moved(snap, job, need, placement, placed, dead=dead)]


def _moved(
    snap: Snapshot, job: JobState, need: Need, placement: Placement, placed: Placement, *, dead: bool
) -> Action:
    """The one transaction of a move between two placements. `dead`: the old attempt is confirmed dead."""
    plan, switch = job.plan_in_force, job.switch.value
    assert plan is not None
    target = snap.nodes[placed.node].incarnation
    assert target is not None
    task, ledger = job.task(need.member), need.judgement.verdict.ledger
    old = job.assigned(plan.value.plan_id, need.member)
    number = next_attempt(job, task, old)
    serial = job.intent.value.restart_serial if need.cause is Cause.OPERATOR else switch.restart_serial
    wanted = replace(
        assignment_of(snap, job, plan.value, placed),
        attempt=number,
        restart_count=ledger.restarts,
        joins=not job.record.value.spec.role(placed.role).follow,
    )
    workers = {*plan.value.moved, placed.member} if wanted.joins else plan.value.moved
    moved = replace(_with(plan.value, placed), moved=tuple(sorted(workers)))
    key = keys.assignment(placed.node, task, plan.value.plan_id)
    claimed, claim = claiming(snap, job.record.value.spec, moved, (placed,))
    compares: list[Compare] = [unchanged(job.switch), unchanged(plan), still(target), *claimed]
    ops: list[Op] = [
        put(key, wanted),
        put(plan.key, moved),
        *claim,
        turn(job.switch, Transition.MOVE, ledger=ledger, incident=need.incident, restart_serial=serial),
        *incidents.opening(snap, job, need, switch.generation, switch.plan_id, attempt=number),
    ]
    if old is not None:
        compares.append(unchanged(old))
        ops += [Delete(old.key)] if old.key != key else []
    mark = snap.mark_of(placement.node, placement.incarnation)
    compared, made_final = by_marks(snap, [mark] if mark is not None else [])
    compares += compared
    ops += made_final
    text = f"{need.detail}; {task} moves alone from {placement.node} to {placed.node} (rule {need.rule})"
    fields = {"task": str(task), "cause": need.cause.value, "rule": need.rule}
    taken = () if dead else (placement,)
    return Action(
        "moved",
        job.name,
        text,
        tuple(compares),
        tuple(ops),
        fields,
        taking=taking(snap, job, taken),
        places=moved,
    )


def next_attempt(job: JobState, task: TaskId, old: Versioned[Assignment] | None) -> int:
    """A number above all that the task's agents were ever given in this generation."""
    generation = job.switch.value.generation
    known = [each.number for each in job.attempts if (each.task, each.generation) == (task, generation)]
    plan = job.plan_in_force
    known += [plan.value.departed.get(task.member, 0)] if plan is not None else []
    return 1 + max([*known, old.value.attempt if old is not None else 0], default=0)


def _with(plan: Plan, placed: Placement) -> Plan:
    placements = tuple(placed if p.member == placed.member else p for p in plan.placements)
    return replace(plan, placements=placements)


def _another_leaves(snap: Snapshot) -> bool:
    """Whether a task is being ended to move: its place is not claimed before it is dead, so one at a time."""
    return any(
        held.value.ends
        and not _leaves_for_good(job, held.value)
        and (report := job.attempts.get(held.value.attempt_id)) is not None
        and not report.value.confirmed_dead
        for job in snap.jobs.values()
        for held in job.assignments.values()
    )


def _leaves_for_good(job: JobState, order: Assignment) -> bool:
    """Whether a worker is ended because the job is to have fewer (rule 6.11)."""
    beyond = order.role == WORKER and order.index >= counts(job)[1]
    return beyond and not why_all_restart(job)


def _end_first(
    job: JobState, need: Need, placement: Placement, report: Versioned[AttemptReport], then: Plan
) -> list[Action]:
    """Have the agent end an attempt, and start no other: what follows is decided once it is dead.

    `then`: the plan as it will be, whose places no other job gets in this look.
    """
    held = job.assigned(report.value.plan_id, need.member)
    follows = job.record.value.spec.role(placement.role).follow
    leaves = need.cause in LEAVES and not follows
    if held is None or held.value.ends or not leaves or report.value.exit is not None:
        return []
    task = job.task(need.member)
    return [
        Action(
            "leaves",
            job.name,
            f"{need.detail}; {task} ends on {placement.node} and moves alone (rule {need.rule})",
            (unchanged(job.switch), unchanged(held), unchanged(report)),
            (put(held.key, replace(held.value, ends=True)),),
            {"task": str(task), "cause": need.cause.value, "rule": need.rule},
            places=then,
        )
    ]


def publish(job: JobState) -> list[Action]:
    """Bring the record of the ClusterSpec up to date with the addresses of tasks that have moved."""
    plan, switch = job.plan_in_force, job.switch.value
    spec = job.specs.get(plan.value.plan_id) if plan is not None else None
    if plan is None or spec is None or switch.phase is not JobPhase.RUNNING:
        return []
    for placement in plan.value.placements:
        report = job.report(placement, plan.value)
        if report is None or report.value.state is not AttemptState.RUNNING:
            continue
        if spec.value.address(placement.role, placement.index) == report.value.address:
            continue
        compares: tuple[Compare, ...] = (unchanged(spec), unchanged(plan), unchanged(report))
        held = job.assigned(plan.value.plan_id, placement.member)
        changed = spec.value.with_address(placement.role, placement.index, report.value.address)
        if changed.outside != spec.value.outside:
            # `TF_CONFIG` has none of these.
            return [Action("address_published", job.name, "", compares, (put(spec.key, changed),))]
        joins = held is not None and held.value.joins and changed.roles != spec.value.roles
        if joins and switch.closing is None:
            return [_publish_inside(job, spec, report.value, compares)]
    return []


def _publish_inside(
    job: JobState,
    spec: Versioned[ClusterSpec],
    report: AttemptReport,
    compares: tuple[Compare, ...],
) -> Action:
    """Tell where a worker listens that has moved or joined."""
    changed, task = spec.value.moved(report.role, report.index, report.address), report.attempt.task
    has_moved = len(changed.former) > len(spec.value.former)
    return Action(
        "address_published",
        job.name,
        f"{task} {'has moved to' if has_moved else 'listens at'} {report.address}",
        (*compares, unchanged(job.switch)),
        (put(spec.key, changed), turn(job.switch, Transition.PUBLISH, edition=changed.edition)),
        {"task": str(task), "address": report.address},
    )


def _placement(plan: Plan, member: str) -> Placement:
    return next(each for each in plan.placements if each.member == member)
