"""etcd's bad habits and the network's, as the in-memory store plays them."""

from __future__ import annotations

import asyncio

import pytest

from supervisor.adapters.etcd.memory import Fault, MemoryCoordination, MemoryStore
from supervisor.contract.boundaries import Coordination, Put
from supervisor.contract.errors import CoordinationFull, CoordinationUnreachable
from tests.support.virtual import in_virtual_time


async def leased(client: Coordination, store: MemoryStore, ttl_s: int = 1) -> tuple[int, float]:
    """A key `k` under a new lease; the lease and the loop time of its grant."""
    lease = await client.grant(ttl_s)
    await client.txn([], [Put("k", b"", lease)])
    return lease, asyncio.get_running_loop().time()


async def seconds_until_gone(store: MemoryStore, since: float) -> float:
    stream = store.open_stream("k", store.revision + 1)
    async with asyncio.timeout(10):
        while store.read("k"):
            stream.waker.clear()
            await stream.waker.wait()
    return asyncio.get_running_loop().time() - since


@in_virtual_time
async def test_a_lease_expires_late() -> None:
    store = MemoryStore(expiry_lag_s=0.4)
    _, granted = await leased(MemoryCoordination(store), store)
    assert 1.35 < await seconds_until_gone(store, granted) < 1.7


@in_virtual_time
async def test_a_short_ttl_is_rounded_up_to_the_shortest() -> None:
    store = MemoryStore(election_timeout_s=1.0, expiry_lag_s=0.0)
    _, granted = await leased(MemoryCoordination(store), store)
    assert 1.9 < await seconds_until_gone(store, granted) < 2.3


@in_virtual_time
async def test_a_new_leader_re_arms_every_lease() -> None:
    store = MemoryStore(election_timeout_s=0.1, expiry_lag_s=0.0)
    _, granted = await leased(MemoryCoordination(store), store)
    asyncio.get_running_loop().call_later(0.8, store.elect_new_leader)
    assert 1.85 < await seconds_until_gone(store, granted) < 2.2


@in_virtual_time
async def test_a_stale_lessor_acknowledges_and_renews_nothing() -> None:
    store = MemoryStore(expiry_lag_s=0.0)
    client = MemoryCoordination(store)
    lease, granted = await leased(client, store)
    store.stale_lessor = True
    leaving = asyncio.create_task(seconds_until_gone(store, granted))
    while not leaving.done():
        assert await client.keep_alive(lease)
        await asyncio.wait([leaving], timeout=0.1)
    assert 0.9 < await leaving < 1.3
    assert await client.keep_alive(lease)


@in_virtual_time
async def test_a_renewed_lease_can_be_revoked_by_a_stale_lessor() -> None:
    store = MemoryStore()
    client = MemoryCoordination(store)
    lease, _ = await leased(client, store)
    assert await client.keep_alive(lease)
    store.expire_lease(lease)
    assert await client.get("k") is None


@pytest.mark.parametrize(("fault", "took_effect"), [(Fault.LOST_REQUEST, False), (Fault.LOST_REPLY, True)])
@in_virtual_time
async def test_an_unknown_outcome_is_one_or_the_other(fault: Fault, took_effect: bool) -> None:
    store = MemoryStore()
    client = MemoryCoordination(store, rpc_deadline_ms=20, fault=lambda _call: fault)
    with pytest.raises(CoordinationUnreachable):
        await client.txn([], [Put("k", b"")])
    assert bool(store.read("k")) is took_effect


@in_virtual_time
async def test_a_slow_request_takes_effect_after_its_caller_gave_up() -> None:
    store = MemoryStore()
    client = MemoryCoordination(
        store, rpc_deadline_ms=20, delay=lambda step: 1.0 if step == "txn.request" else 0.0
    )
    with pytest.raises(CoordinationUnreachable):
        await client.txn([], [Put("k", b"")])
    assert not store.read("k")
    stream = store.open_stream("k", store.revision + 1)
    async with asyncio.timeout(20):
        while not store.read("k"):
            stream.waker.clear()
            await stream.waker.wait()


@in_virtual_time
async def test_a_frozen_store_serves_at_the_thaw_what_came_meanwhile_and_a_dead_one_does_not() -> None:
    store = MemoryStore()
    client = MemoryCoordination(store, rpc_deadline_ms=20)
    store.freeze()
    with pytest.raises(CoordinationUnreachable):
        await client.txn([], [Put("frozen", b"")])
    store.thaw()
    store.down()
    with pytest.raises(CoordinationUnreachable):
        await client.txn([], [Put("dead", b"")])
    store.up()
    assert [entry.key for entry in store.select("")] == ["frozen"]


@in_virtual_time
async def test_a_full_store_refuses_values_and_takes_deletes() -> None:
    store = MemoryStore()
    client = MemoryCoordination(store)
    await client.txn([], [Put("k", b"1")])
    store.full = True
    with pytest.raises(CoordinationFull):
        await client.txn([], [Put("k", b"2")])
    with pytest.raises(CoordinationFull):
        await client.grant(5)
    entry = await client.get("k")
    assert entry is not None
    assert entry.value == b"1"


@in_virtual_time
async def test_a_watch_survives_a_short_partition_without_a_gap() -> None:
    store = MemoryStore()
    client = MemoryCoordination(store, silence_ms=5000)
    watch = client.watch("", store.revision + 1)
    witness = MemoryCoordination(store).watch("", store.revision + 1)
    await anext(watch)
    await anext(witness)
    client.disconnect()
    store.commit([], [Put("k", b"")], [])
    quiet = asyncio.ensure_future(anext(watch))
    # Another client hears of it, and then a sign of life.
    assert [len((await anext(witness)).changes) for _ in range(2)] == [1, 0]
    await witness.aclose()
    assert not quiet.done()
    client.reconnect()
    assert [change.key for change in (await quiet).changes] == ["k"]
    await watch.aclose()
