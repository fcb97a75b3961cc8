"""The contract of `Coordination`, against the in-memory store and real etcd of every release here."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from supervisor.contract.boundaries import (
    Absent,
    Coordination,
    CreatedAt,
    Delete,
    DeletePrefix,
    Get,
    GetPrefix,
    KeyDeleted,
    KeyValue,
    ModifiedAt,
    Op,
    Put,
    WatchBatch,
)
from supervisor.contract.errors import Compacted, CoordinationFull, CoordinationUnreachable, NotFound
from tests.adapters.conftest import RPC_DEADLINE_MS, SILENCE_MS, Backend
from tests.support.steady import on_a_steady_machine

Change = KeyValue | KeyDeleted


async def put(client: Coordination, key: str, value: bytes = b"v", lease_id: int = 0) -> int:
    return (await client.txn([], [Put(key, value, lease_id)])).revision


async def next_changes(watch: AsyncGenerator[WatchBatch, None], count: int = 1) -> list[Change]:
    """At least `count` changes; signs of life are passed over."""
    found: list[Change] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += (await anext(watch)).changes
    return found


async def kept_alive(client: Coordination, lease: int) -> bool:
    """After an outage; what comes too soon is tried again."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(CoordinationUnreachable):
                return await client.keep_alive(lease)


class TestReads:
    async def test_an_absent_key_is_none(self, backend: Backend) -> None:
        assert await backend.client().get("nodes/a") is None

    async def test_a_key_has_its_value_and_revisions(self, backend: Backend) -> None:
        client = backend.client()
        created = await put(client, "nodes/a", b"1")
        modified = await put(client, "nodes/a", b"\x00\xff")
        assert modified > created
        assert await client.get("nodes/a") == KeyValue("nodes/a", b"\x00\xff", created, modified)

    async def test_a_list_is_sorted_by_bytes_and_holds_only_the_prefix(self, backend: Backend) -> None:
        client = backend.client()
        revisions = [await put(client, key) for key in ("n/b", "n/a", "n0", "m/z", "n/é", "n/Z", "n/")]
        listing = await client.list("n/")
        assert [entry.key for entry in listing.entries] == ["n/", "n/Z", "n/a", "n/b", "n/é"]
        assert listing.revision >= revisions[-1]

    async def test_the_empty_prefix_is_the_whole_cluster(self, backend: Backend) -> None:
        client = backend.client()
        await put(client, "a")
        await put(client, "z/z")
        assert [entry.key for entry in (await client.list("")).entries] == ["a", "z/z"]

    async def test_large_keys_are_under_no_prefix_but_their_own(self, backend: Backend) -> None:
        client = backend.client()
        watch = client.watch("", (await client.list("")).revision + 1)
        async with aclosing(watch):
            await anext(watch)
            await client.txn([], [Put("a", b"1"), Put("bulk/code/x/0", b"2"), Put("bulk/code/y/0", b"3")])
            await put(client, "b")
            assert [change.key for change in await next_changes(watch, 2)] == ["a", "b"]
        assert [entry.key for entry in (await client.list("")).entries] == ["a", "b"]
        found = (await client.list("bulk/code/x/")).entries
        assert [(entry.key, entry.value) for entry in found] == [("bulk/code/x/0", b"2")]
        got = await client.get("bulk/code/y/0")
        assert got is not None
        assert got.value == b"3"
        compare = CreatedAt("bulk/code/y/0", got.create_revision)
        assert (await client.txn([compare], [DeletePrefix("bulk/code/x/"), Delete("a")])).succeeded
        assert await client.get("bulk/code/x/0") is None
        await client.txn([], [DeletePrefix("b")])
        assert await client.get("bulk/code/y/0") is not None

    async def test_a_large_list_arrives_whole(self, backend: Backend) -> None:
        client = backend.client()
        value = bytes(500_000)
        for index in range(20):
            await put(client, f"big/{index:02}", value)
        entries = (await client.list("big/")).entries
        assert len(entries) == 20
        assert all(entry.value == value for entry in entries)

    async def test_a_key_can_be_read_as_it_was(self, backend: Backend) -> None:
        client = backend.client()
        before = await put(client, "k", b"1")
        after = await put(client, "k", b"2")
        gone = (await client.txn([], [Delete("k")])).revision
        assert await client.get_at("k", before - 1) is None
        assert await client.get_at("k", before) == KeyValue("k", b"1", before, before)
        assert await client.get_at("k", after) == KeyValue("k", b"2", before, after)
        assert await client.get_at("k", gone) is None
        assert await client.get_at("k", gone + 1000) is None, "it has not come so far"
        await put(client, "k", b"3")
        assert await client.get_at("k", after) == KeyValue("k", b"2", before, after)
        backend.compact(gone)
        with pytest.raises(Compacted):
            await client.get_at("k", before)


