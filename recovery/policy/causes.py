"""The cause of an attempt's end: a failure of the program, of the machines, or no failure at all."""

from __future__ import annotations

from dataclasses import dataclass
from signal import Signals

from recovery.policy.logs import (
    LEFT_LOCK,
    NO_PROTOCOL,
    SHARDS_APART,
    Finding,
    full_disk,
    has_shards_apart,
    lacks_protocol,
    last_words,
    left_lock,
)
from recovery.policy.roles import RoleKind, kind_of, trains
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import PLAIN_PROTOCOL, JobSpec, Strategy
from supervisor.contract.observed import CANNOT_GO_ON, AttemptReport, Exit, ExitReason

OUTSIDE_SIGNALS = frozenset(
    {Signals.SIGKILL, Signals.SIGTERM, Signals.SIGINT, Signals.SIGHUP, Signals.SIGQUIT}
)
"""Signals that come from an operator, a terminal or the kernel's OOM killer. The others (SIGSEGV, SIGABRT,
SIGBUS, SIGFPE, SIGILL, SIGPIPE, ...) come from a fault of the program itself."""

STAGED = "staged"
"""The mode of `checkpoint` in which each node has a directory of its own."""

NEVER_READY_CODE = 75
"""Exit code with START_FAILED: a task that this one starts `after` did not listen in time; `detail` names
it."""

NO_DIRECTORY_CODE = 74
"""Exit code with START_FAILED: the mount of the checkpoint directory did not appear in time."""

_BY_REASON = {
    ExitReason.DEADLINE: Cause.DEADLINE,
    ExitReason.START_FAILED: Cause.START_FAILED,
    ExitReason.LAUNCHER_LOST: Cause.LAUNCHER_LOST,
    ExitReason.DEVICES_LOST: Cause.GPU,
}


@dataclass(frozen=True, slots=True)
class Judged:
    """The cause of a failed attempt, and the line of its output that names it; empty if no line does."""

    cause: Cause
    line: str = ""


def classify(
    report: AttemptReport, spec: JobSpec, phase: JobPhase, *, trained: bool = False
) -> Judged | None:
    """The cause of this attempt's failure; None if its end is no failure.

    These are no failures: an attempt that runs, that the agent killed, or that ends after the job's training
    is over or was stopped; a training task or a follower that exited with 0.

    `trained`: the job has made a step since its last start, so its files and flags are right and its errors
    are no longer taken for the user's. The exception is a save whose shards lie on several nodes.
    """
    if report.exit is None or report.exit.reason is ExitReason.KILLED:
        return None
    if phase not in (JobPhase.WAITING, JobPhase.RUNNING):
        return None
    judged = _judge(report.exit)
    if judged is None:
        needed = kind_of(spec, report.role) is RoleKind.SERVER and trains(spec)
        return Judged(Cause.EXITED_EARLY) if needed else None
    staged = spec.checkpoint.mode == STAGED
    if staged and judged.cause is Cause.PROGRAM_EXIT and has_shards_apart(_told(report.exit)):
        # Also once it has trained: no save of this job was ever whole, and none will be.
        return Judged(Cause.USER_ERROR, SHARDS_APART)
    if judged.cause is Cause.PROGRAM_EXIT and _lacks_protocol(report.exit, spec):
        # Once it has trained, another node's build has the protocol: a start elsewhere may help.
        line = NO_PROTOCOL.format(protocol=spec.protocol)
        return Judged(Cause.PROGRAM_EXIT if trained else Cause.USER_ERROR, line)
    if judged.cause is Cause.PROGRAM_EXIT and (lock := left_lock(report.exit.tail)):
        return Judged(judged.cause, LEFT_LOCK.format(path=lock))
    if full := full_disk(judged.line):
        judged = Judged(judged.cause, f"{judged.line}; the disk of {full} on {report.node} is full")
    if judged.cause is Cause.PORT_CLASH and not _binds_alone(spec, report.role):
        return Judged(judged.cause, f"{judged.line}; {HELD_PORT}")
    return Judged(_ONCE_TRAINED.get(judged.cause, judged.cause), judged.line) if trained else judged


