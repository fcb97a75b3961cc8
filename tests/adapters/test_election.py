"""The election: one key, prompt hand-over, and leaders that notice when they are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.election import Election
from supervisor.adapters.etcd.memory import Fault, MemoryCoordination, MemoryStore
from supervisor.contract.boundaries import Coordination, Delete, Put, WatchBatch
from supervisor.contract.errors import CoordinationUnreachable
from tests.adapters.conftest import Backend
from tests.support.clocks import ManualClock
from tests.support.sinks import ListSink
from tests.support.steady import on_a_steady_machine
from tests.support.waiting import until

KEY = "leader"


def candidate(client: Coordination, name: bytes = b"one", ttl_s: int = 1) -> Election:
    return Election(client, KEY, name, ttl_s, BootClock(), ListSink())


async def lease_times(client: Coordination, count: int) -> None:
    """Returns when `count` leases of 1 s, which nobody renewed, have run out one after the other."""
    for number in range(count):
        lease = await client.grant(1)
        written = (await client.txn([], [Put(f"marker/{number}", b"", lease)])).revision
        watch = client.watch(f"marker/{number}", written + 1)
        async with asyncio.timeout(20):
            while not (await anext(watch)).changes:
                pass
        await watch.aclose()


async def test_the_first_candidate_leads_and_its_token_fences(backend: Backend) -> None:
    client = backend.client()
    election = candidate(client)
    token = await election.campaign()
    held = await client.get(KEY)
    assert held is not None
    assert (held.value, held.create_revision) == (b"one", token.create_revision)
    assert (await client.txn([token.compare()], [Put("x", b"")])).succeeded
    assert not election.lost.is_set()
    await election.resign()
    assert election.lost.is_set()
    assert not (await client.txn([token.compare()], [Put("x", b"")])).succeeded


@on_a_steady_machine
async def test_a_leader_stays_leader_for_longer_than_its_lease(backend: Backend) -> None:
    client = backend.client()
    election = candidate(client, ttl_s=2)
    token = await election.campaign()
    await lease_times(backend.client(), 3)
    assert not election.lost.is_set()
    assert (await client.txn([token.compare()], [])).succeeded
    await election.resign()


async def test_resigning_hands_over_long_before_the_lease_ends(backend: Backend) -> None:
    first, second = candidate(backend.client(), ttl_s=60), candidate(backend.client(), b"two", ttl_s=60)
    old = await first.campaign()
    waiting = asyncio.create_task(second.campaign())
    await lease_times(backend.client(), 1)
    assert not waiting.done()
    async with asyncio.timeout(20):
        await first.resign()
        new = await waiting
    assert new.create_revision > old.create_revision
    await second.resign()


async def test_a_dead_leader_is_followed_when_its_lease_has_run_out(backend: Backend) -> None:
    client = backend.client()
    lease = await client.grant(1)
    await client.txn([], [Put(KEY, b"dead", lease)])
    election = candidate(backend.client(), b"two")
    async with asyncio.timeout(20):
        await election.campaign()
    await election.resign()


async def test_a_leader_whose_key_was_deleted_notices(backend: Backend) -> None:
    client = backend.client()
    election = candidate(client)
    token = await election.campaign()
    await client.txn([], [Delete(KEY)])
    async with asyncio.timeout(20):
        await election.wait_lost()
    again = await election.campaign()
    assert again.create_revision > token.create_revision
    await election.resign()


@on_a_steady_machine
async def test_a_leader_without_etcd_gives_up_within_its_lease_time(backend: Backend) -> None:
    election = candidate(backend.client(hasty=True))
    await election.campaign()
    with backend.frozen():
        async with asyncio.timeout(20):
            await election.wait_lost()
    await election.campaign()
    await election.resign()


async def test_a_cut_off_leader_and_its_successor_never_both_write() -> None:
    store = MemoryStore()
    cut_off, other = MemoryCoordination(store), MemoryCoordination(store)
    first, second = candidate(cut_off), candidate(other, b"two")
    old = await first.campaign()
    cut_off.disconnect()
    new = await second.campaign()
    await first.wait_lost()
    cut_off.reconnect()
    assert not (await cut_off.txn([old.compare()], [Put("x", b"old")])).succeeded
    assert (await other.txn([new.compare()], [Put("x", b"new")])).succeeded
    await second.resign()


async def test_an_acknowledged_keepalive_proves_nothing() -> None:
    store = MemoryStore()
    first, second = candidate(MemoryCoordination(store)), candidate(MemoryCoordination(store), b"two")
    old = await first.campaign()
    store.stale_lessor = True
    new = await second.campaign()
    store.stale_lessor = False
    async with asyncio.timeout(20):
        await first.wait_lost()
    assert new.create_revision > old.create_revision
    await second.resign()


async def test_a_transaction_whose_answer_was_lost_still_makes_us_leader() -> None:
    store = MemoryStore()
    faults = [Fault.LOST_REPLY, Fault.LOST_REQUEST]
    client = MemoryCoordination(
        store,
        rpc_deadline_ms=50,
        fault=lambda call: faults.pop(0) if call == "txn" and faults else None,
    )
    election = candidate(client)
    async with asyncio.timeout(20):
        token = await election.campaign()
    assert store.read(KEY)[0].create_revision == token.create_revision
    assert not faults
    sink = cast(ListSink, election._sink)
    assert [(level, fields.get("failures")) for level, _, fields in sink.lines] == [
        ("warning", None),
        ("info", 2),
    ]
    await election.resign()
    assert store.read(KEY) == ()


async def test_watches_that_alone_fail_are_one_outage() -> None:
    """A candidate logged two lines for each try, 50 times a second."""
    store, clock, sink = MemoryStore(), ManualClock(), ListSink()
    first = candidate(MemoryCoordination(store))
    await first.campaign()
    client = Unwatched(store)
    second = Election(client, KEY, b"two", 60, clock, sink)
    waiting = asyncio.create_task(second.campaign())
    await until(lambda: client.tries > 5)
    assert [event for _, event, _ in sink.lines] == ["cannot campaign to lead; trying again"]
    assert second.trouble == sink.lines[0][2]["reason"]
    client.tries, client.fails = 0, False
    await until(lambda: len(sink.lines) > 1)
    assert sink.lines[1][1] == "etcd answers again: campaigns to lead"
    assert second.trouble == ""
    await first.resign()
    await waiting
    await second.resign()
    assert len(sink.lines) == 2


class Unwatched(MemoryCoordination):
    """An etcd that answers, and whose watches fail."""

    tries, fails = 0, True

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        self.tries += 1
        if self.fails:
            raise CoordinationUnreachable("no watch")
        async with aclosing(super().watch(prefix, from_revision)) as batches:
            async for batch in batches:
                yield batch


async def test_compaction_does_not_stop_a_waiting_candidate() -> None:
    store = MemoryStore()
    first = candidate(MemoryCoordination(store), ttl_s=60)
    second = candidate(MemoryCoordination(store), b"two", ttl_s=60)
    await first.campaign()
    for index in range(5):
        store.commit([], [Put("x", b"%d" % index)], [])
    store.compact(store.revision)
    waiting = asyncio.create_task(second.campaign())
    await until(lambda: len(store._streams) == 1)
    (broken,) = store._streams
    store.break_watches()
    store.commit([], [Put("x", b"")], [])
    store.compact(store.revision)
    await until(lambda: len(store._streams) == 1 and store._streams[0] is not broken)
    async with asyncio.timeout(20):
        await first.resign()
        await waiting
    await second.resign()
