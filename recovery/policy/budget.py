"""The budget of restarts: whether a job may restart once more, and the pause before it (rule 13)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from recovery.policy.history import ASKED, Tally
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import Ledger
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import RestartPolicy

_MAX_DOUBLINGS = 40
FREE_RESTARTS = 2
"""Number of restarts in a row, caused by the machines, that have no pause before them."""

NOTHING_BEFORE = Tally()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The job's ledger after a failure, and what it allows.

    Attributes:
        backoff_ms: the pause before the restart, in milliseconds; 0 if it is not allowed.
        reason: the figures, for people.
    """

    ledger: Ledger
    allowed: bool
    backoff_ms: int
    reason: str


def charge(
    ledger: Ledger,
    cause: Cause,
    newest: CheckpointRef | None,
    policy: RestartPolicy,
    recent: Tally = NOTHING_BEFORE,
) -> Verdict:
    """Enter a failure into the ledger. `newest` is the newest commit that can be restored.

    The program's own faults in a row without progress are a streak: its first restarts at once, each later
    one after twice the pause, and the fault after `max_restarts` restarts is refused. So is one too many of
    the same task without a step of its own, though the others make progress, and the fault after
    `max_in_window` within `window_ms`. All other causes are counted apart and allowed; from the third in a
    row without a step they pause too. A launcher that is lost again and again may be ended by the program:
    the loss after `max_restarts` and FREE_RESTARTS restarts is refused. So is a port that is taken, as each
    new generation has others. A start or restart that an operator asks for ends the streak.
    """
    if cause in ASKED:
        restarts = ledger.infrastructure + (cause is Cause.OPERATOR)
        restored = replace(ledger, streak=0, infrastructure=restarts)
        return Verdict(restored, allowed=True, backoff_ms=0, reason="as asked")
    if not cause.program_fault:
        counted = replace(ledger, infrastructure=ledger.infrastructure + 1)
        pause_ms = _backoff_ms(recent.machines - FREE_RESTARTS, policy)
        if recent.launchers > policy.max_restarts + FREE_RESTARTS:
            return Verdict(
                counted, allowed=False, backoff_ms=0, reason=_of_launchers(recent.launchers, policy)
            )
        if recent.clashes > policy.max_restarts + FREE_RESTARTS:
            return Verdict(counted, allowed=False, backoff_ms=0, reason=_of_clashes(recent.clashes, policy))
        reason = f"{cause.value} does not count against the program; {_streak(ledger.streak, policy)}" + (
            f"; {recent.machines} in a row without a step, after {pause_ms} ms" if pause_ms else ""
        )
        return Verdict(counted, allowed=True, backoff_ms=pause_ms, reason=reason)
    return _charge_program(ledger, newest, policy, recent)


def _charge_program(
    ledger: Ledger, newest: CheckpointRef | None, policy: RestartPolicy, recent: Tally
) -> Verdict:
    progressed = _progressed(ledger.progress, newest)
    streak = 1 if progressed else ledger.streak + 1
    furthest = newest if progressed else ledger.progress
    after = replace(ledger, streak=streak, progress=furthest)
    refusal = _refusal(after, policy, recent)
    if refusal:
        return Verdict(after, allowed=False, backoff_ms=0, reason=refusal)
    pause_ms = _backoff_ms(max(streak, recent.task) - 1, policy)
    reason = f"{_streak(streak, policy)}, " + (f"after {pause_ms} ms" if pause_ms else "at once")
    return Verdict(
        replace(after, program=ledger.program + 1), allowed=True, backoff_ms=pause_ms, reason=reason
    )


def _refusal(after: Ledger, policy: RestartPolicy, recent: Tally) -> str:
    """The reason to refuse a restart after a fault of the program; empty if there is none."""
    allows = f"restart.max allows {policy.max_restarts} restarts"
    if after.streak > policy.max_restarts:
        since = f"a checkpoint newer than step {after.progress.step}" if after.progress else "any checkpoint"
        return f"{after.streak} program faults in a row without {since}; {allows}"
    if recent.task > policy.max_restarts:
        return f"{recent.task} faults of this task in a row without a step of its own; {allows}"
    if recent.window > policy.max_in_window:
        minutes = policy.window_ms / 60_000
        return (
            f"{recent.window} program faults within {minutes:g} minutes, though with progress; "
            f"restart.max_in_window allows {policy.max_in_window}"
        )
    return ""


def _of_launchers(row: int, policy: RestartPolicy) -> str:
    most = policy.max_restarts + FREE_RESTARTS
    return (
        f"a launcher was lost {row} times in a row, each within a minute of the one before, as where a "
        f"program ends it; {most} restarts are allowed, {FREE_RESTARTS} more than restart.max"
    )


def _of_clashes(row: int, policy: RestartPolicy) -> str:
    most = policy.max_restarts + FREE_RESTARTS
    return (
        f"a port was taken {row} times in a row without a newer checkpoint, each time another one; {most} "
        f"restarts are allowed, {FREE_RESTARTS} more than restart.max"
    )


def _progressed(before: CheckpointRef | None, newest: CheckpointRef | None) -> bool:
    """Whether the newest commit has a later step.

    A later generation alone is no progress: it may have saved its base.
    """
    return newest is not None and (before is None or newest.step > before.step)


def _backoff_ms(delayed: int, policy: RestartPolicy) -> int:
    """The pause before the `delayed`-th restart that has one; none before those that are free."""
    if delayed < 1:
        return 0
    # Shifted no further than any sane `backoff_max_ms`: a long streak must not build a huge number.
    return min(policy.backoff_ms << min(delayed - 1, _MAX_DOUBLINGS), policy.backoff_max_ms)


def _streak(streak: int, policy: RestartPolicy) -> str:
    return f"{streak} of {policy.max_restarts} restarts in a row without a newer checkpoint used"
