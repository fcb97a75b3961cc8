"""The mirror: complete, in order, and neither a gap nor a duplicate through every kind of interruption."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.adapters.backoff import Backoff
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination, MemoryStore
from supervisor.adapters.etcd.mirror import Mirror, MirrorUpdate
from supervisor.contract.boundaries import Coordination, Delete, KeyDeleted, KeyValue, Put
from supervisor.contract.errors import CoordinationUnreachable
from tests.adapters.conftest import SILENCE_MS, Backend, etcd_client
from tests.support.etcd_server import EtcdServer
from tests.support.sinks import ListSink


class Follower:
    """A mirror, the updates that it delivered, and a copy that was built from those alone."""

    def __init__(self, client: Coordination, prefix: str) -> None:
        self.updates: list[MirrorUpdate] = []
        self.copy: dict[str, KeyValue] = {}
        self.arrived = asyncio.Event()
        self.sink = ListSink()
        self.clock = BootClock()
        self.mirror = Mirror(client, prefix, self.take, self.clock, self.sink)

    def take(self, update: MirrorUpdate) -> None:
        self.updates.append(update)
        for change in update.changes:
            if isinstance(change, KeyDeleted):
                del self.copy[change.key]
            else:
                self.copy[change.key] = change
        self.arrived.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(15):
            while not condition():
                self.arrived.clear()
                await self.arrived.wait()

    async def becomes(self, condition: Callable[[], bool]) -> None:
        """Wait for what no update tells of."""
        deadline_ms = self.clock.now_ms() + 15_000
        while not condition():
            assert self.clock.now_ms() < deadline_ms
            await asyncio.sleep(0.01)

    def silence_ms(self) -> int:
        """The time since the last sign of life of etcd."""
        assert self.mirror.last_alive_ms is not None
        return self.clock.now_ms() - self.mirror.last_alive_ms

    def has_lost_its_watch(self) -> bool:
        return any(event == "a watch of etcd broke; starting another" for _, event, _ in self.sink.lines)

    def value(self, key: str) -> bytes | None:
        entry = self.mirror.entries.get(key)
        return entry.value if entry else None


@contextlib.asynccontextmanager
async def following(client: Coordination, prefix: str = "n/") -> AsyncIterator[Follower]:
    follower = Follower(client, prefix)
    running = asyncio.create_task(follower.mirror.run())
    try:
        await follower.until(lambda: bool(follower.updates))
        yield follower
    finally:
        running.cancel()
        await asyncio.wait([running])
        if not running.cancelled():
            running.result()


async def put(client: Coordination, key: str, value: bytes = b"") -> int:
    return (await client.txn([], [Put(key, value)])).revision


async def put_again(client: Coordination, key: str, value: bytes) -> int:
    """Write after an outage; what comes too soon is tried again."""
    async with asyncio.timeout(15):
        while True:
            with contextlib.suppress(CoordinationUnreachable):
                return await put(client, key, value)


async def test_what_is_there_comes_first_then_every_change(backend: Backend) -> None:
    client = backend.client()
    await put(client, "n/old", b"1")
    await put(client, "other", b"1")
    async with following(backend.client()) as follower:
        assert follower.updates[0].relisted
        assert follower.value("n/old") == b"1"
        await put(client, "n/new", b"2")
        await client.txn([], [Delete("n/old")])
        await follower.until(lambda: follower.value("n/old") is None)
        assert dict(follower.mirror.entries) == follower.copy
        assert [entry.value for entry in follower.copy.values()] == [b"2"]
        assert not any(update.relisted for update in follower.updates[1:])


async def test_an_empty_prefix_is_delivered_too(backend: Backend) -> None:
    async with following(backend.client()) as follower:
        assert [(update.changes, update.relisted) for update in follower.updates] == [((), True)]


async def test_signs_of_life_are_dated(backend: Backend) -> None:
    async with following(backend.client(hasty=True)) as follower:
        first = follower.mirror.last_alive_ms
        assert first is not None
        await follower.becomes(lambda: (follower.mirror.last_alive_ms or 0) > first)
        with backend.frozen():
            await follower.becomes(lambda: follower.silence_ms() > 2 * SILENCE_MS)


async def test_it_goes_on_after_an_outage_that_is_longer_than_its_patience(backend: Backend) -> None:
    client = backend.client()
    async with following(backend.client(hasty=True)) as follower:
        with backend.frozen():
            await follower.becomes(follower.has_lost_its_watch)
        revision = await put_again(client, "n/after", b"3")
        await follower.until(lambda: follower.mirror.revision == revision)
        assert follower.value("n/after") == b"3"
        assert not any(update.relisted for update in follower.updates[1:])


async def test_an_outage_is_two_log_lines_however_often_it_is_tried_again() -> None:
    store, tries = MemoryStore(), []

    def on_call(name: str) -> None:
        tries.append(name)
        if len(tries) < 4:
            raise CoordinationUnreachable("no etcd member answers")

    async with following(MemoryCoordination(store, fault=on_call)) as follower:
        await follower.becomes(lambda: len(follower.sink.lines) > 1)
        assert len(tries) >= 4
        assert [(level, event) for level, event, _ in follower.sink.lines] == [
            ("warning", "a watch of etcd broke; starting another"),
            ("info", "etcd is watched again"),
        ]


async def test_it_resumes_without_listing_when_etcd_restarts_on_its_data(etcd_server: EtcdServer) -> None:
    writer = etcd_client(etcd_server.endpoint, cluster="mirror-restart")
    reader = etcd_client(etcd_server.endpoint, cluster="mirror-restart")
    async with following(reader) as follower:
        await put(writer, "n/a", b"before")
        await follower.until(lambda: follower.value("n/a") == b"before")
        etcd_server.restart()
        await put_again(writer, "n/a", b"after")
        await follower.until(lambda: follower.value("n/a") == b"after")
        assert not any(update.relisted for update in follower.updates[1:])
    await writer.close()
    await reader.close()


async def test_after_a_compaction_while_away_it_lists_and_hands_out_the_difference() -> None:
    store = MemoryStore()
    writer = MemoryCoordination(store)
    reader = MemoryCoordination(store, rpc_deadline_ms=1000, silence_ms=1000)
    for key in ("n/same", "n/changed", "n/gone", "n/recreated"):
        await put(writer, key, b"1")
    async with following(reader) as follower:
        reader.disconnect()
        store.break_watches()
        await put(writer, "n/changed", b"2")
        await writer.txn([], [Delete("n/gone"), Delete("n/recreated")])
        await put(writer, "n/recreated", b"1")
        last = await put(writer, "n/new", b"1")
        store.compact(last)
        reader.reconnect()
        await follower.until(lambda: len(follower.updates) == 2)
        update = follower.updates[1]
        assert update.relisted
        assert update.revision == last
        assert [change.key for change in update.changes] == ["n/gone", "n/changed", "n/recreated", "n/new"]
        assert follower.copy == dict(follower.mirror.entries)
        await put(writer, "n/same", b"9")
        await follower.until(lambda: follower.value("n/same") == b"9")


async def test_it_lists_without_a_second_wait_what_was_compacted_while_it_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[None] = []
    wait = Backoff.wait

    async def counted(self: Backoff) -> None:
        waits.append(None)
        await wait(self)

    monkeypatch.setattr(Backoff, "wait", counted)
    store = MemoryStore()
    writer = MemoryCoordination(store)
    async with following(MemoryCoordination(store)) as follower:
        await put(writer, "n/old")
        await follower.until(lambda: len(follower.updates) == 2)
        store.break_watches()
        await put(writer, "elsewhere")
        store.compact(await put(writer, "n/new", b"1"))
        await follower.until(lambda: follower.value("n/new") == b"1")
        assert follower.updates[2].relisted
        assert len(waits) == 1


async def test_after_etcd_lost_data_it_shows_what_etcd_has() -> None:
    store = MemoryStore()
    client = MemoryCoordination(store)
    for index in range(5):
        await put(client, f"n/{index}", b"1")
    async with following(client) as follower:
        backup = MemoryStore()
        await put(MemoryCoordination(backup), "n/0", b"restored")
        client._store = backup
        store.break_watches()
        await follower.until(lambda: list(follower.copy) == ["n/0"])
        assert follower.value("n/0") == b"restored"


async def test_an_etcd_that_was_begun_anew_is_told_from_the_one_before_though_it_has_come_further() -> None:
    """A watch would go on from the old one's revision, and never show what the new one has from before."""
    store = MemoryStore()
    client = MemoryCoordination(store, silence_ms=SILENCE_MS)
    await put(client, "n/old", b"1")
    async with following(client) as follower:
        store.lose()
        for index in range(5):
            await put(client, f"n/{index}", b"1")
        await follower.until(lambda: sorted(follower.copy) == [f"n/{index}" for index in range(5)])
        assert [(update.relisted, update.forked) for update in follower.updates] == [
            (True, False),
            (True, True),
        ]


