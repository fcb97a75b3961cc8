"""Rights: identities, roles, and one table of every method of our gRPC services.

`docs/security.md` is made from the table. The job or node of a request counts as well: an agent speaks for
its own node only, and a job belongs to its owner.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from supervisor.contract.errors import Refused
from supervisor.contract.ids import TaskId
from supervisor.contract.observed import Beat
from supervisor.contract.pool.record import pool_of
from supervisor.contract.pool.requests import CertifyRequest
from supervisor.contract.promise import PromiseRequest
from supervisor.contract.secret import SecretsRequest
from supervisor.contract.views.checkpoints import (
    AdoptRequest,
    CollectRequest,
    FindRequest,
    ImportRequest,
    VerifyRequest,
)
from supervisor.contract.views.jobs import (
    ExecRequest,
    JobRequest,
    PauseRequest,
    PinRequest,
    RestartRequest,
    ScaleRequest,
    SignalRequest,
    StopRequest,
    SubmitRequest,
)

EVERY_USER = "*"
"""In place of a user's name in the configuration: each user that is not named."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,62}")
_HOW = "make it with `supervisorctl certs issue`"


class Kind(Enum):
    """Kinds of callers. LOCAL: a caller by a Unix socket, with the cluster's token, or at a port without
    authentication. POOL: the holder of the token of a pool of agents.
    """

    USER = "user"
    AGENT = "agent"
    SUPERVISOR = "supervisor"
    POOL = "pool"
    LOCAL = "local"


class Role(Enum):
    """The rights of a user. Each role includes those before it."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    ADMIN = "admin"

    def reaches(self, least: Role) -> bool:
        """Whether this role is `least`, or one above it."""
        ranks = list(Role)
        return ranks.index(self) >= ranks.index(least)


@dataclass(frozen=True, slots=True)
class Standing:
    """The role and group of a user in the configuration. `role` None: the user has no rights."""

    role: Role | None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of a certificate, or the way in of a caller without one.

    Attributes:
        pool_id: the id in a certificate that the authority of pools has signed; empty for any other.
        token: the SHA-256 of the certificate of a pool's token.
    """

    kind: Kind
    name: str
    standing: Standing = Standing()
    pool_id: str = ""
    token: str = ""

    def __str__(self) -> str:
        return self.name if self.kind is Kind.LOCAL else f"{self.kind.value}:{self.name}"


@dataclass(frozen=True, slots=True)
class Target:
    """The job or node that a request is about.

    Attributes:
        job: the job's name; empty if it is about none.
        node: the node that the caller speaks for.
        known: the cluster has a job of this name.
        owner: the submitter of that job, as `str(Caller)`; empty in records of releases that did not note it.
        group: the group that the owner shares the job with; empty: none.
    """

    job: str = ""
    node: str = ""
    known: bool = False
    owner: str = ""
    group: str = ""


class Right(Enum):
    """The callers of a method, in the words of docs/security.md."""

    VIEW = "users with the role viewer or above"
    SUBMIT = "users with the role submitter or above"
    JOB = "the job's owner and group, if their role is submitter or above; operators and admins"
    ENTER = "the job's owner and group, if their role is submitter or above; admins"
    OPERATE = "users with the role operator or above"
    OWN_NODE = "the agent of the node that the request names"
    POOL_NODE = (
        "the holder of the token of the node's pool; the agent of this node, if supervisors certify it"
    )
    SUPERVISORS = "supervisors"


