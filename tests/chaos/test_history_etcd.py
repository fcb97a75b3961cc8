"""The recording of etcd, against real ones: nothing is missing, and its log tells what was compared."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chaos.history.etcd_client import EtcdAccess
from chaos.history.etcd_recorder import EtcdRecorder
from chaos.history.formats import ETCD, Compared, EtcdLine, Transaction
from chaos.history.history import Incomplete, load
from chaos.history.lines import append, read
from chaos.history.past import State, moments
from chaos.history.wal import LogCut, transactions
from chaos.promises import check_history
from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.contract.boundaries import Absent, CreatedAt, Delete, DeletePrefix, ModifiedAt, Op, Put
from tests.support.etcd_server import EtcdCluster, EtcdServer, etcd_binaries

CATCH_UP_S = 60.0
CLUSTER = "recorded"
PREFIX = f"/tfsup/{CLUSTER}/"


def access_to(*servers: EtcdServer) -> EtcdAccess:
    endpoints = tuple(server.endpoint.removeprefix("unix:").removeprefix("http://") for server in servers)
    return EtcdAccess(endpoints, CLUSTER, tuple(server.directory / "data" for server in servers))


@asynccontextmanager
async def client_of(*servers: EtcdServer) -> AsyncIterator[EtcdCoordination]:
    client = EtcdCoordination(
        [server.endpoint for server in servers], CLUSTER, rpc_deadline_ms=10_000, silence_ms=10_000
    )
    try:
        yield client
    finally:
        await client.close()


async def write(client: EtcdCoordination, *ops: Op) -> int:
    done = await client.txn([], list(ops))
    assert done.succeeded
    return done.revision


def whole(directory: Path) -> list[str]:
    """The contradictions within a recording."""
    return [each.text for each in check_history(load(directory), ["histories are whole"])]


def keys_at_the_end(directory: Path) -> dict[str, str]:
    state = State()
    for moment in moments(read(EtcdLine, directory / ETCD)):
        state.apply(moment)
    return {key: held.value for key, held in state.held.items()}


@pytest.mark.parametrize("binary", etcd_binaries().values(), ids=etcd_binaries())
async def test_watch_and_log_of_a_real_etcd_agree(binary: Path, tmp_path: Path) -> None:
    with EtcdServer(binary) as server:
        recorder = EtcdRecorder(access_to(server), tmp_path)
        recorder.start()
        async with client_of(server) as client:
            lease = await client.grant(60)
            led = await client.txn([Absent("leader")], [Put("leader", b"{}", lease)])
            token = CreatedAt("leader", led.revision)
            first = await client.txn(
                [token], [Put("jobs/a", b"1"), Put("jobs/b", b"1"), Put("bulk/code/a", b"x")]
            )
            await client.txn(
                [token, ModifiedAt("jobs/a", first.revision)], [Put("jobs/a", b"2"), Delete("none")]
            )
            assert not (await client.txn([CreatedAt("leader", 99)], [Put("never", b"1")])).succeeded
            await client.txn([token], [DeletePrefix("jobs/"), Put("last", b"1")])
            await client.revoke(lease)
            await write(client, Put("unfenced", b"1"))
            for _ in range(2):
                await client.grant(1)  # so that what is before is known to be agreed on
        assert recorder.stop(CATCH_UP_S)
        assert not recorder.cut
        log = transactions(server.directory / "data", PREFIX)
    append(tmp_path / "transactions.jsonl", log)
    assert keys_at_the_end(tmp_path) == {"last": "1", "unfenced": "1"}
    assert whole(tmp_path) == []
    compared = (Compared("leader", "create", "=", led.revision),)
    assert Transaction(first.revision, compared, ("jobs/a", "jobs/b"), ()) in log
    assert [each.deletes for each in log if each.by_lease] == [("leader",)]
    assert [each.compares for each in log if each.puts == ("unfenced",)] == [()]
    assert not any("never" in each.puts for each in log)


async def test_what_changes_while_a_member_is_frozen_is_not_missed(tmp_path: Path) -> None:
    """A watch at a frozen member is silent and does not end."""
    with EtcdCluster() as cluster:
        frozen, *others = sorted(cluster.members, key=EtcdServer.is_leader)
        recorder = EtcdRecorder(access_to(frozen, *others), tmp_path)
        recorder.start()
        async with client_of(*others) as client:
            await write(client, Put("before", b"1"))
            with frozen.frozen():
                await write(client, Put("meanwhile", b"1"))
                assert recorder.stop(CATCH_UP_S)
    assert keys_at_the_end(tmp_path) == {"before": "1", "meanwhile": "1"}
    assert whole(tmp_path) == []
    assert [line.after_ms < line.at_ms for line in read(EtcdLine, tmp_path / ETCD)] == [True, True]


async def test_a_restart_of_etcd_leaves_no_gap(tmp_path: Path) -> None:
    with EtcdServer() as server:
        recorder = EtcdRecorder(access_to(server), tmp_path)
        recorder.start()
        for number in range(3):
            async with client_of(server) as client:
                await write(client, Put("key", str(number).encode()), Put(f"key{number}", b""))
            server.restart()
        assert recorder.stop(CATCH_UP_S)
    assert sorted(keys_at_the_end(tmp_path)) == ["key", "key0", "key1", "key2"]
    assert whole(tmp_path) == []


async def test_what_was_compacted_before_is_taken_as_it_is_and_later_makes_a_hole(tmp_path: Path) -> None:
    with EtcdServer() as server:
        async with client_of(server) as client:
            await write(client, Put("old", b"1"), Put("gone", b"1"))
            server.compact(await write(client, Put("old", b"2"), Delete("gone")))
            recorder = EtcdRecorder(access_to(server), tmp_path)
            recorder.start()
            await write(client, Put("old", b"3"))
            assert recorder.stop(CATCH_UP_S)
    assert not recorder.cut
    assert keys_at_the_end(tmp_path) == {"old": "3"}
    assert whole(tmp_path) == []
    append(tmp_path / ETCD, [EtcdLine("cut", 9)])
    with pytest.raises(Incomplete):
        load(tmp_path)


def test_a_log_without_its_beginning_is_refused(tmp_path: Path) -> None:
    with EtcdServer() as server:
        wal = server.directory / "data" / "member" / "wal"
        (first,) = wal.glob("*.wal")
        raw = first.read_bytes()
    (tmp_path / "member" / "wal").mkdir(parents=True)
    copy = tmp_path / "member" / "wal" / first.name
    copy.write_bytes(raw)
    transactions(tmp_path, PREFIX)
    at, frames = 0, 0
    while frames < 4:  # the first entries are of the member itself; they go
        length = int.from_bytes(raw[at : at + 8], "little")
        at += 8 + (length & ~(0xFF << 56)) + ((length >> 56) & 7 if length >> 63 else 0)
        frames += 1
    copy.write_bytes(raw[at:])
    with pytest.raises(LogCut):
        transactions(tmp_path, PREFIX)
