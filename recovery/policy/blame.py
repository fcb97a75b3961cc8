"""Which of several failures came first, and so is the cause of the others."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import CHIEF_ROLES
from supervisor.contract.observed import Exit

NOTICE_LAG_MS = MappingProxyType({Cause.KILLED: 500, Cause.LAUNCHER_LOST: 2_000, Cause.NODE_LOST: 5_000})
"""How much later than it happened a failure of the machines may be seen. A peer that dies of it (TensorFlow's
UnavailableError, 0.1 to 3 s later) exits by itself and is seen at once, possibly before its cause."""

_ROLE_ORDER = ("ps", *CHIEF_ROLES, "worker")


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed task. `at_ms`: when it was seen to fail, on the leader's clock (receipt minus age)."""

    task: TaskId
    cause: Cause
    at_ms: int
    exit: Exit | None = None


def root_failures(failures: tuple[Failure, ...]) -> Failure:
    """The failure that the others of the same generation followed from; the order given does not matter.

    The one that may have happened first, where failures of the machines may have happened as much earlier
    than they were seen as NOTICE_LAG_MS says. At equal times a failure of the machines comes before the
    program's, and a parameter server, whose loss every peer feels, before a chief and a worker. PEER_LOST is
    never the root while there is another.
    """
    assert failures, "blame needs at least one failure"
    return min(failures, key=_order)


def _order(failure: Failure) -> tuple[bool, int, bool, int, TaskId, str]:
    role = failure.task.role
    rank = _ROLE_ORDER.index(role) if role in _ROLE_ORDER else len(_ROLE_ORDER)
    happened_ms = failure.at_ms - NOTICE_LAG_MS.get(failure.cause, 0)
    secondary = failure.cause is Cause.PEER_LOST
    return secondary, happened_ms, failure.cause.program_fault, rank, failure.task, failure.cause.value
