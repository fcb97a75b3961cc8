"""A node's place in the cluster: its key, its lost mark, its beats (rules 3 and 12).

Safety: a beat counts from the moment it was sent, and only if one linearizable read shows our own key and no
lost mark. The key is compared by the revision that wrote it, not by the one that created it, because a
successor overwrites it: its predecessor's writes must fail from then on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import NoReturn

from agent.boundaries import Outside, Post
from agent.core.events import BeatSeen, Evicted, Joined, TermsSeen
from agent.settings import AgentSettings
from supervisor.adapters.backoff import Retries
from supervisor.adapters.etcd.identity import EtcdIdentity, Loss
from supervisor.adapters.failpoints import effect
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Absent, Compare, Get, KeyValue, ModifiedAt, Op, Put, Seen, as_read
from supervisor.contract.desired import ClusterRecord, LostMark
from supervisor.contract.errors import (
    Conflict,
    CoordinationUnreachable,
    Dismissed,
    Fenced,
    IncompatibleRecord,
    NotFound,
    TfSupervisorError,
)
from supervisor.contract.observed import Appeal, Incarnation

PATIENCE_MS = 2_000
LEASE_RENEWALS = 3
APPEAL_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class Former:
    """The earlier lives of this agent.

    Attributes:
        lives: their incarnations, newest first.
        cluster: the UUID of the cluster that they were part of; empty if unknown.
        seen: the newest write in its etcd that assigned work to them.
        adopts: whether their attempts are adopted; if not, no process of them is left.
    """

    lives: tuple[str, ...] = ()
    cluster: str = ""
    seen: Seen | None = None
    adopts: bool = True


class Membership:
    """Joins the cluster and stays in it. Posts Joined, BeatSeen, TermsSeen and Outcast.

    Args:
        former: the lives before this one.
        life: the incarnation id to join with.
    """

    def __init__(
        self,
        settings: AgentSettings,
        outside: Outside,
        post: Post,
        former: Former,
        life: str,
        boot_id: str,
    ) -> None:
        self._settings = settings
        self._coordination = outside.coordination
        self._clock = outside.clock
        self._sink = outside.sink
        self._retries = Retries(outside.clock, outside.sink)
        self._no_record = Retries(outside.clock, outside.sink)
        self._new_id = outside.new_id
        self._post = post
        self._own = former.lives
        self._succeeds = former.lives if former.adopts else ()
        self._etcd = EtcdIdentity(former.cluster, seen=former.seen)
        self._life = life
        self._boot_id = boot_id
        self._me: Incarnation | None = None
        self._written = 0
        self._lease = 0
        self._marked_ms = -1
        self._appealed_mark, self._appeal_again_ms = 0, 0
        self._terms = TermsSeen((), 0)
        self._cleared = asyncio.Event()

    @property
    def fence(self) -> ModifiedAt:
        """The compare that holds while the node's key is the one that this life wrote (rule 2)."""
        return ModifiedAt(keys.node(self._settings.node), self._written)

    def forked(self) -> None:
        """Note that etcd lacks writes that it had, as a watch has shown. The next read ends this life."""
        self._etcd.forked()

    def cleared(self) -> None:
        """Note that no process of the lost lives is left, so that joining anew is safe."""
        self._cleared.set()

    async def run(self) -> NoReturn:
        """Join, beat, and begin again after a final loss. Raises Conflict, Fenced and Dismissed."""
        while True:
            reason = await self._join()
            if not reason:
                keeper = asyncio.create_task(self._renew_lease())
                try:
                    reason = await self._beat()
                finally:
                    keeper.cancel()
            await self._begin_again(reason)

    async def _begin_again(self, reason: str) -> None:
        self._cleared.clear()
        self._post(Evicted(reason))
        await self._cleared.wait()
        if self._me is not None:
            self._own = (self._life, *self._own)
            self._life = self._new_id()
        self._me = None
        self._succeeds = ()
        self._etcd, self._terms = EtcdIdentity(), TermsSeen((), 0)
        self._marked_ms = -1

    # Joining.

    async def _join(self) -> str:
        """Join the cluster. Returns when the node's key is ours, with the reason against adoption if there is
        one.
        """
        began_ms = self._clock.now_ms()
        while True:
            try:
                reason = await self._try_join(began_ms)
            except TfSupervisorError as error:
                if not _passes(error):
                    raise
                self._retries.failed("cannot join the cluster yet; trying again", error)
                await asyncio.sleep(self._settings.timing.beat_ms / 1000)
                continue
            self._retries.over("etcd is read again")
            if reason is not None:
                return reason
            # A predecessor's tasks live on what is left of their deadline: look often.
            await asyncio.sleep(APPEAL_AGAIN_S)

    async def _try_join(self, began_ms: int) -> str | None:
        """Try once to join. None: try again.

        Empty: joined. Otherwise the reason why all processes of earlier lives must end.
        """
        node = self._settings.node
        marks = [Get(keys.lost(node, life)) for life in self._succeeds]
        sent_ms = self._clock.now_ms()
        found = await self._coordination.txn((), [Get(keys.node(node)), Get(keys.CLUSTER), *marks])
        holder, cluster = _only(found.reads[0]), _only(found.reads[1])
        record = _record(cluster)
        if self._etcd.knows(record):
            await self._etcd.look_back(self._coordination)
        if loss := self._etcd.loss(record, found.revision):
            return self._why_lost(loss)
        for read in found.reads[2:]:
            if read:
                return await self._contest(read[0])
        d_ms = self._d_ms(record)
        self._tell_terms(record)
        if holder is not None and codec.decode(Incarnation, holder.value).incarnation == self._life:
            # An answer of etcd was lost on the way: the key is ours already.
            me = codec.decode(Incarnation, holder.value)
            self._joined(me, holder.mod_revision, holder.lease_id, sent_ms)
            return ""
        if holder is not None and not self._is_own(holder):
            await self._refuse_foreign(holder, began_ms)
            return None
        me = self._incarnation(d_ms)
        with effect("membership.lease", CoordinationUnreachable):
            lease = await self._coordination.grant(self._settings.timing.node_lease_s)
        compares: list[Compare] = [Absent(mark.key) for mark in marks]
        compares.append(as_read(keys.CLUSTER, cluster))
        key = keys.node(node)
        compares.append(as_read(key, holder))
        sent_ms = self._clock.now_ms()
        with effect("membership.join", CoordinationUnreachable):
            result = await self._coordination.txn(compares, [Put(key, codec.encode(me), lease)])
        if not result.succeeded:
            with effect("membership.revoke", CoordinationUnreachable):
                await self._coordination.revoke(lease)
            return None
        self._joined(me, result.revision, lease, sent_ms)
        return ""

    def _joined(self, me: Incarnation, written: int, lease: int, sent_ms: int) -> None:
        self._me, self._written, self._lease, self._marked_ms = me, written, lease, -1
        self._sink.info(
            "joined the cluster", incarnation=me.incarnation, succeeds=len(me.succeeds), d_ms=me.d_ms
        )
        self._post(Joined(me, sent_ms, bool(self._succeeds), me.d_ms))

    def _is_own(self, holder: KeyValue) -> bool:
        return codec.decode(Incarnation, holder.value).incarnation in self._own

    async def _refuse_foreign(self, holder: KeyValue, began_ms: int) -> None:
        patience_ms = self._settings.timing.node_lease_s * 1000 + PATIENCE_MS
        other = codec.decode(Incarnation, holder.value)
        if self._clock.now_ms() - began_ms > patience_ms:
            raise Conflict(
                f"node {self._settings.node!r} is in use by another agent (pid {other.pid} at {other.host}, "
                f"incarnation {other.incarnation}): give each machine its own `node:` and `state_dir:`"
            )
        self._sink.warning(
            "another agent holds this node's key; waiting until its lease ends", other=other.incarnation
        )
        await asyncio.sleep(self._settings.timing.beat_ms / 1000)

    def _d_ms(self, record: ClusterRecord | None) -> int:
        if record is None:
            return self._settings.timing.d_ms
        replace(self._settings.timing, d_ms=record.d_ms).check()
        return record.d_ms

    def _tell_terms(self, record: ClusterRecord | None) -> None:
        """Post the terms of promises (rule 11) whenever the cluster's record has changed."""
        if record is None:
            return
        self._no_record.over("etcd has a record of this cluster again")
        terms = TermsSeen(record.supervisors, record.promise_ms, self._etcd.cluster)
        if terms != self._terms:
            self._terms = terms
            self._post(terms)

    def _why_lost(self, loss: Loss) -> str | None:
        """After a loss of data in etcd: the reason why this life is lost; None while the record is absent.

        A leader will write a missing record. Otherwise the tasks here belong to a cluster, or a time, that is
        gone.
        """
        match loss:
            case Loss.NO_RECORD:
                reason = NotFound("etcd has lost data, and no supervisor has led since")
                self._no_record.failed(
                    "etcd has no record of this cluster: waiting for a leader to write one", reason
                )
                return None
            case Loss.WENT_BACK:
                return "etcd lacks what it had: a snapshot was restored"
            case Loss.BEGUN_ANEW:
                return "etcd was begun anew: this is another cluster than the one whose tasks run here"

    def _incarnation(self, d_ms: int) -> Incarnation:
        settings = self._settings
        return Incarnation(
            node=settings.node,
            incarnation=self._life,
            boot_id=self._boot_id,
            d_ms=d_ms,
            host=settings.host,
            address=settings.address,
            port_low=settings.port_low,
            port_high=settings.port_high,
            pid=settings.pid,
            resources=settings.resources,
            succeeds=self._succeeds,
            release=settings.release,
            directory=settings.directory,
        )

    # Staying.

    async def _beat(self) -> str:
        """Beat until this life is lost for good; returns the reason."""
        while True:
            sent_ms = self._clock.now_ms()
            try:
                reason = await self._look(sent_ms)
            except TfSupervisorError as error:
                if not _passes(error):
                    raise
                self._retries.failed("cannot read etcd; trying again", error)
                reason = None
            else:
                self._retries.over("etcd is read again")
            if reason is not None:
                return reason
            next_ms = sent_ms + self._settings.timing.beat_ms
            await asyncio.sleep(max(0, next_ms - self._clock.now_ms()) / 1000)

    async def _look(self, sent_ms: int) -> str | None:
        node, key = self._settings.node, keys.node(self._settings.node)
        wanted = [Get(key), Get(keys.CLUSTER), *map(Get, self._marks())]
        found = await self._coordination.txn((), wanted)
        holder, cluster = _only(found.reads[0]), _only(found.reads[1])
        record = _record(cluster)
        if loss := self._etcd.loss(record, found.revision):
            return self._why_lost(loss)
        self._tell_terms(record)
        for read in found.reads[2:]:
            if read:
                return await self._contest(read[0])
        self._marked_ms = -1
        if holder is None:
            await self._write_again(cluster)
        elif holder.mod_revision == self._written:
            self._post(BeatSeen(sent_ms))
        elif codec.decode(Incarnation, holder.value).incarnation == self._life:
            # Our own write whose answer was lost.
            self._written, self._lease = holder.mod_revision, holder.lease_id
        else:
            raise Fenced(f"another agent has taken over node {node!r}")
        return None

    async def _write_again(self, cluster: KeyValue | None) -> None:
        """Write our key again after it vanished without a mark: its lease ran out while we could not renew
        it.
        """
        assert self._me is not None
        key = keys.node(self._settings.node)
        with effect("membership.lease_again", CoordinationUnreachable):
            lease = await self._coordination.grant(self._settings.timing.node_lease_s)
        compares = [Absent(key), as_read(keys.CLUSTER, cluster), *map(Absent, self._marks())]
        with effect("membership.write_again", CoordinationUnreachable):
            result = await self._coordination.txn(compares, [Put(key, codec.encode(self._me), lease)])
        if result.succeeded:
            self._written, self._lease = result.revision, lease
            self._sink.warning(
                "the node's key had vanished from etcd; wrote it again", incarnation=self._life
            )

    def _marks(self) -> tuple[str, ...]:
        """The keys of lost marks that concern us.

        A task may still be placed on a life that we succeeded, and a leader that finds no key knows only that
        life.
        """
        assert self._me is not None
        return tuple(keys.lost(self._me.node, life) for life in (self._life, *self._me.succeeds))

    async def _contest(self, mark: KeyValue) -> str | None:
        """Appeal against a lost mark. Returns the reason if that is in vain, else None."""
        record = codec.decode(LostMark, mark.value)
        now_ms = self._clock.now_ms()
        if record.dismissed:
            raise Dismissed(f"node {record.node} is to end: {record.reason}")
        if record.final:
            return f"marked lost for good: {record.reason}"
        if self._marked_ms < 0:
            self._marked_ms = now_ms
            self._sink.warning(
                "the leader has marked this node lost; appealing",
                incarnation=record.incarnation,
                reason=record.reason,
            )
        if now_ms - self._marked_ms > self._settings.timing.d_ms + PATIENCE_MS:
            return f"the lost mark stands: {record.reason}"
        # Who joins looks much more often than a leader has to be told.
        if mark.mod_revision != self._appealed_mark or now_ms >= self._appeal_again_ms:
            await self._appeal(mark, record)
            self._appealed_mark = mark.mod_revision
            self._appeal_again_ms = now_ms + self._settings.timing.beat_ms // 2
        return None

    async def _appeal(self, mark: KeyValue, record: LostMark) -> None:
        successor = "" if record.incarnation == self._life else self._life
        appeal = Appeal(record.node, record.incarnation, successor)
        write: Op = Put(keys.appeal(record.node, record.incarnation), codec.encode(appeal))
        with effect("membership.appeal", CoordinationUnreachable):
            await self._coordination.txn([ModifiedAt(mark.key, mark.mod_revision)], [write])

    async def _renew_lease(self) -> None:
        """Renew the lease, so that the key stays. This proves nothing (rule 3)."""
        while True:
            await asyncio.sleep(self._settings.timing.node_lease_s / LEASE_RENEWALS)
            try:
                with effect("membership.keep_alive", CoordinationUnreachable):
                    await self._coordination.keep_alive(self._lease)
            except TfSupervisorError as error:
                self._sink.debug(
                    "the lease of the node's key is not renewed; trying again", reason=str(error)
                )


def _passes(error: TfSupervisorError) -> bool:
    """Whether to try again after an error.

    An unreadable record confirms nothing, like an etcd that does not answer.
    """
    return error.retryable or isinstance(error, IncompatibleRecord)


def _record(found: KeyValue | None) -> ClusterRecord | None:
    return codec.decode(ClusterRecord, found.value) if found is not None else None


def _only(entries: tuple[KeyValue, ...]) -> KeyValue | None:
    return entries[0] if entries else None
