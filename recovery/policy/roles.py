"""The kinds of roles, by name: whether tasks of a role end by themselves."""

from __future__ import annotations

from enum import Enum

from supervisor.contract.job.spec import JobSpec

SERVERS = frozenset({"ps", "evaluator", "tensorboard", "dispatcher", "data_worker"})
"""Names of roles whose tasks serve until they are stopped; `Server.join()` never returns."""


class RoleKind(Enum):
    """How the tasks of a role end.

    TRAINING tasks end by themselves, and the job with them; SERVER tasks are stopped when training is over;
    FOLLOWER tasks are outside the ClusterSpec and nothing waits for them.
    """

    TRAINING = "training"
    SERVER = "server"
    FOLLOWER = "follower"


def kind_of(spec: JobSpec, role: str) -> RoleKind:
    """The kind of a role, whatever the strategy: any name that is not in SERVERS trains.

    A role's own `serves` takes precedence over its name. Raises KeyError for a role that the job does not
    have.
    """
    asked = spec.role(role)
    if asked.follow:
        return RoleKind.FOLLOWER
    serves = role in SERVERS if asked.serves is None else asked.serves
    return RoleKind.SERVER if serves else RoleKind.TRAINING


def training_roles(spec: JobSpec) -> frozenset[str]:
    """The names of the job's training roles."""
    return frozenset(role.name for role in spec.roles if kind_of(spec, role.name) is RoleKind.TRAINING)


def trains(spec: JobSpec) -> bool:
    """Whether any role of the job is a training role."""
    return bool(training_roles(spec))
