"""Whether a job may restart once more, and after what pause (rule 13)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import Ledger
from supervisor.contract.incident import Cause
from supervisor.contract.job import RestartPolicy

_MAX_DOUBLINGS = 40


@dataclass(frozen=True, slots=True)
class Verdict:
    """The job's ledger after a failure, and what it allows.

    Attributes:
        backoff_ms: how long to wait before the restart; 0 if it is not allowed.
        reason: the figures, for people.
    """

    ledger: Ledger
    allowed: bool
    backoff_ms: int
    reason: str


def charge(ledger: Ledger, cause: Cause, newest: CheckpointRef | None, policy: RestartPolicy) -> Verdict:
    """Enter a failure into the ledger. `newest` is the newest commit that can be restored.

    The program's own faults in a row without progress are a streak: its first restarts at once, each later
    one after twice the pause, and the fault after `max_restarts` restarts is refused. All other causes are
    counted apart and always allowed. A start that an operator asks for (SUBMITTED) is no restart, and ends
    the streak.
    """
    if cause is Cause.SUBMITTED:
        return Verdict(replace(ledger, streak=0), allowed=True, backoff_ms=0, reason="started as asked")
    if not cause.program_fault:
        counted = replace(ledger, infrastructure=ledger.infrastructure + 1)
        reason = f"{cause.value} does not count against the program; {_streak(ledger.streak, policy)}"
        return Verdict(counted, allowed=True, backoff_ms=0, reason=reason)
    return _charge_program(ledger, newest, policy)


def _charge_program(ledger: Ledger, newest: CheckpointRef | None, policy: RestartPolicy) -> Verdict:
    streak = 1 if _progressed(ledger.progress, newest) else ledger.streak + 1
    furthest = newest if _progressed(ledger.progress, newest) else ledger.progress
    after = replace(ledger, streak=streak, progress=furthest)
    if streak > policy.max_restarts:
        since = f"a checkpoint newer than step {furthest.step}" if furthest else "any checkpoint"
        reason = (
            f"{streak} program faults in a row without {since}; "
            f"restart.max_restarts allows {policy.max_restarts} restarts"
        )
        return Verdict(after, allowed=False, backoff_ms=0, reason=reason)
    pause_ms = _backoff_ms(streak, policy)
    reason = f"{_streak(streak, policy)}, " + (f"after {pause_ms} ms" if pause_ms else "at once")
    return Verdict(
        replace(after, program=ledger.program + 1), allowed=True, backoff_ms=pause_ms, reason=reason
    )


def _progressed(before: CheckpointRef | None, newest: CheckpointRef | None) -> bool:
    """Steps count, not generations: a program that saves what it restored and then dies has done nothing."""
    return newest is not None and (before is None or newest.step > before.step)


def _backoff_ms(streak: int, policy: RestartPolicy) -> int:
    if streak == 1:
        return 0
    # Shifted no further than any sane `backoff_max_ms`: a long streak must not build a huge number.
    return min(policy.backoff_ms << min(streak - 2, _MAX_DOUBLINGS), policy.backoff_max_ms)


def _streak(streak: int, policy: RestartPolicy) -> str:
    return f"{streak} of {policy.max_restarts} restarts in a row without a newer checkpoint used"
