"""The gate of a server: it identifies callers, and checks their rights by `contract.access`.

Every method of a `rpc.Server` is behind its gate. Before a request is read, the gate checks whether the
caller may call the method at all. After that it checks the job or the node in the request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import grpc

from supervisor.adapters.caller import CALLER
from supervisor.adapters.certificates.reload import Certificates
from supervisor.adapters.certificates.x509 import fingerprint, issuer, subjects, uris
from supervisor.contract.access import (
    EVERY_USER,
    Caller,
    Kind,
    Standing,
    Target,
    check_method,
    check_target,
    identify,
    needs_owner,
    needs_target,
    pool_id_of,
    target_of,
)
from supervisor.contract.errors import Refused
from supervisor.wire.tfsup_pb2 import Record

if TYPE_CHECKING:
    # A command's start would pay for loading it.
    from supervisor.adapters.files.config.daemon import DaemonConfig

Context: TypeAlias = "grpc.aio.ServicerContext[Record, Record]"

NOBODYS = Standing()


def no_jobs(target: Target) -> Target:
    """The `owner` of a daemon that serves no request about a job."""
    return target


def no_pools(caller: Caller) -> str:
    """The `pools` of a daemon that takes no certificate of a pool."""
    return f"{caller} is of a pool, and this daemon knows none"


@dataclass(slots=True)
class Policy:
    """The callers that a daemon knows. A change applies from the next request on.

    Attributes:
        users: name -> standing in the configuration; `*` stands for all others.
        denied: callers that are refused in spite of their certificates, as `user:NAME`.
        owner: completes a target with the owner of its job; may raise an error of our tree.
        pools: why a certificate of the authority of pools is refused; empty for one that is good.
    """

    users: Mapping[str, Standing] = field(default_factory=dict)
    denied: Collection[str] = ()
    owner: Callable[[Target], Target] = no_jobs
    pools: Callable[[Caller], str] = no_pools

    def standing(self, user: str) -> Standing:
        """The standing of a user."""
        return self.users.get(user) or self.users.get(EVERY_USER) or NOBODYS

    def check_denied(self, caller: Caller) -> None:
        """Raise Refused for a denied caller, and for one of a pool that was revoked.

        Raises Unreachable while that is not known.
        """
        if caller.kind is not Kind.LOCAL and str(caller) in self.denied:
            raise Refused(f"{caller} is shut out: it is among `denied` in this daemon's configuration")
        if caller.pool_id and (why := self.pools(caller)):
            raise Refused(f"{caller} is refused: {why}")


def policy_of(config: DaemonConfig) -> Policy:
    """The policy of a configuration."""
    return Policy({name: user.standing for name, user in config.users.items()}, frozenset(config.denied))


class Gate:
    """Checks the caller of each request.

    Args:
        policy: the known callers.
        way_in: the name for all callers of a server without client certificates; empty: callers show
            certificates.
        certificates: the server's certificates. If they include an authority for users, it may sign only
            users.
    """

    def __init__(self, policy: Policy, way_in: str, certificates: Certificates | None = None) -> None:
        self._policy = policy
        self._way_in = way_in
        self._certificates = certificates

    def identify(self, context: Context) -> Caller:
        """Identify the caller. Raises Refused, and UserError for a certificate that cannot be read."""
        if self._way_in:
            return Caller(Kind.LOCAL, self._way_in)
        # Not `peer_uri`: gRPC ends each of these at its first NUL.
        return self.holder(b"".join(context.auth_context().get("x509_pem_cert", ())))

    def holder(self, pem: bytes) -> Caller:
        """Identify the holder of a certificate; empty: the caller has shown none. Raises as `identify`."""
        shown = [uri.decode(errors="replace") for uri in uris(pem)] if pem else []
        kind, name = identify(shown)
        caller = Caller(kind, name)
        if self._is_of_pools(pem):
            return _of_pool(caller, shown, pem)
        if kind is Kind.POOL:
            raise Refused(f"no authority of pools that is known here has signed the certificate of {caller}")
        if kind is not Kind.USER:
            self._check_authority(caller, pem)
        if kind is not Kind.USER or str(caller) in self._policy.denied:
            return caller
        return replace(caller, standing=self._policy.standing(name))

    def _is_of_pools(self, pem: bytes) -> bool:
        """Whether the authority of pools has signed a certificate. It has a name of its own."""
        if self._certificates is None or self._certificates.files.pool_ca is None:
            return False
        return issuer(pem) in subjects(self._certificates.current().pool_ca)

    def _check_authority(self, caller: Caller, pem: bytes) -> None:
        """Raise Refused for a daemon's certificate that another authority than the daemons' has signed."""
        files = self._certificates.files if self._certificates is not None else None
        if self._certificates is None or files is None or (files.user_ca is None and files.pool_ca is None):
            return
        if issuer(pem) not in subjects(self._certificates.current().ca):
            raise Refused(
                f"the certificate of {caller} is signed by no authority in `tls.ca`, and those in `user_ca` "
                "make users alone"
            )

    def enter(self, method: str, caller: Caller) -> None:
        """Check the right of a caller to a method. Raises Refused. `method`: `SERVICE.METHOD`."""
        self._policy.check_denied(caller)
        check_method(method, caller)
        CALLER.set(caller)

    def remain(self, method: str, caller: Caller | None, target: Target) -> None:
        """Check the right of a caller with an open stream, by the present policy. Raises Refused.

        `target`: of its request, as it was when the stream began.
        """
        if caller is None:
            raise Refused(f"the caller of {method} was not identified")
        if caller.kind is Kind.USER:
            caller = replace(caller, standing=self._policy.standing(caller.name))
        self.enter(method, caller)
        check_target(method, caller, target)

    def target(self, method: str, request: object) -> Target:
        """The job or node of a request, as far as the right depends on it. Raises UserError, and the errors
        of `policy.owner`.
        """
        if not needs_target(method):
            return Target()
        target = target_of(request)
        return self._policy.owner(target) if needs_owner(method) else target

    def check(self, method: str, caller: Caller | None, request: object) -> None:
        """Check a request. Raises Refused if the caller may not make it; UserError, and the errors of
        `policy.owner`.
        """
        if caller is None:
            raise Refused(f"the caller of {method} was not identified")
        self._policy.check_denied(caller)
        if caller.kind is Kind.LOCAL or not needs_target(method):
            return
        check_target(method, caller, self.target(method, request))


def _of_pool(caller: Caller, uris: Sequence[str], pem: bytes) -> Caller:
    """The holder of a certificate of the authority of pools. Raises Refused unless it is a pool's."""
    if caller.kind not in (Kind.AGENT, Kind.POOL):
        raise Refused(f"the authority of pools has signed the certificate of {caller}: it makes agents alone")
    return replace(
        caller,
        pool_id=pool_id_of(uris),
        token=fingerprint(pem) if caller.kind is Kind.POOL else "",
    )
