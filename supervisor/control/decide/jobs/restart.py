"""Restarting one task, or all parameter servers, at their own addresses within the generation (rule 6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from supervisor.contract.desired import Assignment, Placement, Plan
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import Scope
from supervisor.control.decide.assess import servers
from supervisor.control.decide.assess.moving import moves_alone
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.assess.progress import WATCHED
from supervisor.control.decide.facts.gpus import known_faults
from supervisor.control.decide.facts.standing import Standing, standing
from supervisor.control.decide.jobs import incidents
from supervisor.control.decide.jobs.moves import move, must_move
from supervisor.control.decide.plan import Action, put, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned
from supervisor.control.decide.switch import Transition, turn

OF_GPUS = (Cause.GPU, Cause.PROGRAM_SIGNAL)
"""Causes of restarts that follow from a fault of the task's GPU."""


def in_place(snap: Snapshot, job: JobState, need: Need) -> list[Action]:
    """Ask the task's agent for the next attempt; empty while the old one is not confirmed dead."""
    plan = job.plan_in_force
    switch = job.switch.value
    assert need.scope is Scope.TASK
    assert plan is not None
    held = job.assigned(plan.value.plan_id, need.member)
    if held is None or switch.closing is not None:
        return []
    placement = next(p for p in plan.value.placements if p.member == need.member)
    if must_move(snap, job, need):
        return move(snap, job, need)
    if standing(snap, placement) is not Standing.ALIVE:
        return []
    if servers.are_together(job, job.task(need.member)) and need.cause is not Cause.OPERATOR:
        return _together(snap, job, need, plan.value)
    report = job.attempts.get(held.value.attempt_id)
    dead = report is not None and report.value.confirmed_dead
    # One that runs needs no death first: the agent ends the old attempt before it starts the next.
    runs = report is not None and report.value.exit is None and need.cause in {*WATCHED, *OF_GPUS}
    if not dead and not runs and need.cause is not Cause.OPERATOR:
        return []
    if snap.now_ms < need.due_ms:
        return []
    following = _following_in_place(snap, job, need, placement, held.value)
    orders = [(held, following), *_beside(snap, job, need, plan.value)]
    told = f"is restarted in place on {placement.node} as attempt {following.attempt}"
    more = f", and with it {len(orders) - 1} more" if len(orders) > 1 else ""
    return [_restarting(snap, job, need, orders, f"{job.task(need.member)} {told}{more}")]


def _beside(
    snap: Snapshot, job: JobState, need: Need, plan: Plan
) -> Iterator[tuple[Versioned[Assignment], Assignment]]:
    """The orders for the tasks that restart with the one that `need` is about: they run, as it does.

    One that is told to end leaves its place, or is about to move.
    """
    for placement in plan.placements:
        held = job.assigned(plan.plan_id, placement.member)
        if placement.member in need.beside and held is not None and not held.value.ends:
            yield held, _following_in_place(snap, job, need, placement, held.value)


def _together(snap: Snapshot, job: JobState, need: Need, plan: Plan) -> list[Action]:
    """Restart all parameter servers in place, once all of them are confirmed dead (rule 6.12).

    The chief restores all variables into them. Workers wait as long as one variable has no value: what a
    server that lives on has kept would count as one.
    """
    servers_of = servers.servers_of(job, plan)
    wanted = [(placement, held) for placement, held in servers_of if held is not None]
    reports = [job.attempts.get(held.value.attempt_id) for _, held in wanted]
    alive = [
        held
        for (_, held), report in zip(wanted, reports, strict=True)
        if report is None or not report.value.confirmed_dead
    ]
    if snap.now_ms < need.due_ms or len(wanted) < len(servers_of):
        return []
    task = job.task(need.member)
    names = ", ".join(str(job.task(placement.member)) for placement, _ in wanted)
    fields = {"task": str(task), "cause": need.cause.value, "rule": need.rule}
    if alive:
        ending = [held for held in alive if not held.value.ends and held.value.task != task]
        text = f"{need.detail}; the other parameter servers end, to start again with it (rule {need.rule})"
        compares = (unchanged(job.switch), *map(unchanged, ending))
        ops = tuple(put(held.key, replace(held.value, ends=True)) for held in ending)
        return [Action("servers_end", job.name, text, compares, ops, fields)] if ending else []
    orders = [(held, _following(snap, need, placement, held.value)) for placement, held in wanted]
    return [_restarting(snap, job, need, orders, f"{names} restart in place, and the others run on")]


def _following_in_place(
    snap: Snapshot, job: JobState, need: Need, placement: Placement, held: Assignment
) -> Assignment:
    joins = held.joins or _finds_a_gap(snap, job, placement)
    return replace(_following(snap, need, placement, held), joins=joins)


def _following(snap: Snapshot, need: Need, placement: Placement, held: Assignment) -> Assignment:
    """The order for the next attempt of a task, where it is."""
    return replace(
        held,
        attempt=held.attempt + 1,
        restart_count=need.judgement.verdict.ledger.restarts,
        gpu_faults=known_faults(snap, placement.node, held.gpus),
        ends=False,
    )


def _restarting(
    snap: Snapshot,
    job: JobState,
    need: Need,
    orders: Sequence[tuple[Versioned[Assignment], Assignment]],
    told: str,
) -> Action:
    """The transaction that replaces these orders, and charges and records the restart."""
    switch, intent = job.switch.value, job.intent.value
    serial = intent.restart_serial if need.cause is Cause.OPERATOR else switch.restart_serial
    ledger, reason = need.judgement.verdict.ledger, need.judgement.verdict.reason
    task = job.task(need.member)
    number = next(order.attempt for _, order in orders if order.task == task)
    return Action(
        kind="restart_in_place",
        job=job.name,
        text=f"{need.detail}; {told} (rule {need.rule}; {reason})",
        compares=(unchanged(job.switch), *(unchanged(held) for held, _ in orders)),
        ops=(
            *(put(held.key, order) for held, order in orders),
            turn(
                job.switch, Transition.RESTART, ledger=ledger, incident=need.incident, restart_serial=serial
            ),
            *incidents.opening(snap, job, need, switch.generation, switch.plan_id, attempt=number),
        ),
        fields={"task": str(task), "cause": need.cause.value, "rule": need.rule},
    )


def _finds_a_gap(snap: Snapshot, job: JobState, placement: Placement) -> bool:
    """Whether a worker has to join, at its own address: the others are not all where it would look for them.

    A program of TensorFlow 1 waits for every worker of its ClusterSpec before it begins.
    """
    plan = job.plan_in_force
    if plan is None or job.record.value.spec.role(placement.role).follow:
        return False
    if not moves_alone(job, job.task(placement.member)):
        return False
    alive = (standing(snap, each) is Standing.ALIVE for each in plan.value.placements)
    return bool(job.switch.value.edition) or not all(alive)
