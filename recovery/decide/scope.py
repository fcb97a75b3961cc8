"""How much a failure restarts: the table of DESIGN section 6.

It says what a *process* that is lost restarts. A task of the ClusterSpec that is lost with its node means a
new generation whatever the table says, because its address is gone.
"""

from __future__ import annotations

from types import MappingProxyType

from supervisor.contract.job import JobSpec, Scope, Strategy

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


def scope_of(spec: JobSpec, role: str) -> tuple[Scope, str]:
    """How much the loss of a process of `role` restarts, and the name of the rule that says so.

    Rules are named `STRATEGY.ROLE.HOW`: `all` (a new generation), `in_place` (that task, same address) or
    `alone` (that task, which is outside the ClusterSpec and may move); `.job` is added where the job's
    `restart.scope` decided. Raises KeyError for a role that the job does not have.
    """
    outside = spec.role(role).outside
    asked = spec.restart.scope.get(role)
    scope = asked or (Scope.TASK if outside else TABLE[spec.strategy].get(role, Scope.ALL))
    how = "all" if scope is Scope.ALL else "alone" if outside else "in_place"
    return scope, f"{spec.strategy.value}.{role}.{how}" + (".job" if asked else "")