TABLE: dict[str, Right] = {
    "Link.Beats": Right.OWN_NODE,
    "Link.Promise": Right.OWN_NODE,
    "Link.Secrets": Right.OWN_NODE,
    "Control.Submit": Right.JOB,
    "Control.Validate": Right.VIEW,
    "Control.FindCode": Right.SUBMIT,
    "Control.PutCode": Right.SUBMIT,
    "Control.Status": Right.VIEW,
    "Control.Explain": Right.VIEW,
    "Control.Describe": Right.JOB,
    "Control.Checkpoints": Right.VIEW,
    "Control.Nodes": Right.VIEW,
    "Control.Gpus": Right.VIEW,
    "Control.Cordon": Right.OPERATE,
    "Control.Uncordon": Right.OPERATE,
    "Control.Dismiss": Right.OPERATE,
    "Control.Pause": Right.OPERATE,
    "Control.Resume": Right.OPERATE,
    "Control.PauseJob": Right.JOB,
    "Control.ResumeJob": Right.JOB,
    "Control.Stop": Right.JOB,
    "Control.Start": Right.JOB,
    "Control.Release": Right.JOB,
    "Control.Delete": Right.JOB,
    "Control.Restart": Right.JOB,
    "Control.Scale": Right.JOB,
    "Control.Pin": Right.JOB,
    "Control.FindCheckpoint": Right.VIEW,
    "Control.CollectCheckpoints": Right.JOB,
    "Control.PlaceImport": Right.JOB,
    "Control.VerifyCheckpoints": Right.JOB,
    "Control.AdoptImport": Right.JOB,
    "Control.RebuildRecords": Right.JOB,
    "Control.Signal": Right.JOB,
    "Control.Exec": Right.ENTER,
    "Control.Events": Right.VIEW,
    "Control.Tail": Right.VIEW,
    "Control.Pools": Right.VIEW,
    "Control.OpenPool": Right.OPERATE,
    "Control.RevokePool": Right.OPERATE,
    "Control.Certify": Right.POOL_NODE,
    "Node.Outputs": Right.SUPERVISORS,
    "Node.Read": Right.SUPERVISORS,
    "Node.Signal": Right.SUPERVISORS,
    "Node.Exec": Right.SUPERVISORS,
    "Node.Save": Right.SUPERVISORS,
    "Http.Metrics": Right.VIEW,
    "Http.Static": Right.VIEW,
}
"""`SERVICE.METHOD` -> the right that it needs. A method that is missing here is refused to every caller.

A path of the HTTP door needs the right of the method whose answer it shows; `Http` has what is no method's.
"""

FREQUENT = frozenset(
    {"Link.Beats", "Link.Promise", "Node.Outputs", "Node.Read", "Http.Metrics", "Http.Static"}
)
"""Requests that programs make all the time. The audit log has only those that are refused."""
READS = frozenset(
    {
        "Control.Validate",
        "Control.FindCode",
        "Control.Status",
        "Control.Explain",
        "Control.Describe",
        "Control.Checkpoints",
        "Control.Nodes",
        "Control.Gpus",
        "Control.FindCheckpoint",
        "Control.Events",
        "Control.Tail",
        "Control.Pools",
    }
)
"""Methods that change nothing. Each other one that is not frequent is a change."""

_LEAST = {
    Right.VIEW: Role.VIEWER,
    Right.SUBMIT: Role.SUBMITTER,
    Right.JOB: Role.OPERATOR,
    Right.ENTER: Role.ADMIN,
    Right.OPERATE: Role.OPERATOR,
}
_BY_JOB = (Right.JOB, Right.ENTER)
_HOLDERS = frozenset({Kind.USER.value, Kind.AGENT.value, Kind.SUPERVISOR.value, Kind.POOL.value})
"""The kinds that certificates name."""
_POOL_ID = "tfsup-pool"
"""The scheme of the URI with a pool's id in certificates of its agents and its token."""


def identify(uris: Sequence[str]) -> tuple[Kind, str]:
    """The kind and name of a certificate's holder, by the URIs among its alternative names.

    Raises Refused unless exactly one of them is `user:NAME`, `agent:NODE`, `supervisor:NAME` or `pool:NAME`.
    """
    found: list[tuple[Kind, str]] = []
    for uri in uris:
        scheme, _, name = uri.partition(":")
        if scheme not in _HOLDERS:
            continue
        if not _NAME.fullmatch(name):
            raise Refused(f"the certificate's identity {uri[:100]!r} has no valid name; {_HOW}")
        found.append((Kind(scheme), name))
    if len(found) != 1:
        has = "no identity" if not found else "more than one identity"
        raise Refused(
            f"the certificate has {has}: it needs one URI `user:NAME`, `agent:NODE` or `supervisor:NAME`; "
            f"{_HOW}"
        )
    return found[0]


def pool_uri(pool_id: str) -> str:
    """The URI that the certificates of a pool have beside their identity."""
    return f"{_POOL_ID}:{pool_id}"


