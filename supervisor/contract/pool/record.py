"""Pools of agents to which supervisors issue certificates (docs/engines.md), and their names.

A node of a pool is named POOL.PLACE. A pool's name has no dot, so that no two pools make the same name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from supervisor.contract.errors import Conflict, UserError

DOMAIN = "pools.tfsup.internal"
"""The domain of the names by which supervisors know the servers of agents. No name server knows it."""
MOST_REVOKED = 100
MOST_POOLS = 200
LEAST_TOKEN_MS, MOST_TOKEN_MS = 60_000, 90 * 86_400_000
_POOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,30}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRecord:
    """A pool that may have certificates. Without its record all of its certificates are refused.

    Attributes:
        id: random, and in each certificate of the pool: one that begins anew has no certificates of before.
        owner: the user who has asked for its token.
        token: the SHA-256 of the token's certificate, in hex; that of no other token is taken.
        token_ends_wall_ms: the end of the token.
        revoked: nodes of the pool that are refused.
        origin: the queue that has its agents (`engines.engine`); empty: an earlier release has not told.
    """

    name: str
    id: str
    owner: str
    token: str
    token_ends_wall_ms: int
    revoked: tuple[str, ...] = ()
    origin: str = ""


def check_pool(name: str) -> str:
    """Return the name of a pool, or raise UserError.

    A dot in the pool's name could name the node of another.
    """
    if not _POOL.fullmatch(name):
        raise UserError(
            f"{name!r} is not a name for a pool: use 1 to 31 letters, digits, '_' or '-', beginning with a "
            "letter or digit"
        )
    return name


def check_life(life_ms: int) -> None:
    """Raise UserError for a time for which no token may be valid."""
    if not LEAST_TOKEN_MS <= life_ms <= MOST_TOKEN_MS:
        raise UserError(f"a token is valid for a minute to {MOST_TOKEN_MS // 86_400_000} days")


def check_origin(pool: str, known: str, origin: str) -> None:
    """Raise Conflict for a pool that another queue has: whoever ends it there ends its certificates."""
    if known and origin and known != origin:
        raise Conflict(
            f"pool {pool} is one of {known}: choose another name, or end that one there (`supervisorctl pool "
            f"down`). If it has no agents any more, `supervisorctl pool revoke {pool}` frees the name"
        )


def pool_of(node: str) -> str:
    """The pool of a node; empty for a node whose name has no place in a pool."""
    pool, dot, place = node.partition(".")
    return pool if dot and place else ""


def server_name(node: str, pool_id: str) -> str:
    """The name that the certificate of a pool's agent has as a server. Only this node's has it."""
    return f"{node}.{pool_id}.{DOMAIN}"


def objection(record: PoolRecord | None, *, node: str, token: str, pool_id: str, now_wall_ms: int) -> str:
    """Why a certificate of a pool is refused; empty for one that is good.

    Args:
        record: of the pool that the certificate names.
        node: of an agent's certificate; empty for a token.
        token: the SHA-256 of a token's certificate; empty for an agent's.
        pool_id: the id in the certificate.
        now_wall_ms: the time, by the wall clock.
    """
    if record is None or record.id != pool_id:
        return "its pool has ended, or was revoked"
    if node and (pool_of(node) != record.name or node in record.revoked):
        return f"{node[:100]} was revoked" if node in record.revoked else f"it is no node of {record.name}"
    if not node and token != record.token:
        return "another token has taken the place of this one; `supervisorctl pool token` has made it"
    if not node and now_wall_ms >= record.token_ends_wall_ms:
        return f"the token of pool {record.name} has expired; `supervisorctl pool token` makes another"
    return ""
