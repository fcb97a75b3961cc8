"""Tasks that are to leave what they run on: a GPU that has had a fault, or a node that is drained.

Tasks on a drained node run on until there is room for them elsewhere. Those that can move alone then do, one
after the other. A new generation moves the others, and all with them. Their node takes no new task meanwhile,
as it is cordoned.
"""

from __future__ import annotations

from supervisor.contract.desired import Cordon
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import Scope
from supervisor.control.decide.assess.failures import need_of
from supervisor.control.decide.assess.members import Member, MemberState
from supervisor.control.decide.assess.moving import moves_alone
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.assess.verdicts import Suspect, judge
from supervisor.control.decide.facts.gpus import SETTLED_MS, GpuHarm, befallen
from supervisor.control.decide.facts.history import incident_id
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned

LAST_WORDS_MS = 5_000
"""A program that crashed on its GPU has so long from the report to end by itself. CUDA tells it of the crash
after the report, when the driver has cleaned up, and only its own last lines name the cause."""


def gpu_need(snap: Snapshot, job: JobState, there: tuple[Member, ...]) -> Need | None:
    """The restart that a fault of a GPU asks for, of a task that runs on it."""
    plan = job.plan_in_force
    if plan is None or not any(member.placement.gpus for member in there):
        return None
    for member in there:
        if member.state is not MemberState.RUNNING:
            continue
        harmed = befallen(snap, job, plan.value, member.placement)
        if harmed is None or (harmed.blames_program and snap.now_ms < harmed.seen_ms + LAST_WORDS_MS):
            continue
        detail = harmed.describe()
        cause = _cause(member, harmed)
        return need_of(snap, job, member, cause, known_ms=harmed.seen_ms, detail=detail)
    return None


def _cause(member: Member, harmed: GpuHarm) -> Cause:
    """A program that crashes on its GPU is charged as if the crash had ended it, and once for each."""
    began_ms = member.report.created_ms if member.report is not None else harmed.seen_ms
    own = harmed.blames_program and harmed.seen_ms >= began_ms + SETTLED_MS
    return Cause.PROGRAM_SIGNAL if own else Cause.GPU


def drain_need(snap: Snapshot, job: JobState, there: tuple[Member, ...]) -> Need | None:
    """The move of the tasks that a job has on nodes that are drained; of all of them, if one needs that."""
    leaving = [
        (member, cordon)
        for member in there
        if member.state in (MemberState.RUNNING, MemberState.STARTING)
        if (cordon := _drain_of(snap, member)) is not None
    ]
    if not leaving:
        return None
    member, cordon = min(leaving, key=lambda each: moves_alone(job, each[0].task))
    return _of_drain(snap, job, member, cordon.value.reason, cordon.seen_ms)


def _drain_of(snap: Snapshot, member: Member) -> Versioned[Cordon] | None:
    picture = snap.nodes.get(member.placement.node)
    cordon = picture.cordon if picture is not None else None
    return cordon if cordon is not None and cordon.value.drain else None


def _of_drain(snap: Snapshot, job: JobState, member: Member, reason: str, known_ms: int) -> Need:
    node = member.placement.node
    alone = moves_alone(job, member.task) and not job.record.value.spec.role(member.task.role).follow
    scope, of = (Scope.TASK, f"-{member.task.member}") if alone else (Scope.ALL, "")
    incident = incident_id(job, f"g{job.switch.value.generation}-drain.{node}{of}")
    accused = Suspect(incident, Cause.DRAINED, Scope.ALL, "", node, False, known_ms)
    return Need(
        incident=incident,
        cause=Cause.DRAINED,
        scope=scope,
        rule="node.drain",
        judgement=judge(snap, job, accused),
        # Until it is closed for, an operator may think better of it.
        firm=False,
        known_ms=known_ms,
        member=member.placement.member,
        node=node,
        detail=f"node {node} is drained: {reason}",
    )
