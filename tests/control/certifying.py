"""A leader that certifies agents of pools, and those who ask it; the authority is real, etcd in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from click.testing import CliRunner

from supervisor.adapters.caller import CALLER
from supervisor.adapters.certificates import openssl
from supervisor.adapters.certificates.issuer import Issuer
from supervisor.adapters.certificates.x509 import fingerprint, uris
from supervisor.cli.cluster.certs import certs
from supervisor.contract.access import Caller, Kind, Role, Standing, pool_id_of
from supervisor.contract.pool.record import PoolRecord
from supervisor.contract.pool.requests import CertifyRequest, OpenPoolRequest, RevokePoolRequest
from supervisor.control.decide.plan import Action
from supervisor.control.decide.snapshot import Snapshot
from supervisor.control.services.pools import PoolService
from tests.control.world import World

OLGA = Caller(Kind.USER, "olga", Standing(Role.OPERATOR))
OTTO = Caller(Kind.USER, "otto", Standing(Role.OPERATOR))
ADAM = Caller(Kind.USER, "adam", Standing(Role.ADMIN))
HOUR_MS = 3_600_000


def make_authority(directory: Path) -> Issuer:
    """An authority of pools, by `supervisorctl certs`."""
    assert CliRunner().invoke(certs, ("pool-authority", str(directory))).exit_code == 0
    return Issuer(directory / "pool-ca.pem", directory / "pool-ca.key", timedelta(hours=1))


@dataclass
class Pools:
    """A leader with an authority, and those who ask it."""

    issuer: Issuer
    world: World = field(default_factory=lambda: World(nodes=0))
    ids: Iterator[str] = field(default_factory=lambda: iter(f"id{n}" for n in range(9)))
    actions: list[Action] = field(default_factory=list)
    skew_ms: int = 0

    def __post_init__(self) -> None:
        self.service = PoolService(self.snapshot, self.run, self, lambda: next(self.ids))
        self.service.issuer = self.issuer
        self.service.record = self.record

    def snapshot(self) -> Snapshot:
        """What the leader sees."""
        return self.world.snapshot()

    def now_ms(self) -> int:
        """The time that goes on."""
        return self.world.now_ms

    def wall_ms(self) -> int:
        """The time of day."""
        return 1_700_000_000_000 + self.world.now_ms + self.skew_ms

    def record(self, name: str) -> PoolRecord | None:
        """The record of a pool in etcd."""
        held = self.snapshot().pools.get(name)
        return held.value if held is not None else None

    async def run(self, action: Action) -> None:
        """One transaction."""
        self.actions.append(action)
        self.world.write(*action.ops)

    async def open(
        self, pool: str = "train", by: Caller = OLGA, life_ms: int = HOUR_MS, origin: str = ""
    ) -> Caller:
        """The holder of a new token."""
        request = openssl.key_and_request(f"token-of-pool:{pool}")[1]
        with calling(by):
            made = await self.service.open(OpenPoolRequest(pool, request, life_ms, origin))
        return shown(made.pem, Kind.POOL, pool)

    async def certify(self, by: Caller, node: str = "train.n1", name: str = "") -> Caller:
        """The agent with a new certificate."""
        request = openssl.key_and_request(name or f"agent:{node}")[1]
        with calling(by):
            made = await self.service.certify(CertifyRequest(node, request))
        return shown(made.pem, Kind.AGENT, node)

    async def revoke(self, pool: str = "train", node: str = "", token: str = "") -> str:
        """What a supervisor says when the pool's user revokes it, or a node."""
        with calling(OLGA):
            return (await self.service.revoke(RevokePoolRequest(pool, node, token))).detail


def shown(pem: str, kind: Kind, name: str) -> Caller:
    """The holder of a certificate as the gate of a server knows it."""
    found = [each.decode() for each in uris(pem.encode())]
    assert f"{kind.value}:{name}" in found
    token = fingerprint(pem.encode()) if kind is Kind.POOL else ""
    return Caller(kind, name, pool_id=pool_id_of(found), token=token)


@contextmanager
def calling(caller: Caller) -> Iterator[None]:
    """Requests are of this caller."""
    before = CALLER.set(caller)
    try:
        yield
    finally:
        CALLER.reset(before)
