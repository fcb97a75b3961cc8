"""What an ended attempt means: a failure of the program, of the machines, or none at all."""

from __future__ import annotations

from signal import Signals

from recovery.decide.roles import RoleKind, kind_of, trains
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Cause
from supervisor.contract.job import JobSpec
from supervisor.contract.observed import AttemptReport, Exit, ExitReason

OUTSIDE_SIGNALS = frozenset(
    {Signals.SIGKILL, Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP, Signals.SIGQUIT}
)
"""Signals that come from an operator, a terminal or the kernel's OOM killer. The others (SIGSEGV, SIGABRT,
SIGBUS, SIGFPE, SIGILL, SIGPIPE, ...) are what a program's own fault looks like."""

NEVER_READY_CODE = 75
"""With START_FAILED: what the program was to wait for (`after`) did not listen in time, as `detail` says."""

_BY_REASON = {
    ExitReason.DEADLINE: Cause.DEADLINE,
    ExitReason.START_FAILED: Cause.START_FAILED,
    ExitReason.LAUNCHER_LOST: Cause.LAUNCHER_LOST,
}


def classify(report: AttemptReport, spec: JobSpec, phase: JobPhase) -> Cause | None:
    """Why this attempt's end is a failure; None if it is not one.

    Not a failure: an attempt that runs, that we killed, or that ends after the job's training is over or was
    stopped; a training task or a follower that exited with 0.
    """
    if report.exit is None or report.exit.reason is ExitReason.KILLED:
        return None
    if phase not in (JobPhase.WAITING, JobPhase.RUNNING):
        return None
    if report.exit.reason is not ExitReason.EXIT:
        waited = report.exit.reason is ExitReason.START_FAILED and report.exit.code == NEVER_READY_CODE
        return Cause.NEVER_READY if waited else _BY_REASON[report.exit.reason]
    if report.exit.signal is not None:
        return Cause.KILLED if report.exit.signal in OUTSIDE_SIGNALS else Cause.PROGRAM_SIGNAL
    if report.exit.code != 0:
        return Cause.PROGRAM_EXIT
    needed = kind_of(spec, report.role) is RoleKind.SERVER and trains(spec)
    return Cause.EXITED_EARLY if needed else None


def describe(report: AttemptReport) -> str:
    """One plain sentence about how the attempt stands, for people; no full stop at its end."""
    subject = f"{report.attempt.task} on {report.node}"
    if report.exit is None:
        return f"{subject} runs with pid {report.pid}"
    detail = f": {report.exit.detail}" if report.exit.detail else ""
    return f"{subject} {_ending(report.exit)}{detail}"


def signal_name(number: int) -> str:
    """`SIGKILL (signal 9)`; real-time signals have numbers only."""
    try:
        return f"{Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def _ending(end: Exit) -> str:
    how = f"exited with code {end.code}" if end.signal is None else f"was ended by {signal_name(end.signal)}"
    match end.reason:
        case ExitReason.EXIT:
            return how
        case ExitReason.KILLED:
            return "was stopped by its agent"
        case ExitReason.DEADLINE:
            return "was killed at its deadline, as its agent could not vouch for it any more"
        case ExitReason.START_FAILED:
            return "could not be started"
        case ExitReason.LAUNCHER_LOST:
            return "was killed, as its launcher was gone or silent"