class TestTransactions:
    @pytest.mark.parametrize("exists", [True, False])
    async def test_absent(self, backend: Backend, exists: bool) -> None:
        client = backend.client()
        if exists:
            await put(client, "k")
        assert (await client.txn([Absent("k")], [])).succeeded is not exists

    async def test_created_at_survives_rewrites_and_not_recreation(self, backend: Backend) -> None:
        client = backend.client()
        created = await put(client, "k")
        await put(client, "k", b"again")
        assert (await client.txn([CreatedAt("k", created)], [])).succeeded
        await client.txn([], [Delete("k")])
        assert not (await client.txn([CreatedAt("k", created)], [])).succeeded
        await put(client, "k")
        assert not (await client.txn([CreatedAt("k", created)], [])).succeeded

    async def test_modified_at_is_the_last_write_only(self, backend: Backend) -> None:
        client = backend.client()
        first = await put(client, "k")
        second = await put(client, "k")
        assert not (await client.txn([ModifiedAt("k", first)], [])).succeeded
        assert (await client.txn([ModifiedAt("k", second)], [])).succeeded

    async def test_all_compares_must_hold_and_otherwise_runs_instead(self, backend: Backend) -> None:
        client = backend.client()
        await put(client, "there")
        result = await client.txn([Absent("no"), Absent("there")], [Put("then", b"")], [Put("else", b"")])
        assert not result.succeeded
        assert [entry.key for entry in (await client.list("")).entries] == ["else", "there"]

    async def test_all_writes_of_one_transaction_share_a_revision(self, backend: Backend) -> None:
        client = backend.client()
        for key in ("old/1", "old/2", "single"):
            await put(client, key)
        before = (await client.list("")).revision
        ops: list[Op] = [Put("new/1", b"1"), Put("new/2", b"2"), DeletePrefix("old/"), Delete("single")]
        result = await client.txn([], ops)
        assert result.revision == before + 1
        entries = (await client.list("")).entries
        assert [(entry.key, entry.mod_revision) for entry in entries] == [
            ("new/1", result.revision),
            ("new/2", result.revision),
        ]

    async def test_reads_come_in_order_and_see_writes_before_them(self, backend: Backend) -> None:
        client = backend.client()
        first = await put(client, "a/1", b"x")
        result = await client.txn(
            [], [Get("a/2"), GetPrefix("a/"), Put("a/2", b"y"), Get("a/2"), GetPrefix("a/"), Get("none")]
        )
        one = KeyValue("a/1", b"x", first, first)
        two = KeyValue("a/2", b"y", result.revision, result.revision)
        assert result.reads == ((), (one,), (two,), (one, two), ())

    async def test_reads_of_the_branch_that_ran(self, backend: Backend) -> None:
        client = backend.client()
        await put(client, "k", b"1")
        result = await client.txn([Absent("k")], [Get("a"), Get("b")], [Get("k")])
        assert [[entry.value for entry in read] for read in result.reads] == [[b"1"]]

    async def test_a_transaction_that_changes_nothing_makes_no_revision(self, backend: Backend) -> None:
        client = backend.client()
        before = await put(client, "k")
        assert (await client.txn([], [Get("k"), Delete("no"), DeletePrefix("no/")])).revision == before

    async def test_of_competing_transactions_one_wins(self, backend: Backend) -> None:
        clients = [backend.client() for _ in range(4)]
        results = await asyncio.gather(
            *(client.txn([Absent("lock")], [Put("lock", b"%d" % i)]) for i, client in enumerate(clients))
        )
        winners = [index for index, result in enumerate(results) if result.succeeded]
        assert len(winners) == 1
        holder = await clients[0].get("lock")
        assert holder is not None
        assert holder.value == b"%d" % winners[0]

    async def test_increments_by_many_clients_are_not_lost(self, backend: Backend) -> None:
        clients = [backend.client() for _ in range(3)]
        await put(clients[0], "n", b"0")

        async def increment(client: Coordination) -> None:
            for _ in range(10):
                while True:
                    entry = await client.get("n")
                    assert entry is not None
                    value = b"%d" % (int(entry.value) + 1)
                    if (await client.txn([ModifiedAt("n", entry.mod_revision)], [Put("n", value)])).succeeded:
                        break

        await asyncio.gather(*(increment(client) for client in clients))
        total = await clients[0].get("n")
        assert total is not None
        assert total.value == b"30"

    async def test_128_operations_are_the_limit(self, backend: Backend) -> None:
        client = backend.client()
        ops = [Put(f"k/{index:03}", b"") for index in range(129)]
        assert (await client.txn([Absent(op.key) for op in ops[:128]], ops[:128])).succeeded
        with pytest.raises(AssertionError, match="129 operations in then"):
            await client.txn([], ops)
        with pytest.raises(AssertionError, match="129 operations in compares"):
            await client.txn([Absent(op.key) for op in ops], [])

    @pytest.mark.parametrize(
        "ops",
        [[Put("k", b""), Put("k", b"")], [Put("k/1", b""), DeletePrefix("k/")], [Put("k", b""), Delete("k")]],
    )
    async def test_a_key_is_written_once(self, backend: Backend, ops: list[Op]) -> None:
        with pytest.raises(AssertionError, match="in one transaction"):
            await backend.client().txn([], ops)

    async def test_a_request_that_is_too_large_is_refused(self, backend: Backend) -> None:
        client = backend.client()
        with pytest.raises(CoordinationFull):
            await put(client, "huge", bytes(1_600_000))
        assert await client.get("huge") is None