def _lacks_protocol(end: Exit, spec: JobSpec) -> bool:
    return spec.protocol != PLAIN_PROTOCOL and lacks_protocol(_told(end))


def _told(end: Exit) -> str:
    """All that is known of what the program printed."""
    return "\n".join((*(each.text for each in end.raised), end.tail))


def _binds_alone(spec: JobSpec, role: str) -> bool:
    return spec.strategy is Strategy.PLAIN or spec.role(role).outside


HELD_PORT = (
    "the launcher holds the task's port for TensorFlow's server, which shares it (TF_GRPC_REUSE_PORT); any "
    "other server on that port must set SO_REUSEPORT, too"
)

_OF_THE_STORE = frozenset({Cause.PROGRAM_EXIT, Cause.DATA_LOSS, Cause.OUT_OF_RANGE})
"""Causes that may hide a failed read or write of the store. Other causes are named by the program itself."""

_ONCE_TRAINED = {Cause.USER_ERROR: Cause.PROGRAM_EXIT, Cause.MISSING_PROGRAM: Cause.START_FAILED}


def _judge(end: Exit) -> Judged | None:
    """None for exit code 0."""
    if end.reason is not ExitReason.EXIT:
        if end.reason is ExitReason.START_FAILED and end.code == NEVER_READY_CODE:
            return Judged(Cause.NEVER_READY)
        if end.reason is ExitReason.START_FAILED and end.code == NO_DIRECTORY_CODE:
            return Judged(Cause.STORE_LOST)
        missing = end.reason is ExitReason.START_FAILED and end.detail.startswith("cannot run ")
        return Judged(Cause.MISSING_PROGRAM) if missing else Judged(_BY_REASON[end.reason])
    if end.code == 0:
        return None
    if end.oom:
        return Judged(Cause.OOM)
    aborted = end.signal == Signals.SIGABRT
    found = last_words(end.tail, end.raised, aborted=aborted) or Finding(Cause.PROGRAM_EXIT, "")
    if end.store_lost and end.signal not in OUTSIDE_SIGNALS and found.cause in _OF_THE_STORE:
        return Judged(Cause.STORE_LOST, found.line)
    if end.signal is None:
        return Judged(found.cause, found.line)
    if end.signal in OUTSIDE_SIGNALS:
        return Judged(Cause.KILLED)
    # A fatal line of C++ ends in SIGABRT; what it says is closer to the cause than the signal.
    told = aborted and found.cause is not Cause.PROGRAM_EXIT
    return Judged(found.cause if told else Cause.PROGRAM_SIGNAL, found.line if aborted else "")


def describe(report: AttemptReport) -> str:
    """The attempt's state as one sentence for people, without a full stop."""
    subject = f"{report.attempt.task} on {report.node}"
    if report.exit is None:
        return f"{subject} runs with pid {report.pid}"
    detail = f": {report.exit.detail}" if report.exit.detail else ""
    return f"{subject} {_ending(report.exit, ran=report.pid > 0)}{detail}"


def signal_name(number: int) -> str:
    """`SIGKILL (signal 9)`; real-time signals have numbers only."""
    try:
        return f"{Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def _ending(end: Exit, *, ran: bool) -> str:
    how = f"exited with code {end.code}" if end.signal is None else f"was ended by {signal_name(end.signal)}"
    match end.reason:
        case ExitReason.EXIT:
            return how
        case ExitReason.KILLED:
            return "was stopped by its agent"
        case ExitReason.DEADLINE:
            return "was killed at its deadline, which its agent could not extend"
        case ExitReason.START_FAILED:
            return "was ended" if end.detail.startswith(CANNOT_GO_ON) else "could not be started"
        case ExitReason.LAUNCHER_LOST:
            return "was killed, as its launcher was gone or silent" if ran else "did not start"
        case ExitReason.DEVICES_LOST:
            return "was stopped, as GPUs that it was given could not be used any more"
