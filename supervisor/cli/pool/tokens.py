"""The tokens of pools whose agents the supervisors certify: made, revoked and shown."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from supervisor.cli.local.layout import Layout
from supervisor.cli.options import Globals
from supervisor.cli.target import find_any_target, find_target, place_of
from supervisor.contract.errors import (
    Conflict,
    IncompatibleRecord,
    NotFound,
    Refused,
    TfSupervisorError,
    Unreachable,
    UserError,
)

if TYPE_CHECKING:
    from supervisor.api.client import ControlClient
    from supervisor.contract.pool.requests import Certificate, PoolView
    from supervisor.contract.views.jobs import Accepted

R = TypeVar("R")
REVOKED = "its certificates are revoked"
ANOTHER = "another client has started it again meanwhile, and its certificates stay"


@dataclass(frozen=True, slots=True)
class Token:
    """A token that is asked for: its file, how long it is to be valid, and which queue has its pool's agents.

    `origin`: that of `engines.engine`; empty: the one of the token before.
    """

    file: Path
    valid_for: str
    origin: str = ""


def check(given: Globals, pool: str, token: Token) -> int:
    """How long a token is to be valid, in ms, once it can be asked for and written.

    Raises UserError, Refused for a directory that others may write to, Unreachable without supervisors, and
    Conflict for a pool whose agents another queue has.
    """
    from supervisor.adapters.files.quantities import duration_ms
    from supervisor.contract.pool.record import check_life, check_origin
    from supervisor.engines.agent_file import require_own

    try:
        life_ms = duration_ms(token.valid_for)
        check_life(life_ms)
    except (ValueError, UserError) as error:
        raise UserError(f"--token-for {token.valid_for}: {error}") from error
    directory = token.file.parent
    if not directory.is_dir():
        raise UserError(f"{token.file}: the pool's token goes there, and {directory} is no directory")
    require_own(directory)
    for view in known(given, pool):
        check_origin(pool, view.origin, token.origin)
    return life_ms


def obtain(given: Globals, pool: str, token: Token) -> Certificate:
    """Get a token for a pool, and write it into a file of mode 0600. Raises UserError, Refused, Conflict."""
    from supervisor.adapters.certificates import openssl
    from supervisor.adapters.files.private import write_private
    from supervisor.contract.pool.requests import OpenPoolRequest

    life_ms = check(given, pool, token)
    _admit(given, pool)
    key, request = openssl.key_and_request(f"token-of-pool:{pool}")
    asked = OpenPoolRequest(pool, request, life_ms, token.origin)
    made = _ask(given, lambda client: client.open_pool(asked))
    write_private(token.file, key + made.pem.encode())
    return made


def revoke(given: Globals, pool: str, kept: Callable[[PoolView], str]) -> str:
    """Revoke the certificates of a pool that has ended. Returns what came of it; empty if it has none.

    `kept` says why the certificates of a token stay; empty if its pool has ended.
    Agents are queued before their token is made: a pool that has a token, and agents no more, has ended
    (decision 0099).
    Raises Unreachable, Refused if that cannot be done.
    """
    try:
        try:
            there = known(given, pool)
        except Refused:
            return ""  # who may not even see pools has made no token
        for view in there:
            if why := kept(view):
                return why
            _ask(given, partial(_revoke, pool, view.token))
    except Conflict:
        return ANOTHER
    except NotFound:
        return REVOKED  # by another client
    except TfSupervisorError as error:
        kind = Refused if isinstance(error, Refused) else Unreachable
        raise kind(
            f"the agents of pool {pool} have ended, and its certificates are not revoked: {error}; "
            f"`supervisorctl pool revoke {pool}` does that"
        ) from error
    return REVOKED if there else ""


def known(given: Globals, pool: str = "") -> tuple[PoolView, ...]:
    """The pools that supervisors certify, or one of them. An embedded cluster without TLS has none.

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


def _admit(given: Globals, pool: str) -> None:
    """Let a pool's agents into the etcd of an embedded cluster, which has no other administrator."""
    option, place = place_of(given)
    if option == "--state":
        layout = Layout.of(place)
    else:
        layout = Layout.of(place.absolute().parent.parent)
        if layout.client_config != Path(os.path.realpath(place)):
            return
    if not layout.settings.exists():
        return
    if (settings := layout.read()).advertise:
        config = layout.config(layout.supervisors(settings)[0])
        layout.reachable(settings).admit(config, [f"pool:{pool}"])


async def _revoke(pool: str, token: str, client: ControlClient) -> Accepted:
    return await client.revoke_pool(pool, token=token)


def _ask(given: Globals, ask: Callable[[ControlClient], Awaitable[R]]) -> R:
    async def asked() -> R:
        async with find_target(given).client() as client:
            return await ask(client)

    return asyncio.run(asked())
