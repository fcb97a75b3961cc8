"""The tokens of pools whose agents the supervisors certify: made, revoked and shown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from supervisor.cli.options import Globals
from supervisor.cli.target import find_any_target, find_target
from supervisor.contract.errors import IncompatibleRecord, Refused, TfSupervisorError, Unreachable, UserError

if TYPE_CHECKING:
    from supervisor.api.client import ControlClient
    from supervisor.contract.pool.requests import Certificate, PoolView

R = TypeVar("R")


def obtain(given: Globals, pool: str, file: Path, token_for: str) -> Certificate:
    """Get a token for a pool, and write it into a file of mode 0600. Raises UserError, Refused, Conflict."""
    from supervisor.adapters.certificates import openssl
    from supervisor.adapters.files.quantities import duration_ms
    from supervisor.contract.pool.requests import OpenPoolRequest
    from supervisor.engines.agent_file import require_own
    from supervisor.engines.credentials import write_private

    try:
        life_ms = duration_ms(token_for)
    except ValueError as error:
        raise UserError(f"--token-for: {error}") from error
    require_own(file.parent)
    key, request = openssl.key_and_request(f"token-of-pool:{pool}")
    made = _ask(given, lambda client: client.open_pool(OpenPoolRequest(pool, request, life_ms)))
    write_private(file, key + made.pem.encode())
    return made


def revoke(given: Globals, pool: str) -> bool:
    """Revoke the certificates of a pool that has ended; False if it has none.

    Raises Unreachable, Refused if that cannot be done.
    """
    try:
        try:
            there = known(given, pool)
        except Refused:
            return False  # who may not even see pools has made no token
        if not there:
            return False
        _ask(given, lambda client: client.revoke_pool(pool))
    except TfSupervisorError as error:
        kind = Refused if isinstance(error, Refused) else Unreachable
        raise kind(
            f"the agents of pool {pool} have ended, and its certificates are not revoked: {error}; "
            f"`supervisorctl pool revoke {pool}` does that"
        ) from error
    return True


def known(given: Globals, pool: str = "") -> tuple[PoolView, ...]:
    """The pools that supervisors certify, or one of them. An embedded cluster has none.

    Raises Unreachable, Refused.
    """
    target = find_any_target(given)
    if target is None or target.guard.tls is None:
        return ()
    try:
        return _ask(given, lambda client: client.pools(pool)).pools
    except IncompatibleRecord:
        return ()  # supervisors of an earlier release


def is_over(view: PoolView) -> bool:
    """Whether a pool's token has expired."""
    return datetime.now(UTC).timestamp() * 1000 >= view.token_ends_wall_ms


def told(view: PoolView) -> str:
    """A sentence about a pool's certificates."""
    ends = shown(view.token_ends_wall_ms)
    again = f"its token expired at {ends}: `supervisorctl pool token {view.pool} FILE` makes another"
    valid = f"its token is valid until {ends}"
    said = [again if is_over(view) else valid, f"{len(view.certified)} nodes have had certificates"]
    if view.revoked:
        said.append(f"revoked: {', '.join(view.revoked)}")
    return "; ".join(said)


def shown(wall_ms: int) -> str:
    """A moment, for people."""
    return f"{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def _ask(given: Globals, ask: Callable[[ControlClient], Awaitable[R]]) -> R:
    async def asked() -> R:
        async with find_target(given).client() as client:
            return await ask(client)

    return asyncio.run(asked())
