"""Certificates for pools of agents: their tokens, those of their agents, and what was revoked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from supervisor.adapters.caller import CALLER
from supervisor.adapters.certificates.issuer import Issuer, Leaf
from supervisor.adapters.certificates.request import check_request
from supervisor.adapters.certificates.x509 import fingerprint
from supervisor.contract import keys
from supervisor.contract.access import Caller, Kind, Role, pool_uri
from supervisor.contract.boundaries import Clock, Delete
from supervisor.contract.errors import Conflict, NotFound, Refused, Unreachable, UserError
from supervisor.contract.ids import check_name
from supervisor.contract.pool.record import (
    MOST_POOLS,
    MOST_REVOKED,
    PoolRecord,
    check_life,
    check_origin,
    check_pool,
    objection,
    pool_of,
    server_name,
)
from supervisor.contract.pool.requests import (
    Certificate,
    CertifyRequest,
    OpenPoolRequest,
    PoolList,
    PoolView,
    RevokePoolRequest,
)
from supervisor.contract.views.jobs import Accepted
from supervisor.control.decide.plan import Action, put, unchanged, unchanged_or_absent
from supervisor.control.decide.snapshot import Snapshot, Versioned

POOL_OPENED, POOL_REVOKED = "pool_opened", "pool_revoked"
"""Kinds of the events."""
MOST_NODES = 1000
"""Most nodes of a pool with certificates: a pool has at most so many agents."""
AGAIN_MS = 10_000
"""A node gets one certificate in this time."""
SIGNING, WAITING, WAITING_OF_ONE = 2, 64, 32
"""Most certificates that are signed at a time; most that are asked for at a time, and those of one pool."""
_NO_ISSUER = (
    "the supervisors have no authority for pools: add `pools: {issuer: {cert: pool-ca.pem, "
    "key: pool-ca.key}}` to the configuration of each (`supervisorctl certs pool-authority` makes one), or "
    "name `tls.cert` and `tls.key` in the configuration that the pool's agents share"
)


class PoolService:
    """Each request raises Unreachable while this supervisor does not lead.

    Args:
        leading: the present snapshot; raises Unreachable while this supervisor follows.
        run: one transaction under the leader token; raises Conflict when a compare fails.

    Attributes:
        issuer: the authority of pools; None: no pool gets a certificate.
        is_etcd_open: whether etcd lets everybody write everything who shows a certificate that it trusts.
        record: the record of a pool, also while this supervisor follows; None for a pool that has none.
            Raises Unreachable before etcd was read.
    """

    def __init__(
        self,
        leading: Callable[[], Snapshot],
        run: Callable[[Action], Awaitable[None]],
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._leading = leading
        self._run = run
        self._clock = clock
        self._new_id = new_id
        self.issuer: Issuer | None = None
        self.is_etcd_open: Callable[[], Awaitable[bool]] = _is_not_open
        self.record: Callable[[str], PoolRecord | None] = lambda _name: None
        self._signing = asyncio.Semaphore(SIGNING)
        self._waiting: Counter[str] = Counter()
        self._certified: dict[str, dict[str, tuple[int, int]]] = {}
        """Pool's id -> node -> when its last certificate was signed (our clock), and ends (wall clock)."""

    def objection(self, caller: Caller) -> str:
        """Why the certificate of a pool's agent or token is refused; empty for one that is good.

        Raises Unreachable before etcd was read.
        """
        is_agent = caller.kind is Kind.AGENT
        record = self.record(pool_of(caller.name) if is_agent else caller.name)
        return self._objection(record, caller)

    def pools(self, name: str) -> PoolList:
        """The pools that may have certificates, or one of them."""
        snap = self._leading()
        shown = [each.value for each in snap.pools.values() if name in ("", each.value.name)]
        return PoolList(tuple(self._view(each) for each in sorted(shown, key=lambda each: each.name)))

    async def open(self, request: OpenPoolRequest) -> Certificate:
        """Make a token for a pool. One that it had before is good no more, and its agents go on.

        Raises:
            UserError: the name or the life is wrong.
            Refused: there is no authority of pools, etcd has no users, or the request asks for too much.
            Conflict: the pool is another user's, or another queue's, or there are nodes of this name that are
                no pool's.
        """
        snap, name = self._leading(), check_pool(request.pool)
        caller = _caller()
        before = snap.pools.get(name)
        _check_free(snap, name, before, caller)
        known = before.value.origin if before is not None else ""
        check_origin(name, known, request.origin)
        check_life(request.life_ms)
        asked = check_request(request.request, f"token-of-pool:{name}")
        self._require_issuer()
        if await self.is_etcd_open():
            raise Refused(
                "etcd has no users, so that each agent of a pool could write everything in it: give it users "
                "first, by `supervisorctl etcd setup --enable` (docs/security.md)"
            )
        pool_id = before.value.id if before is not None else self._new_id()
        # Its common name is no user of etcd.
        leaf = Leaf(
            name=f"token-of-pool:{name}",
            uris=(f"{Kind.POOL.value}:{name}", pool_uri(pool_id)),
            life=timedelta(milliseconds=request.life_ms),
        )
        pem, ends_ms = await self._sign(name, asked, leaf)
        record = PoolRecord(
            name=name,
            id=pool_id,
            owner=before.value.owner if before is not None else str(caller),
            token=fingerprint(pem.encode()),
            token_ends_wall_ms=ends_ms,
            revoked=before.value.revoked if before is not None else (),
            origin=request.origin or known,
        )
        text = f"agents of pool {name} may have certificates; its token ends at {_shown(ends_ms)}"
        key = keys.pool_record(name)
        compares, fields = (unchanged_or_absent(key, before),), {"pool": name}
        await self._run(Action(POOL_OPENED, "", text, compares, (put(key, record),), fields))
        return Certificate(pem, ends_ms)

    async def revoke(self, request: RevokePoolRequest) -> Accepted:
        """Refuse all certificates of a pool from now on, or those of one node. Repeating it does no harm.

        Raises NotFound, Conflict for a pool whose token is another by now than the request says, UserError
        for a node that is not the pool's.
        """
        before = self._leading().pools.get(check_pool(request.pool))
        if before is None:
            raise NotFound(f"no pool {request.pool} has certificates of these supervisors")
        record = before.value
        if request.token not in ("", record.token):
            raise Conflict(f"pool {record.name} has another token by now, and its certificates stay")
        if not request.node:
            text = f"the certificates of pool {record.name} are revoked"
            ops = (Delete(before.key),)
            await self._run(Action(POOL_REVOKED, "", text, (unchanged(before),), ops, {"pool": record.name}))
            return Accepted("", f"{text}: supervisors refuse its agents and its token")
        if pool_of(request.node) != record.name:
            raise UserError(f"{request.node!r} is no node of pool {record.name}: write {record.name}.PLACE")
        check_name("node", request.node)
        if request.node in record.revoked:
            return Accepted("", f"{request.node} is revoked already")
        if len(record.revoked) >= MOST_REVOKED:
            raise UserError(f"{MOST_REVOKED} nodes of pool {record.name} are revoked; revoke the pool")
        changed = replace(record, revoked=(*record.revoked, request.node))
        text = f"the certificates of {request.node} are revoked"
        fields = {"pool": record.name, "node": request.node}
        await self._run(
            Action(POOL_REVOKED, "", text, (unchanged(before),), (put(before.key, changed),), fields)
        )
        return Accepted("", f"{text}: supervisors refuse its agent")

    async def certify(self, request: CertifyRequest) -> Certificate:
        """Sign a certificate for an agent of a pool, whose token or own certificate the caller has shown.

        Raises:
            Refused: that is not good any more, or the request asks for more than it may.
            Unreachable: too many ask at this moment, or the node has just had one.
        """
        snap, caller, node = self._leading(), _caller(), check_name("node", request.node)
        held = snap.pools.get(pool_of(node))
        if not caller.pool_id or held is None:
            raise Refused(f"{caller} shows no certificate of a pool")
        if why := self._objection(held.value, caller):
            raise Refused(f"{caller} is refused: {why}")
        record = held.value
        if node in record.revoked:
            raise Refused(f"{node} was revoked, and gets no certificate")
        asked = check_request(request.request, f"{Kind.AGENT.value}:{node}")
        self._check_number(record, node)
        issuer = self._require_issuer()
        leaf = Leaf(
            # By this name etcd knows all agents of the pool.
            name=f"{Kind.POOL.value}:{record.name}",
            uris=(f"{Kind.AGENT.value}:{node}", pool_uri(record.id)),
            dns=server_name(node, record.id),
            life=issuer.life,
        )
        pem, ends_ms = await self._sign(record.name, asked, leaf)
        self._certified.setdefault(record.id, {})[node] = self._clock.now_ms(), ends_ms
        return Certificate(pem, ends_ms)

    def _objection(self, record: PoolRecord | None, caller: Caller) -> str:
        node = caller.name if caller.kind is Kind.AGENT else ""
        now_ms = self._clock.wall_ms()
        return objection(record, node=node, token=caller.token, pool_id=caller.pool_id, now_wall_ms=now_ms)

    def _view(self, record: PoolRecord) -> PoolView:
        now_ms = self._clock.wall_ms()
        certified = {
            node: ends_ms
            for node, (_, ends_ms) in self._certified.get(record.id, {}).items()
            if ends_ms > now_ms
        }
        ends_ms = record.token_ends_wall_ms
        return PoolView(
            record.name, record.owner, ends_ms, record.revoked, certified, record.token, record.origin
        )

    def _check_number(self, record: PoolRecord, node: str) -> None:
        """Bound what the holder of a token can make a leader do, and forget what has ended."""
        known = self._leading().pools.values()
        for each in self._certified.keys() - {held.value.id for held in known}:
            del self._certified[each]
        nodes, wall_ms = self._certified.get(record.id, {}), self._clock.wall_ms()
        for each in [each for each, (_, ends_ms) in nodes.items() if ends_ms <= wall_ms]:
            del nodes[each]
        if node in nodes and self._clock.now_ms() - nodes[node][0] < AGAIN_MS:
            raise Unreachable(f"{node} has just had a certificate; ask again in {AGAIN_MS // 1000} s")
        if node not in nodes and len(nodes) >= MOST_NODES:
            raise Refused(f"{MOST_NODES} nodes of pool {record.name} have certificates, the most that may")

    async def _sign(self, pool: str, request: str, leaf: Leaf) -> tuple[str, int]:
        """The certificate, and when it ends by the wall clock."""
        issuer = self._require_issuer()
        if self._waiting.total() >= WAITING or self._waiting[pool] >= WAITING_OF_ONE:
            total, ours = self._waiting.total(), self._waiting[pool]
            raise Unreachable(f"{total} certificates are being signed, {ours} of pool {pool}; ask again")
        self._waiting[pool] += 1
        # A caller that goes away ends no thread: what was begun counts until it is over.
        return await asyncio.shield(self._sign_in_turn(issuer, pool, request, leaf))

    async def _sign_in_turn(self, issuer: Issuer, pool: str, request: str, leaf: Leaf) -> tuple[str, int]:
        try:
            async with self._signing:
                now = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
                pem, ends = await asyncio.to_thread(issuer.sign, request, leaf, now)
        finally:
            self._waiting[pool] -= 1
            self._waiting += Counter()  # pools without any are forgotten
        return pem, round(ends.timestamp() * 1000)

    def _require_issuer(self) -> Issuer:
        if self.issuer is None:
            raise Refused(_NO_ISSUER)
        return self.issuer


async def _is_not_open() -> bool:
    """In place of a look at etcd, where there is nothing to look at."""
    return False


def _check_free(snap: Snapshot, name: str, before: Versioned[PoolRecord] | None, caller: Caller) -> None:
    """Raise Conflict unless the caller may have certificates for all nodes of this name."""
    if before is not None:
        owner = before.value.owner
        if owner != str(caller) and caller.standing.role is not Role.ADMIN:
            raise Conflict(
                f"pool {name} is of {owner}: choose another name, or end that one by "
                f"`supervisorctl pool revoke {name}`"
            )
        return
    if len(snap.pools) >= MOST_POOLS:
        raise Conflict(f"{MOST_POOLS} pools have certificates; `supervisorctl pool revoke NAME` ends one")
    for node, state in snap.nodes.items():
        held = state.incarnation
        if pool_of(node) == name and held is not None and not held.value.fenced:
            raise Conflict(
                f"node {node} is there, and no supervisor has certified it: with this name the pool could "
                "speak for it; choose another name, or wait until it is gone"
            )


def _caller() -> Caller:
    return CALLER.get() or Caller(Kind.LOCAL, "")


def _shown(wall_ms: int) -> str:
    return f"{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"
