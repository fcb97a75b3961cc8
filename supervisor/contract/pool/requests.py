"""The documents of the API about pools of agents that supervisors certify."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """All pools, or this one."""

    pool: str = ""


@dataclass(frozen=True, slots=True)
class OpenPoolRequest:
    """Make a token for this pool, valid for so long; a token that it has is good no more.

    `request`: for the token's certificate, as PEM. `origin`: the queue that has the pool's agents; empty: it
    stays as it is.
    """

    pool: str
    request: str
    life_ms: int
    origin: str = ""


@dataclass(frozen=True, slots=True)
class RevokePoolRequest:
    """Refuse all certificates of this pool from now on, or with a `node` those of that node.

    `token`: only while this is the pool's token, by the SHA-256 of its certificate; empty: whatever it is.
    """

    pool: str
    node: str = ""
    token: str = ""


@dataclass(frozen=True, slots=True)
class CertifyRequest:
    """Sign a certificate for the agent of this node. `request`: as PEM."""

    node: str
    request: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate, as PEM, and when it ends."""

    pem: str
    ends_wall_ms: int


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool that may have certificates.

    `certified`: the nodes that have had one of this leader, and when it ends; `token`: the SHA-256 of the
    certificate of its token; `origin`: the queue that has its agents, if that is known.
    """

    pool: str
    owner: str
    token_ends_wall_ms: int
    revoked: tuple[str, ...] = ()
    certified: dict[str, int] = field(default_factory=dict)
    token: str = ""
    origin: str = ""


@dataclass(frozen=True, slots=True)
class PoolList:
    """Pools that may have certificates."""

    pools: tuple[PoolView, ...] = ()
