"""Detection of errors in the program's code: the same uncaught exception twice before any training."""

from __future__ import annotations

from collections.abc import Iterable

from recovery.policy.history import STEADY_MS, Past, Present
from supervisor.contract.incident import Cause, Raised

_OF_AN_ERROR = frozenset({Cause.PROGRAM_EXIT, Cause.USER_ERROR})


def first_error(present: Present, error: Raised | None, *, trained: bool) -> Raised | None:
    """The error of its code by which a program ended before any sign of training; None for any other end.

    A job that has a checkpoint has trained in some life, so the checkpoint may be at fault: None.
    """
    if trained or present.stepped or present.base is not None or present.newest is not None:
        return None
    return error if present.cause is Cause.PROGRAM_EXIT else None


def raised_on(
    error: Raised,
    life: Iterable[Past],
    present: Present,
    beside: Iterable[tuple[str, Raised | None]],
    startup_ms: int | None,
) -> frozenset[str]:
    """The nodes on which tasks of the job have raised the same exception, without the present failure.

    `beside`: node and error of the other tasks that have ended in the generation in force. `startup_ms`: the
    time that a start may take until its first step; None: for ever. A failure that is older than that, and
    than STEADY_MS, does not count: between the two the program may have trained without a word.
    """
    within_ms = max(STEADY_MS, startup_ms or 0)
    earlier = (
        (past.incident.node, past.incident.error)
        for past in life
        if past.incident.cause in _OF_AN_ERROR and _ago_ms(past, present) < within_ms
    )
    return frozenset(node for node, other in (*earlier, *beside) if other == error)


def _ago_ms(past: Past, present: Present) -> int:
    """The age of a failure: the larger one of that on the leader's own clock and that on the wall clock."""
    return max(present.at_ms - past.seen_ms, present.wall_ms - past.incident.wall_ms)