class TestLeases:
    async def test_keys_go_with_their_revoked_lease_in_one_revision(self, backend: Backend) -> None:
        client = backend.client()
        lease = await client.grant(60)
        await put(client, "a", lease_id=lease)
        last = await put(client, "b", lease_id=lease)
        entry = await client.get("b")
        assert entry is not None
        assert entry.lease_id == lease
        await put(client, "stays")
        watch = client.watch("", last + 2)
        await client.revoke(lease)
        assert await next_changes(watch, 2) == [KeyDeleted("a", last + 2), KeyDeleted("b", last + 2)]
        await watch.aclose()
        await client.revoke(lease)

    async def test_a_rewrite_detaches_a_key_from_its_lease(self, backend: Backend) -> None:
        client = backend.client()
        lease = await client.grant(60)
        await put(client, "k", lease_id=lease)
        await put(client, "k")
        await client.revoke(lease)
        assert await client.get("k") is not None

    @on_a_steady_machine
    async def test_a_lease_expires_unless_it_is_kept_alive(self, backend: Backend) -> None:
        client = backend.client()
        kept, left = await client.grant(2), await client.grant(2)
        await put(client, "kept", lease_id=kept)
        revision = await put(client, "left", lease_id=left)
        watch = client.watch("left", revision + 1)
        started = time.monotonic()

        leaving = asyncio.create_task(next_changes(watch))
        while not leaving.done():
            assert await client.keep_alive(kept)
            await asyncio.wait([leaving], timeout=0.25)
        (gone,) = await leaving
        assert isinstance(gone, KeyDeleted)
        assert time.monotonic() - started > 1.9
        assert await client.get("kept") is not None
        assert not await client.keep_alive(left)
        await watch.aclose()
        await client.revoke(kept)

    async def test_a_lease_that_never_was_is_not_alive(self, backend: Backend) -> None:
        assert not await backend.client().keep_alive(987_654_321)

    async def test_a_put_under_a_lease_that_is_gone_changes_nothing(self, backend: Backend) -> None:
        client = backend.client()
        lease = await client.grant(60)
        await client.revoke(lease)
        with pytest.raises(NotFound):
            await client.txn([], [Put("first", b""), Put("second", b"", lease)])
        assert (await client.list("")).entries == ()