class WhileLooking(MemoryCoordination):
    """Something happens while it is asked what was."""

    meanwhile: Callable[[], None]

    async def get_at(self, key: str, revision: int) -> KeyValue | None:
        self.meanwhile()
        return await super().get_at(key, revision)


async def test_who_doubts_it_while_it_looks_back_is_not_told_twice() -> None:
    """The simulator: an agent whose life was over for that took the next etcd for another one, too."""
    store = MemoryStore()
    client = WhileLooking(store, silence_ms=SILENCE_MS)
    await put(client, "n/old", b"1")
    async with following(client) as follower:
        client.meanwhile = follower.mirror.doubt
        store.lose()
        await put(client, "n/new", b"1")
        await follower.until(lambda: list(follower.copy) == ["n/new"])
        assert not any(update.forked for update in follower.updates)


async def test_in_doubt_it_lists_again() -> None:
    store = MemoryStore()
    client = MemoryCoordination(store)
    async with following(client) as follower:
        follower.mirror.doubt()
        assert follower.mirror.revision is None
        await follower.until(lambda: len(follower.updates) == 2)
        assert (follower.updates[1].relisted, follower.updates[1].forked) == (True, False)


Action = tuple[str, str]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "delete", "break", "compact", "away", "back", "down", "up", "settle"]),
        st.sampled_from(["n/a", "n/b", "n/c", "m/x"]),
    ),
    max_size=40,
)


