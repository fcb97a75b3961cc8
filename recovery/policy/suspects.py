"""The suspect of a failure that returns: a node, a checkpoint, or the program.

A failure that returns on one node while tasks on other nodes are well comes from the node. A failure that
returns from one checkpoint, before the first step, comes from the checkpoint. A failure that returns from
several checkpoints comes from the program.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from recovery.policy.history import ASKED, Past, Present, failed_after_a_step
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.incident import Cause, Incident
from supervisor.contract.job.spec import Scope

TIMES_ON_A_NODE = 3
GENERATIONS_FROM_A_BASE = 2

OF_A_RESTORE = frozenset({Cause.DATA_LOSS, Cause.PROGRAM_EXIT, Cause.PROGRAM_SIGNAL})
"""Causes of a program that cannot restore its checkpoint. DATA_LOSS is about the checkpoint. The others may
have a different reason, so the task is tried on another node first."""

_NOT_OF_A_NODE = frozenset(
    {
        Cause.NODE_LOST,
        Cause.DRAINED,
        Cause.RESIZED,
        Cause.PEER_LOST,
        Cause.NAN_LOSS,
        Cause.DATA_LOSS,
        Cause.WALL_TIME,
        Cause.STORE_LOST,
        Cause.BASE_MISSED,
        Cause.LEFT_LOCK,
    }
)
_EVEN_AFTER_A_STEP = frozenset({Cause.PROGRAM_SIGNAL, Cause.HANG})
"""Causes that count against a node even after the program has made steps there: a faulty machine lets a
program work at first."""


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """A verdict that a node should not be used for a while.

    `proven`: several tasks have failed there in this way while those on other nodes were well, so the node
    may be cordoned for all jobs. Otherwise the fault may be the task's own, and only this job tries another
    node.
    """

    node: str
    proven: bool
    reason: str


@dataclass(frozen=True, slots=True)
class BaseVerdict:
    """A verdict on `base`. `acquitted` are checkpoints that were suspected before and are cleared by this
    failure.

    Either the base is put in `quarantine` and the one before it is taken, or the base is not at fault and the
    job `fails` with the reason.
    """

    base: CheckpointRef
    quarantine: bool
    reason: str
    acquitted: tuple[CheckpointRef, ...] = ()

    @property
    def fails(self) -> bool:
        """The job has to end with this reason."""
        return not self.quarantine


def suspect_node(life: tuple[Past, ...], present: Present, homes: Iterable[str]) -> NodeVerdict | None:
    """The verdict on the present failure's node; None unless the same cause has returned on this node alone.

    `homes` are the nodes of the other tasks in force. Two kinds of failures do not count: those that followed
    from others, and those that no node can cause.
    """
    cause, node = present.cause, present.node
    if not node or cause in _NOT_OF_A_NODE or cause in ASKED:
        return None
    if present.stepped and cause not in _EVEN_AFTER_A_STEP:
        return None
    run = list(
        takewhile(
            lambda incident: (
                incident.cause is cause and incident.node == node and _may_be_of_a_node(incident)
            ),
            (past.incident for past in reversed(life) if past.incident.cause is not Cause.PEER_LOST),
        )
    )
    times = len(run) + 1
    if times < TIMES_ON_A_NODE:
        return None
    others = sorted(set(homes) - {node})
    well = f", while the tasks on {', '.join(others)} were well" if others else ""
    reason = f"{cause.value} {times} times in a row on {node}{well}"
    tasks = {present.member, *(incident.member for incident in run)}
    return NodeVerdict(node, proven=bool(others) and len(tasks) > 1, reason=reason)


def _may_be_of_a_node(incident: Incident) -> bool:
    return incident.cause in _EVEN_AFTER_A_STEP or not failed_after_a_step(incident)


def suspect_base(
    life: tuple[Past, ...],
    present: Present,
    *,
    older: int,
    suspected: frozenset[CheckpointRef],
    steps_are_read: bool,
    elsewhere: bool,
) -> BaseVerdict | None:
    """The verdict on the base of the generation in force; None while there is no reason for one.

    `older`: the number of checkpoints that could be restored instead. `suspected`: those quarantined by an
    earlier verdict. `steps_are_read`: the program is known to report steps, so that none means that none was
    made. `elsewhere`: another node could take the failed task.
    """
    base, cause = present.base, present.cause
    if base is None or cause not in OF_A_RESTORE or present.scope is not Scope.ALL or present.stepped:
        return None
    if cause is not Cause.DATA_LOSS and not steps_are_read:
        return None
    run = _before_a_step(life, cause)
    same = [incident for incident in run if incident.base == base]
    others = tuple(dict.fromkeys(i.base for i in run if i.base in suspected - {base}))
    if cause is not Cause.DATA_LOSS and others:
        names = ", ".join(str(each) for each in (*reversed(others), base))
        reason = f"{cause.value} before the first step from each of {names}: it is not the checkpoint's fault"
        return BaseVerdict(base, quarantine=False, reason=reason, acquitted=others)
    generations = {incident.from_generation for incident in same}
    if len(generations) + 1 < GENERATIONS_FROM_A_BASE:
        return None
    nodes = {incident.node for incident in same} | {present.node}
    if cause is not Cause.DATA_LOSS and len(nodes) == 1 and elsewhere and len(generations) == 1:
        return None
    reason = f"{cause.value} before the first step in {len(generations) + 1} generations that started from it"
    if older:
        return BaseVerdict(base, quarantine=True, reason=reason)
    if cause is Cause.DATA_LOSS:
        return BaseVerdict(base, quarantine=False, reason=f"{base}: {reason}; no other checkpoint is left")
    return None


def try_elsewhere(life: tuple[Past, ...], present: Present, *, steps_are_read: bool) -> bool:
    """Whether to try another node first, after a second failure before the first step from the same base."""
    if present.scope is not Scope.ALL or present.stepped or not steps_are_read or present.base is None:
        return False
    if present.cause not in OF_A_RESTORE or present.cause is Cause.DATA_LOSS:
        return False
    same = [i for i in _before_a_step(life, present.cause) if i.base == present.base]
    return bool(same) and {incident.node for incident in same} == {present.node}


def _before_a_step(life: tuple[Past, ...], cause: Cause) -> list[Incident]:
    """The newest failures in a row that ended a whole generation before its first step with this cause."""
    return list(
        takewhile(
            lambda i: (
                i.cause is cause
                and i.scope is Scope.ALL
                and not failed_after_a_step(i)
                and i.from_generation > 0
            ),
            (past.incident for past in reversed(life) if past.incident.cause is not Cause.PEER_LOST),
        )
    )
