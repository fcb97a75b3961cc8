"""Delays of a task's launcher, as the agent of its node reports them: dockerd, a registry, etcd."""

from __future__ import annotations

from supervisor.contract.desired import JobPhase, Plan
from supervisor.contract.observed import Prepared
from supervisor.control.decide.plan import Action, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot

DELAYED = "delayed"


def explain(job: JobState, plan: Plan) -> str:
    """The delays of a plan's tasks; empty without any."""
    return "; ".join(_text(each) for each in _delayed(job, plan))


def free_ms(snap: Snapshot, job: JobState, member: str) -> int:
    """Milliseconds since a task of the plan in force last waited for anything, as its agent tells; 0 while it
    waits.

    A delay counts only from the life that is registered now. A new life tells its own, and gets time for it.
    """
    since_ms = job.switch.seen_ms
    told = job.prepared.get((job.switch.value.plan_id, member))
    if told is not None:
        since_ms = max(since_ms, told.seen_ms)
        if told.value.delay:
            node = snap.nodes.get(told.value.node)
            life = node.incarnation if node is not None else None
            if life is None or life.value.incarnation == told.value.incarnation:
                return 0
            since_ms = max(since_ms, life.seen_ms)
    return snap.now_ms - since_ms


def in_force(job: JobState) -> str:
    """The same, of the plan in force, whose tasks are restarted in place."""
    plan = job.plan_in_force
    return explain(job, plan.value) if plan is not None and job.switch.value.phase is JobPhase.RUNNING else ""


def tell(job: JobState) -> list[Action]:
    """An event for the first delay that a plan meets on a node: its reason may change every second."""
    plan = job.next_plan or job.plan_in_force
    if plan is None or job.switch.value.phase.ended:
        return []
    found = _delayed(job, plan.value)
    if not found:
        return []
    told = {
        (held.value.fields.get("plan"), held.value.fields.get("node"))
        for held in job.events
        if held.value.kind == DELAYED
    }
    for delayed in found:
        fields = {"plan": delayed.plan_id, "node": delayed.node}
        if (delayed.plan_id, delayed.node) not in told:
            return [Action(DELAYED, job.name, _text(delayed), (unchanged(job.switch),), (), fields)]
    return []


def _delayed(job: JobState, plan: Plan) -> list[Prepared]:
    found = [job.prepared.get((plan.plan_id, placement.member)) for placement in plan.placements]
    return [held.value for held in found if held is not None and held.value.delay]


def _text(value: Prepared) -> str:
    return f"{value.role}:{value.index} cannot be made ready on {value.node} for now: {value.delay}"
