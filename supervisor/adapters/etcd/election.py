"""Leader election on one key. For a while two supervisors may take themselves for the leader.

That is harmless, because every write of a leader compares its token in the same transaction (rule 2).
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from supervisor.adapters.backoff import Backoff, Retries
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import (
    Absent,
    Clock,
    Coordination,
    Delete,
    Get,
    KeyDeleted,
    KeyValue,
    Logger,
    Put,
    WatchBatch,
)
from supervisor.contract.desired import LeaderToken
from supervisor.contract.errors import CoordinationUnreachable, NotFound, TfSupervisorError

FIRST_WAIT_MS = 20
MOST_WAIT_MS = 500


class Election:
    """One candidate. `campaign` may be called again after leadership was lost or resigned.

    Args:
        coordination: the etcd of the key.
        key: the election key; its creator leads.
        value: the record of its holder.
        ttl_s: the lease's TTL; renewed three times in it.
        clock: measures the time since the last renewal, suspension included.
        sink: logs lost leadership.

    Attributes:
        lost: set while this candidate does not lead.
    """

    def __init__(
        self, coordination: Coordination, key: str, value: bytes, ttl_s: int, clock: Clock, sink: Logger
    ) -> None:
        self.lost = asyncio.Event()
        self.lost.set()
        self._coordination = coordination
        self._key = key
        self._value = value
        self._ttl_ms = ttl_s * 1000
        self._clock = clock
        self._sink = sink
        self._retries = Retries(clock, sink)
        self._lease_id = 0
        self._lease_renewed_ms = 0
        self._token: LeaderToken | None = None
        self._holding: asyncio.Task[None] | None = None

    @property
    def trouble(self) -> str:
        """Why this candidate cannot campaign now; empty if it can, or leads."""
        return self._retries.trouble

    async def campaign(self) -> LeaderToken:
        """Wait until we hold the key; etcd's outages are waited out too."""
        assert self.lost.is_set(), "this candidate leads already"
        backoff = Backoff(FIRST_WAIT_MS, MOST_WAIT_MS)
        while True:
            try:
                sent_ms = self._clock.now_ms()
                holder, revision = await self._try()
                if holder.lease_id == self._lease_id:
                    self._answered()
                    return self._begin(holder, sent_ms)
                async with aclosing(self._coordination.watch(self._key, revision + 1)) as batches:
                    async for batch in batches:
                        # Not before: where watches alone fail, the outage goes on.
                        self._answered()
                        backoff.reset()
                        if self._is_gone(batch):
                            break
            except NotFound:
                self._lease_id = 0  # ran out between its grant and its use
            except TfSupervisorError as error:
                if not error.retryable:
                    raise
                self._retries.failed("cannot campaign to lead; trying again", error, key=self._key)
                await backoff.wait()

    async def wait_lost(self) -> None:
        """Return when this candidate does not lead any more."""
        holding = self._holding
        await self.lost.wait()
        if holding is not None and holding.done() and not holding.cancelled():
            holding.result()

    async def resign(self) -> None:
        """Hand over at once: delete the key, end the lease. If etcd does not answer, the lease runs out."""
        await self._stop_holding()
        token, self._token = self._token, None
        lease_id, self._lease_id = self._lease_id, 0
        try:
            if token is not None:
                with effect("election.resign", CoordinationUnreachable):
                    await self._coordination.txn([token.compare()], [Delete(self._key)])
            if lease_id:
                with effect("election.revoke", CoordinationUnreachable):
                    await self._coordination.revoke(lease_id)
        except TfSupervisorError as error:
            if not error.retryable:
                raise
            self._sink.warning(
                "etcd did not answer the resignation; the lease will run out",
                key=self._key,
                reason=str(error),
            )

    async def _try(self) -> tuple[KeyValue, int]:
        """Create the key if it is absent; returns its state, and the revision of that state."""
        lease_id = await self._ensure_lease()
        read = Get(self._key)
        with effect("election.campaign", CoordinationUnreachable):
            result = await self._coordination.txn(
                [Absent(self._key)], [Put(self._key, self._value, lease_id), read], [read]
            )
        ((holder,),) = result.reads
        return holder, result.revision

    async def _ensure_lease(self) -> int:
        """A lease with most of its TTL ahead, the old one if possible.

        The old one may hold the key already, by a transaction whose answer was lost. The id is returned, as
        `resign` may clear the attribute meanwhile: a key without a lease would stay for ever.
        """
        now_ms, lease_id = self._clock.now_ms(), self._lease_id
        if lease_id and now_ms - self._lease_renewed_ms < self._ttl_ms // 2:
            return lease_id
        with effect("election.lease", CoordinationUnreachable):
            if not (lease_id and await self._coordination.keep_alive(lease_id)):
                lease_id = await self._coordination.grant(self._ttl_ms // 1000)
        self._lease_id, self._lease_renewed_ms = lease_id, now_ms
        return lease_id

    def _answered(self) -> None:
        self._retries.over("etcd answers again: campaigns to lead", key=self._key)

    def _is_gone(self, batch: WatchBatch) -> bool:
        return any(isinstance(change, KeyDeleted) and change.key == self._key for change in batch.changes)

    def _begin(self, holder: KeyValue, sent_ms: int) -> LeaderToken:
        token = self._token = LeaderToken(self._key, holder.create_revision)
        self.lost.clear()
        self._holding = asyncio.create_task(self._hold(token, sent_ms))
        return token

    async def _stop_holding(self) -> None:
        if self._holding is not None:
            self._holding.cancel()
            await asyncio.wait([self._holding])
            self._holding = None

    async def _hold(self, token: LeaderToken, confirmed_ms: int) -> None:
        try:
            reason = await self._keep(token, confirmed_ms)
            self._sink.warning("leadership lost", key=self._key, reason=reason)
        finally:
            self.lost.set()

    async def _keep(self, token: LeaderToken, confirmed_ms: int) -> str:
        """Renew the lease until a read disproves our leadership, or none has confirmed it for the TTL."""
        while (left_ms := confirmed_ms + self._ttl_ms - self._clock.now_ms()) > 0:
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await asyncio.sleep(self._ttl_ms / 3000)
                    sent_ms = self._clock.now_ms()
                    if not await self._still_ours(token):
                        return "the key is gone or another's"
                    confirmed_ms = sent_ms
            except (TimeoutError, CoordinationUnreachable):
                continue
        return "no linearizable read has confirmed it for the lease's TTL"

    async def _still_ours(self, token: LeaderToken) -> bool:
        """Renew the lease and read the key. The read decides: an acknowledged keepalive proves nothing."""
        with effect("election.renew", CoordinationUnreachable):
            renewed, holder = await asyncio.gather(
                self._coordination.keep_alive(self._lease_id),
                self._coordination.get(self._key),
                return_exceptions=True,
            )
        if isinstance(holder, BaseException):
            raise holder
        if isinstance(renewed, BaseException):
            if not isinstance(renewed, TfSupervisorError):
                raise renewed
            self._sink.info(
                "the leader's lease is not renewed; trying again", key=self._key, reason=str(renewed)
            )
        return holder is not None and holder.create_revision == token.create_revision