def pool_id_of(uris: Sequence[str]) -> str:
    """The inverse of `pool_uri`, of all URIs of a certificate. Raises Refused unless there is one."""
    found = [uri.removeprefix(f"{_POOL_ID}:") for uri in uris if uri.startswith(f"{_POOL_ID}:")]
    if len(found) != 1 or not found[0]:
        raise Refused("the certificate is signed by the authority of pools, and names no pool's id")
    return found[0]


def valid_user(name: str) -> bool:
    """Whether this is a name for a user: one that a certificate can have, or `*`."""
    return name == EVERY_USER or _NAME.fullmatch(name) is not None


def check_method(method: str, caller: Caller) -> None:
    """Raise Refused if the caller may call the method for no job or node at all.

    `method`: `SERVICE.METHOD`.
    """
    right = TABLE.get(method)
    if right is None:
        raise Refused(f"{method} is not in the table of rights, so that nobody may call it")
    if caller.kind is Kind.LOCAL or _allows(right, caller):
        return
    raise Refused(f"{caller} may not call {method}: {_why(right, caller)}")


def check_target(method: str, caller: Caller, target: Target) -> None:
    """Raise Refused if the caller, after `check_method`, may not call the method for that job or node."""
    right = TABLE[method]
    if caller.kind is Kind.LOCAL:
        return
    if right is Right.OWN_NODE and target.node != caller.name:
        raise Refused(f"{caller} may not speak for node {target.node[:100]!r}")
    if right is Right.POOL_NODE and not _certifies(caller, target.node):
        raise Refused(f"{caller} may have no certificate for node {target.node[:100]!r}")
    if right in _BY_JOB and not target.job:
        raise Refused(f"the request to {method} names no job")
    if right in _BY_JOB and target.known and not _owns(caller, target) and not _has(caller, _LEAST[right]):
        raise Refused(
            f"{caller} may not call {method} for job {target.job}, which belongs to "
            f"{target.owner or 'nobody'}: {right.value}"
        )


def target_of(request: object) -> Target:
    """The job and node that a request names, without the job's owner. Raises UserError for a bad task."""
    match request:
        case Beat() | PromiseRequest() | SecretsRequest() | CertifyRequest():
            return Target(node=request.node)
        case SubmitRequest():
            return Target(request.spec.name)
        case SignalRequest() | ExecRequest():
            return Target(TaskId.parse(request.task).job)
        case JobRequest() | StopRequest() | RestartRequest() | ScaleRequest() | PinRequest() | FindRequest():
            return Target(request.job)
        case PauseRequest():
            return Target(request.job)
        case CollectRequest() | ImportRequest() | VerifyRequest() | AdoptRequest():
            return Target(request.job)
        case _:
            return Target()


def needs_target(method: str) -> bool:
    """Whether the right to call the method depends on the request."""
    return TABLE[method] in (*_BY_JOB, Right.OWN_NODE, Right.POOL_NODE)


def needs_owner(method: str) -> bool:
    """Whether the right to call the method depends on the job's owner."""
    return TABLE[method] in _BY_JOB


def _allows(right: Right, caller: Caller) -> bool:
    """Whether the right is given before the request is read; a right that depends on the request counts as
    given.
    """
    if right is Right.OWN_NODE:
        return caller.kind is Kind.AGENT
    if right is Right.SUPERVISORS:
        return caller.kind is Kind.SUPERVISOR
    if right is Right.POOL_NODE:
        return caller.kind is Kind.POOL or (caller.kind is Kind.AGENT and bool(caller.pool_id))
    return _has(caller, Role.SUBMITTER if right in _BY_JOB else _LEAST[right])


def _certifies(caller: Caller, node: str) -> bool:
    """Whether a caller may have a certificate for a node: of its pool, or its own."""
    return pool_of(node) == caller.name if caller.kind is Kind.POOL else node == caller.name


def _has(caller: Caller, least: Role) -> bool:
    role = caller.standing.role
    return caller.kind is Kind.USER and role is not None and role.reaches(least)


def _owns(caller: Caller, target: Target) -> bool:
    shared = bool(target.group) and target.group == caller.standing.group
    return target.owner == str(caller) or shared


def _why(right: Right, caller: Caller) -> str:
    role = caller.standing.role
    if caller.kind is not Kind.USER:
        return f"this is for {right.value}"
    if role is None:
        return "this user has no role; an operator gives one in `users` of the supervisors' configuration"
    return f"this is for {right.value}, and this user has the role {role.value}"