class TestWatches:
    async def test_a_watch_from_the_past_has_no_gap_and_keeps_order(self, backend: Backend) -> None:
        client = backend.client()
        start = await put(client, "w/0")
        for index in range(1, 30):
            await put(client, f"w/{index % 7}", b"%d" % index)
            await put(client, "elsewhere")
        watch = client.watch("w/", start + 1)
        late = asyncio.create_task(put(client, "w/late"))
        changes = await next_changes(watch, 30)
        await late
        assert [change.key for change in changes] == [f"w/{i % 7}" for i in range(1, 30)] + ["w/late"]
        revisions = [change.mod_revision for change in changes]
        assert revisions == sorted(set(revisions))
        await watch.aclose()

    async def test_a_batch_never_splits_a_revision(self, backend: Backend) -> None:
        client = backend.client()
        start = await put(client, "x")
        for round_number in range(20):
            await client.txn([], [Put(f"w/{index}", b"%d" % round_number) for index in range(10)])
        watch = client.watch("w/", start + 1)
        seen = 0
        while seen < 200:
            batch = await anext(watch)
            assert len(batch.changes) % 10 == 0
            if batch.changes:
                assert batch.revision == batch.changes[-1].mod_revision
            seen += len(batch.changes)
        assert seen == 200
        await watch.aclose()

    async def test_a_large_revision_arrives_whole(self, backend: Backend) -> None:
        client = backend.client()
        start = await put(client, "x")
        for _ in range(6):
            await client.txn([], [Put(f"big/{index}", bytes(300_000)) for index in range(5)])
        watch = client.watch("big/", start + 1)
        changes = await next_changes(watch, 30)
        assert len(changes) == 30
        await watch.aclose()

    async def test_deletes_are_seen(self, backend: Backend) -> None:
        client = backend.client()
        start = await put(client, "w/a")
        await put(client, "w/b")
        result = await client.txn([], [DeletePrefix("w/")])
        watch = client.watch("w/", start + 2)
        deleted = await next_changes(watch, 2)
        assert deleted == [KeyDeleted("w/a", result.revision), KeyDeleted("w/b", result.revision)]
        await watch.aclose()

    async def test_a_change_arrives_at_once(self, backend: Backend) -> None:
        reader, writer = backend.client(), backend.client()
        start = await put(writer, "w/a")
        watch = reader.watch("w/", start + 1)
        for _ in range(2):  # opened, then up to date
            await anext(watch)
        waits: list[float] = []
        for value in (b"%d" % number for number in range(20)):
            waiting = asyncio.create_task(next_changes(watch))
            sent = time.monotonic()
            await put(writer, "w/a", value)
            (change,) = await waiting
            assert isinstance(change, KeyValue)
            assert change.value == value
            waits.append(time.monotonic() - sent)
        # Some of them, at least, on a busy machine: the next sign of life would come later.
        assert min(waits) < 0.1
        await watch.aclose()

    async def test_a_quiet_watch_shows_signs_of_life(self, backend: Backend) -> None:
        client = backend.client()
        start = await put(client, "w/a")
        watch = client.watch("w/", start + 1)
        for _ in range(3):
            async with asyncio.timeout(20):
                assert await anext(watch) == WatchBatch(start)
        await watch.aclose()

    async def test_a_watch_from_a_compacted_revision_says_so(self, backend: Backend) -> None:
        client = backend.client()
        start = await put(client, "w/a", b"1")
        *_, last = [await put(client, "w/a", value) for value in (b"2", b"3", b"4")]
        backend.compact(last)
        watch = client.watch("w/", start + 1)
        with pytest.raises(Compacted) as raised:
            await next_changes(watch)
        assert raised.value.revision == last

    async def test_a_watch_from_beyond_what_the_store_has_says_so(self, backend: Backend) -> None:
        """A restored backup has lost revisions; to wait for them would be to wait in the wrong place."""
        client = backend.client()
        last = await put(client, "w/a")
        with pytest.raises(Compacted):
            await next_changes(client.watch("w/", last + 3))

    async def test_a_watch_that_is_up_to_date_survives_compaction(self, backend: Backend) -> None:
        client = backend.client()
        start = await put(client, "w/a")
        watch = client.watch("w/", start + 1)
        for _ in range(2):  # opened, then up to date
            await anext(watch)
        *_, last = [await put(client, "other") for _ in range(3)]
        backend.compact(last)
        await put(client, "w/a", b"after")
        (change,) = await next_changes(watch)
        assert isinstance(change, KeyValue)
        assert change.value == b"after"
        await watch.aclose()

    async def test_a_delete_at_the_compacted_revision_is_not_lost(self, backend: Backend) -> None:
        """etcd #18089: a watch from exactly the compacted revision missed the delete made there."""
        client = backend.client()
        for value in (b"2", b"3", b"4"):
            await put(client, "w/k", value)
        deleted = (await client.txn([], [Delete("w/k")])).revision
        await put(client, "w/k", b"6")
        backend.compact(deleted)
        watch = client.watch("w/", deleted)
        with pytest.raises(Compacted):
            await next_changes(watch)


