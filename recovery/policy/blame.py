"""The root among several failures of one generation: the one that the others followed from."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import CHIEF_ROLES
from supervisor.contract.observed import Exit

NOTICE_LAG_MS = MappingProxyType({Cause.KILLED: 500, Cause.LAUNCHER_LOST: 2_000, Cause.NODE_LOST: 5_000})
"""The longest time, in milliseconds, between a failure of a machine and the moment at which the leader sees
it. A peer that ends because of it (TensorFlow's UnavailableError, 0.1 to 3 s later) is seen at once, possibly
before its cause."""

_ROLE_ORDER = ("ps", *CHIEF_ROLES, "worker")


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed task. `at_ms` is the time of the failure on the leader's clock: receipt of the report minus
    its age.
    """

    task: TaskId
    cause: Cause
    at_ms: int
    exit: Exit | None = None


def root_failures(failures: tuple[Failure, ...]) -> Failure:
    """The failure that the others of the same generation followed from; the order given does not matter.

    It is the failure with the earliest possible time. A failure of a machine may have happened NOTICE_LAG_MS
    before it was seen. At equal times a failure of the machines comes before the program's, and a parameter
    server, whose loss every peer feels, before a chief and a worker. PEER_LOST is never the root while there
    is another.
    """
    assert failures, "blame needs at least one failure"
    return min(failures, key=_order)


def _order(failure: Failure) -> tuple[bool, int, bool, int, TaskId, str]:
    role = failure.task.role
    rank = _ROLE_ORDER.index(role) if role in _ROLE_ORDER else len(_ROLE_ORDER)
    happened_ms = failure.at_ms - NOTICE_LAG_MS.get(failure.cause, 0)
    secondary = failure.cause is Cause.PEER_LOST
    return secondary, happened_ms, failure.cause.program_fault, rank, failure.task, failure.cause.value
