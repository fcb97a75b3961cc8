"""Nodes that are drained: their tasks move away by a new generation, once there is room for them elsewhere.

They run on until then. Their node takes no new task meanwhile, as it is cordoned.
"""

from __future__ import annotations

from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import Scope
from supervisor.control.decide.assess.failures import Member, MemberState, Need, members
from supervisor.control.decide.assess.verdicts import Suspect, judge
from supervisor.control.decide.facts.history import incident_id
from supervisor.control.decide.snapshot import JobState, Snapshot


def find(snap: Snapshot, job: JobState) -> Need | None:
    """The move of the tasks that a job has on a node that is drained."""
    plan = job.plan_in_force
    if plan is None or job.switch.value.phase is not JobPhase.RUNNING:
        return None
    cordons = {name: node.cordon for name, node in snap.nodes.items() if node.cordon is not None}
    drained = {name: cordon for name, cordon in cordons.items() if cordon.value.drain}
    if not any(placement.node in drained for placement in plan.value.placements):
        return None
    for member in members(snap, job, plan.value):
        cordon = drained.get(member.placement.node)
        if cordon is not None and member.state in (MemberState.RUNNING, MemberState.STARTING):
            return _need(snap, job, member, cordon.value.reason, cordon.seen_ms)
    return None


def _need(snap: Snapshot, job: JobState, member: Member, reason: str, known_ms: int) -> Need:
    node = member.placement.node
    incident = incident_id(job, f"g{job.switch.value.generation}-drain.{node}")
    accused = Suspect(incident, Cause.DRAINED, Scope.ALL, "", node, False, known_ms)
    return Need(
        incident=incident,
        cause=Cause.DRAINED,
        scope=Scope.ALL,
        rule="node.drain",
        verdict=judge(snap, job, accused).verdict,
        # Until it is closed for, an operator may think better of it.
        firm=False,
        detected_ms=0,
        known_ms=known_ms,
        member=member.placement.member,
        node=node,
        detail=f"node {node} is drained: {reason}",
    )
