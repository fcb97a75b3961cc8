"""A follower (evaluator, TensorBoard) that is lost with its node moves alone, inside the generation.

No other task knows its address, so it needs no new ClusterSpec (docs/design.md); what rule 6 asks of a flip
is asked of this one transaction instead. It comes only when D has passed since the lost mark was seen (rule
3), compares that mark's revision and that nobody has appealed, so that a withdrawal in between makes it
stale, and makes the mark final: no appeal is heard after it. It compares the switch, so that no flip comes in
between, and the plan, so that two leaders cannot move the same task. In it the old assignment goes and the
new one comes, under the same plan id: an old agent that thaws finds nothing that asks for its attempt, and
ends it. The number of the new attempt is higher than any that the old agent was ever given.
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.contract import keys
from supervisor.contract.boundaries import Compare, Delete, Op
from supervisor.contract.desired import ClusterSpec, JobPhase, Placement
from supervisor.contract.incident import Cause
from supervisor.contract.observed import AttemptReport, AttemptState
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.facts.claims import claiming
from supervisor.control.decide.facts.standing import Standing, standing
from supervisor.control.decide.jobs import incidents
from supervisor.control.decide.jobs.prepare import assignment_of, find_place
from supervisor.control.decide.nodes.node_loss import by_marks, taking
from supervisor.control.decide.plan import Action, put, still, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned
from supervisor.control.decide.switch import Transition, turn


def move(snap: Snapshot, job: JobState, need: Need) -> list[Action]:
    """Put the follower that `need` is about on another node; empty while it may not or cannot be.

    It may when its node is lost, or when its last attempt is confirmed dead and the node is to be avoided.
    """
    plan, switch = job.plan_in_force, job.switch.value
    assert plan is not None
    placement = next(p for p in plan.value.placements if p.member == need.member)
    where = standing(snap, placement)
    if switch.closing is not None or where is Standing.SUSPECTED:
        return []
    report = job.report(placement, plan.value)
    dead = report is not None and report.value.confirmed_dead
    if where is Standing.ALIVE and not (dead and snap.now_ms >= need.due_ms):
        return []
    found = find_place(snap, job, need.member, need.avoid_nodes)
    if found.waiting_for:
        return []
    offer = found.placements[need.member]
    target = snap.nodes[offer.node].incarnation
    assert target is not None
    gpus = found.gpus[need.member]
    placed = Placement(placement.role, placement.index, offer.node, offer.incarnation, gpus)
    task, ledger = job.task(need.member), need.judgement.verdict.ledger
    number = 1 + max(
        (each.number for each in job.attempts if (each.task, each.generation) == (task, switch.generation)),
        default=0,
    )
    old = job.assigned(plan.value.plan_id, need.member)
    number = max(number, old.value.attempt + 1 if old is not None else 1)
    restarts = ledger.program + ledger.infrastructure
    serial = job.intent.value.restart_serial if need.cause is Cause.OPERATOR else switch.restart_serial
    wanted = replace(assignment_of(snap, job, plan.value, placed), attempt=number, restart_count=restarts)
    placements = tuple(placed if p.member == need.member else p for p in plan.value.placements)
    moved = replace(plan.value, placements=placements)
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
    picture = snap.nodes.get(placement.node)
    mark = picture.mark_of(placement.incarnation) if picture is not None else None
    compared, made_final = by_marks(snap, [mark] if mark is not None else [])
    compares += compared
    ops += made_final
    text = f"{need.detail}; {task} moves alone from {placement.node} to {placed.node} (rule {need.rule})"
    fields = {"task": str(task), "cause": need.cause.value, "rule": need.rule}
    taken = () if dead else (placement,)
    return [
        Action(
            "moved",
            job.name,
            text,
            tuple(compares),
            tuple(ops),
            fields,
            taking=taking(snap, job, taken),
            places=moved,
        )
    ]


def publish(job: JobState) -> list[Action]:
    """Bring the addresses that the ClusterSpec's record has of followers up to date; `TF_CONFIG` has none."""
    plan = job.plan_in_force
    spec = job.specs.get(plan.value.plan_id) if plan is not None else None
    if plan is None or spec is None or job.switch.value.phase is not JobPhase.RUNNING:
        return []
    for placement in plan.value.placements:
        report = job.report(placement, plan.value)
        if report is None or report.value.state is not AttemptState.RUNNING:
            continue
        changed = _with_address(spec.value, report)
        if changed != spec.value:
            compares = (unchanged(spec), unchanged(plan), unchanged(report))
            return [Action("address_published", job.name, "", compares, (put(spec.key, changed),))]
    return []


def _with_address(spec: ClusterSpec, report: Versioned[AttemptReport]) -> ClusterSpec:
    value = report.value

    def moved(addresses: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(value.address if i == value.index else each for i, each in enumerate(addresses))

    outside = tuple(
        replace(entry, addresses=moved(entry.addresses)) if entry.role == value.role else entry
        for entry in spec.outside
    )
    return replace(spec, outside=outside)