class TestOutages:
    @on_a_steady_machine
    async def test_every_call_has_a_deadline(self, backend: Backend) -> None:
        client = backend.client(hasty=True)
        lease = await client.grant(60)
        with backend.frozen():
            started = time.monotonic()
            outcomes = await asyncio.gather(
                client.get("k"),
                client.list(""),
                client.txn([], [Put("k", b"")]),
                client.grant(5),
                client.keep_alive(lease),
                client.revoke(lease),
                return_exceptions=True,
            )
            assert time.monotonic() - started < 5 * RPC_DEADLINE_MS / 1000
        assert [type(outcome) for outcome in outcomes] == [CoordinationUnreachable] * 6

    @on_a_steady_machine
    async def test_calls_work_again_after_a_freeze(self, backend: Backend) -> None:
        client = backend.client(hasty=True)
        await put(client, "k")
        with backend.frozen(), pytest.raises(CoordinationUnreachable):
            await client.get("k")
        assert await client.get("k") is not None

    @on_a_steady_machine
    async def test_a_silent_watch_raises(self, backend: Backend) -> None:
        client = backend.client(hasty=True)
        start = await put(client, "k")
        watch = client.watch("k", start + 1)
        await anext(watch)
        with backend.frozen():
            started = time.monotonic()
            with pytest.raises(CoordinationUnreachable):
                await next_changes(watch)
            assert 0.5 < time.monotonic() - started < 5 * SILENCE_MS / 1000

    async def test_what_has_lost_its_data_begins_anew(self, backend: Backend) -> None:
        client = backend.client()
        lease = await client.grant(60)
        await put(client, "k", lease_id=lease)
        last = await put(client, "k", lease_id=lease)
        watch = client.watch("k", last + 1)
        await anext(watch)
        backend.lose()
        with pytest.raises((CoordinationUnreachable, Compacted)):
            await next_changes(watch)
        assert await kept_alive(client, lease) is False
        listing = await client.list("")
        assert listing.entries == ()
        assert listing.revision < last
        async with aclosing(client.watch("k", last + 1)) as later:
            with pytest.raises(Compacted):
                await anext(later)

    async def test_what_is_restored_from_a_snapshot_has_gone_back(self, backend: Backend) -> None:
        client = backend.client()
        lease = await client.grant(60)
        first = await put(client, "k", b"1", lease_id=lease)
        backend.back_up()
        await kept_alive(client, lease)
        await put(client, "k", b"2", lease_id=lease)
        last = await put(client, "later")
        watch = client.watch("k", last + 1)
        await anext(watch)
        backend.restore()
        with pytest.raises((CoordinationUnreachable, Compacted)):
            await next_changes(watch)
        assert await kept_alive(client, lease) is True
        listing = await client.list("")
        assert [(each.key, each.value, each.mod_revision) for each in listing.entries] == [("k", b"1", first)]
        assert listing.revision < last
        async with aclosing(client.watch("k", last + 1)) as later:
            with pytest.raises(Compacted):
                await anext(later)
        await client.revoke(lease)
        assert await client.get("k") is None

    @on_a_steady_machine
    async def test_closing_fails_what_is_in_flight(self, backend: Backend) -> None:
        client = backend.client(hasty=True)
        start = await put(client, "k")
        watch = client.watch("k", start + 1)
        await anext(watch)
        watching = asyncio.create_task(next_changes(watch))
        with backend.frozen():
            reading = asyncio.create_task(client.get("k"))
            await asyncio.sleep(0)
            await client.close()
            for pending in (watching, reading):
                with pytest.raises(CoordinationUnreachable):
                    await pending
        with pytest.raises(CoordinationUnreachable):
            await client.get("k")

    @on_a_steady_machine
    async def test_a_cancelled_caller_is_cancelled(self, backend: Backend) -> None:
        client = backend.client(hasty=True)
        await put(client, "k")
        with backend.frozen():
            reading = asyncio.create_task(client.get("k"))
            await asyncio.sleep(0)
            assert not reading.done()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
