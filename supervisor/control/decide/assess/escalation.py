"""Why a task that could restart alone does not: an ordered table, whose first match wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recovery.policy.history import STEADY_MS
from recovery.policy.scope import scope_of
from supervisor.contract.desired import Placement
from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import RoleSpec, Scope
from supervisor.contract.observed import AttemptReport, Exit
from supervisor.control.decide.assess.moving import LEAVES, moves_alone
from supervisor.control.decide.assess.servers import are_together, why_all_restart, why_not_together
from supervisor.control.decide.facts.gpus import befallen
from supervisor.control.decide.facts.standing import Standing, standing
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A task that failed, where it was placed, and the report of its attempt, if there is one."""

    snap: Snapshot
    job: JobState
    task: TaskId
    placement: Placement
    report: Versioned[AttemptReport] | None
    cause: Cause

    @property
    def role(self) -> RoleSpec:
        """The role of the task."""
        return self.job.record.value.spec.role(self.task.role)

    @property
    def end(self) -> Exit | None:
        """How its attempt ended; None while it runs, and for one that nobody has reported."""
        return self.report.value.exit if self.report is not None else None


@dataclass(frozen=True, slots=True)
class Escalation:
    """A reason to restart more than one task.

    Attributes:
        why: the reason, as the incident shows it; empty where it does not apply.
        follower: the scope for a task that follows, whose address no task needs; None: no reason for it.
        worker: the scope for a worker that can move while the others run on; None: no reason for it.
    """

    why: Callable[[FailedTask], str]
    follower: Scope | None
    worker: Scope | None = Scope.ALL


def scope_of_failure(failed: FailedTask) -> tuple[Scope, str]:
    """How much a task's failure restarts, and the rule that says so."""
    spec = failed.job.record.value.spec
    scope, rule = scope_of(spec, failed.task, failed.job.saver)
    if are_together(failed.job, failed.task):
        why = why_all_restart(failed.snap, failed.job)
        if why:
            # A reason that holds for most jobs is no news.
            return Scope.ALL, rule if spec.preload else f"{rule}, as {why}"
        scope, rule = Scope.TASK, f"{spec.strategy.value}.{failed.task.role}.together"
    if scope is Scope.ALL:
        return scope, rule
    for each in ESCALATIONS:
        escalated = _escalated(failed, each)
        if escalated is not None and (why := each.why(failed)):
            return escalated, f"{rule}, but {why}"
    return scope, rule


def _escalated(failed: FailedTask, reason: Escalation) -> Scope | None:
    if failed.role.follow:
        return reason.follower
    if not moves_alone(failed.job, failed.task):
        return Scope.ALL
    ends_first = failed.end is None and failed.cause not in LEAVES
    return Scope.ALL if reason.worker is Scope.TASK and ends_first else reason.worker


def _servers_stay(failed: FailedTask) -> str:
    """A server that lives on keeps its variables: workers would train with them before they are restored."""
    plan = failed.job.plan_in_force
    if plan is None or not are_together(failed.job, failed.task):
        return ""
    return why_not_together(failed.snap, failed.job, plan.value) if failed.end is not None else "it runs"


def _did_not_join(failed: FailedTask) -> str:
    """A worker that moved and fails at once may not be able to join: a new generation needs no joining."""
    plan = failed.job.plan_in_force
    held = failed.job.assigned(plan.value.plan_id, failed.placement.member) if plan is not None else None
    if held is None or not held.value.joins or failed.report is None:
        return ""
    started = failed.report.value.pid > 0
    # A coordinator's worker makes no steps of its own: one that has served for a while has joined.
    young = failed.report.seen_ms - failed.report.created_ms < STEADY_MS
    own = failed.cause.program_fault and not failed.report.value.has_stepped and young
    return "it has not joined the others" if own or not started else ""


def _node_is_away(failed: FailedTask) -> str:
    where = standing(failed.snap, failed.placement)
    return "" if where is Standing.ALIVE else f"its node is {where.value}"


def _node_starts_nothing(failed: FailedTask) -> str:
    return "nothing new can start on its node" if failed.snap.blocked(failed.placement.node) else ""


def _machine_restarted(failed: FailedTask) -> str:
    rebooted = failed.end is not None and failed.end.rebooted
    return "its machine has restarted, and with it what was staged there" if rebooted else ""


def _not_confirmed_dead(failed: FailedTask) -> str:
    """Rule 6: an address is used again only when its last holder is dead for sure."""
    if failed.report is None or failed.end is None or failed.end.confirmed_dead:
        return ""
    late = failed.snap.now_ms - failed.report.seen_ms > failed.snap.timing.kill_time_ms
    return "the old attempt is not confirmed dead" if late else ""


def _waited_in_vain(failed: FailedTask) -> str:
    waited = failed.cause is Cause.NEVER_READY and failed.end is not None and not failed.role.outside
    return "whom it waited for must start again, too" if waited else ""


def _address_is_gone(failed: FailedTask) -> str:
    return "its address is gone" if failed.end is not None and failed.end.address_lost else ""


def _port_is_taken(failed: FailedTask) -> str:
    return "its port is taken" if failed.cause is Cause.PORT_CLASH else ""


def _needs_other_gpus(failed: FailedTask) -> str:
    plan = failed.job.plan_in_force
    harm = befallen(failed.snap, failed.job, plan.value, failed.placement) if plan is not None else None
    return "on other GPUs" if harm is not None and harm.harmful else ""


ESCALATIONS = (
    Escalation(_did_not_join, follower=None),
    Escalation(_node_is_away, follower=Scope.TASK, worker=Scope.TASK),
    Escalation(_node_starts_nothing, follower=None, worker=Scope.TASK),
    Escalation(_machine_restarted, follower=None, worker=Scope.TASK),
    Escalation(_not_confirmed_dead, follower=Scope.ALL),
    Escalation(_waited_in_vain, follower=Scope.ALL),
    Escalation(_address_is_gone, follower=None, worker=Scope.TASK),
    Escalation(_port_is_taken, follower=Scope.ALL),
    Escalation(_needs_other_gpus, follower=Scope.ALL, worker=Scope.TASK),
    Escalation(_servers_stay, follower=None, worker=None),
)
"""A follower whose node is away moves alone. So does a worker, for any reason that takes its address away."""