async def replay(actions: list[Action]) -> None:
    """Apply the actions; the mirror must end equal to the store, and its updates must add up to that."""
    store = MemoryStore()
    writer = MemoryCoordination(store)
    reader = MemoryCoordination(store, rpc_deadline_ms=20, silence_ms=1000)
    async with following(reader) as follower:
        for number, (action, key) in enumerate(actions):
            match action:
                case "put":
                    store.commit([], [Put(key, b"%d" % number)], [])
                case "delete":
                    store.commit([], [Delete(key)], [])
                case "break":
                    store.break_watches()
                case "compact":
                    store.compact(store.revision)
                case "away":
                    reader.disconnect()
                case "back":
                    reader.reconnect()
                case "down":
                    store.down()
                case "up":
                    store.up()
                case _:
                    await asyncio.sleep(0.002)
        reader.reconnect()
        store.up()
        store.commit([], [Put("n/last", b"")], [])
        await follower.until(lambda: follower.value("n/last") == b"")
        assert dict(follower.mirror.entries) == {entry.key: entry for entry in store.select("n/")}
        assert follower.copy == dict(follower.mirror.entries)
        revisions = [
            change.mod_revision
            for update in follower.updates
            if not update.relisted
            for change in update.changes
        ]
        assert revisions == sorted(set(revisions)), "a change came twice or out of order"
        ends = [update.revision for update in follower.updates]
        assert ends == sorted(ends)
    await writer.close()
    await reader.close()


@settings(max_examples=60, deadline=None)
@given(ACTIONS)
def test_no_gap_and_no_duplicate_through_any_history(actions: list[Action]) -> None:
    asyncio.run(replay(actions))
