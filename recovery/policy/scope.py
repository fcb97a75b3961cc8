"""The scope of a restart, by strategy and role, when a process is lost: the table of docs/strategies.md.

The leader reads it in `decide.assess.escalation`, which restarts all tasks where this one cannot come back as
it was, for example because its node or its address is gone.
"""

from __future__ import annotations

from types import MappingProxyType

from supervisor.contract.ids import TaskId
from supervisor.contract.job.spec import JobSpec, PsRecovery, Scope, Strategy

JOINS = frozenset({Strategy.ASYNC, Strategy.COORDINATOR})
"""The strategies in which a worker can join tasks that run already, at an address that they did not know."""

SERVERS = "ps"
"""The role of parameter servers."""

_WORKERS_COME_BACK = {"worker": Scope.TASK}
_OBSERVERS = dict.fromkeys(("evaluator", "tensorboard", "dispatcher", "data_worker"), Scope.TASK)

TABLE = MappingProxyType(
    {
        Strategy.ASYNC: _OBSERVERS | _WORKERS_COME_BACK,
        Strategy.COORDINATOR: _OBSERVERS | _WORKERS_COME_BACK,
        Strategy.SYNC: _OBSERVERS,
        Strategy.MULTIWORKER: _OBSERVERS,
        Strategy.IN_GRAPH: _OBSERVERS,
        Strategy.PLAIN: _OBSERVERS,
    }
)
"""Strategy -> role -> scope. A role that is not in a row (ps, chief, any other name) restarts ALL: the larger
scope costs time, the smaller one may train on with a hole in the cluster."""


def scope_of(spec: JobSpec, task: TaskId, saver: TaskId | None = None) -> tuple[Scope, str]:
    """The scope of the restart after the loss of a task's process, and the name of the rule that sets it.

    The task that saves restarts ALL. It acts as the chief, even without a role of that name (TF1 takes worker
    0): when it comes back, it restores into the parameter servers while the others train. `saver` is the task
    that was seen to save; None: the one that follows from the roles.

    Rules are named `STRATEGY.ROLE.HOW`: `all` (a new generation), `in_place` (that task, same address) or
    `alone` (that task, which is outside the ClusterSpec); `.saver` is added where it restarts more than its
    role because it saves, `.job` where the job's `restart.scope` or `restart.ps_recovery` decided. Raises
    KeyError for a role that the job does not have.
    """
    outside = spec.role(task.role).outside
    asked = spec.restart.scope.get(task.role)
    if comes_back_alone(spec, task):
        asked = Scope.TASK
    of_role = Scope.TASK if outside else TABLE[spec.strategy].get(task.role, Scope.ALL)
    saves = of_role is Scope.TASK and not outside and task == (saver or spec.saver)
    scope = asked or (Scope.ALL if saves else of_role)
    how = "all" if scope is Scope.ALL else "alone" if outside else "in_place"
    why = ".job" if asked else ".saver" if saves else ""
    return scope, f"{spec.strategy.value}.{task.role}.{how}{why}"


def may_move(spec: JobSpec, task: TaskId, saver: TaskId | None = None) -> bool:
    """Whether a task may be started on another node while all others of its generation run on.

    A follower may: no other task needs its address. So may a worker of an asynchronous strategy that restarts
    alone, if its program can join; but not the task that saves, whatever the job's `restart.scope` says. Nor
    may the task that its role lets expect to save, though another one was seen to: it may restore into the
    parameter servers, and another node has no checkpoint for it. Raises KeyError for a role that the job does
    not have.
    """
    role = spec.role(task.role)
    if role.follow:
        return True
    joins = spec.strategy in JOINS and task.role == "worker" and not role.outside
    restores = task in (saver, spec.saver)
    return joins and not restores and scope_of(spec, task, saver)[0] is Scope.TASK


def come_back_together(spec: JobSpec, task: TaskId, saver: TaskId | None = None) -> bool:
    """Whether a task is a parameter server of those that may come back, all of them, while others run on.

    The sessions of TensorFlow 1 survive that: the chief's restores all variables, and those of the workers
    wait for it. `decide.assess.servers` says whether those of this program do. Raises KeyError for a role
    that the job does not have.
    """
    outside = spec.role(task.role).outside
    allowed = spec.restart.scope.get(task.role) is not Scope.ALL and not comes_back_alone(spec, task)
    served = spec.strategy is Strategy.ASYNC and task.role == SERVERS and not outside
    return served and allowed and task != (saver or spec.saver)


def comes_back_alone(spec: JobSpec, task: TaskId) -> bool:
    """Whether a task is a parameter server that is restored by itself, as the job asks for it."""
    return task.role == SERVERS and spec.restart.ps_recovery is PsRecovery.PARTIAL
