"""The supervisor's loop: its end, its leadership, and an etcd that was begun anew or went back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import Fault, MemoryCoordination, MemoryStore
from supervisor.adapters.etcd.mirror import MirrorUpdate
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Compare, KeyDeleted, KeyValue, Op, Put, TxnResult
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord
from supervisor.contract.desired import ClusterRecord, Cordon, JobPhase, JobSwitch, LeaderToken
from supervisor.contract.errors import CoordinationUnreachable, Fenced, Refused, UserError
from supervisor.contract.incident import Event
from supervisor.contract.job.spec import JobIntent, JobRecord, Wanted
from supervisor.contract.observed import (
    LINK_PROTOCOL,
    Beat,
    Incarnation,
    NodeResources,
)
from supervisor.contract.timing import FAST
from supervisor.control.decide.plan import DeleteFiles, put
from supervisor.control.decide.snapshot import Snapshot
from supervisor.control.loop.apply import Applier
from supervisor.control.loop.daemon import ControlDaemon, ControlSettings
from tests.control.supervisor import Supervisor
from tests.support.builders import job_spec
from tests.support.sinks import ListSink
from tests.support.waiting import until


def leader_that_meets(error: Exception | None, store: MemoryStore | None = None) -> ControlDaemon:
    """A supervisor whose first read to confirm its leadership raises `error`."""

    def fail_reads(call: str) -> Fault | None:
        if call == "get" and error is not None:
            raise error
        return None

    return ControlDaemon(
        ControlSettings("s0", "c", "unix:/s0", 1, FAST),
        MemoryCoordination(store or MemoryStore(), fault=fail_reads),
        lambda _uri: MemoryCheckpointStore(),
        BootClock(),
        ListSink(),
        lambda: "id",
    )


async def test_an_error_while_leading_ends_the_supervisor() -> None:
    daemon = leader_that_meets(Refused("the user may not read this"))
    async with asyncio.timeout(20):
        with pytest.raises(Refused, match="may not read"):
            await daemon.run()


async def test_a_bug_while_leading_ends_the_supervisor() -> None:
    daemon = leader_that_meets(ZeroDivisionError())
    async with asyncio.timeout(20):
        with pytest.raises(ExceptionGroup) as caught:
            await daemon.run()
    assert caught.group_contains(ZeroDivisionError)


async def test_a_bug_in_the_background_ends_the_supervisor() -> None:
    daemon = leader_that_meets(None)

    async def faulty() -> None:
        raise ZeroDivisionError

    daemon._background.begin(faulty())
    async with asyncio.timeout(20):
        with pytest.raises(ExceptionGroup) as caught:
            await daemon.run()
    assert caught.group_contains(ZeroDivisionError)


async def test_a_snapshot_serves_for_a_tick_unless_etcd_holds_something_else() -> None:
    store = MemoryStore()
    daemon = leader_that_meets(None, store)

    def shown() -> Snapshot | None:
        return daemon.job_service.snapshot()

    running = asyncio.create_task(daemon.run())
    try:
        await until(lambda: shown() is not None)
        await until(lambda: shown() is shown())
        cordon = Put(keys.cordon("n0"), codec.encode(Cordon("n0", "for repair")))
        assert store.commit([], [cordon], []).succeeded
        await until(lambda: (snap := shown()) is not None and "n0" in snap.nodes)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Odd(MemoryCoordination):
    """An etcd whose client raises what nobody expects, for writes of one job's switch that `is_odd` names."""

    def __init__(self, store: MemoryStore, is_odd: Callable[[JobSwitch], bool]) -> None:
        super().__init__(store)
        self._is_odd = is_odd

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        for op in then:
            if not isinstance(op, Put) or op.key != keys.switch("digits"):
                continue
            if self._is_odd(codec.decode(JobSwitch, op.value)):
                raise ZeroDivisionError("nobody expects this")
        return await super().txn(compares, then, otherwise)


@pytest.mark.parametrize("parks", [True, False])
async def test_an_action_that_meets_an_error_parks_its_job_or_leaves_it_alone(*, parks: bool) -> None:
    store = MemoryStore()
    for name in ("digits", "letters"):
        spec = replace(job_spec(), name=name)
        ops = [
            Put(keys.job_record(name), codec.encode(JobRecord(spec, name, 0))),
            Put(keys.switch(name), codec.encode(JobSwitch(name, name, JobPhase.RUNNING, 1))),
            Put(keys.intent(name), codec.encode(JobIntent(Wanted.STOP))),
        ]
        assert store.commit([], ops, []).succeeded
    daemon = ControlDaemon(
        ControlSettings("s0", "c", "unix:/s0", 1, FAST),
        Odd(store, lambda switch: not parks or switch.phase is JobPhase.STOPPING),
        lambda _uri: MemoryCheckpointStore(),
        BootClock(),
        ListSink(),
        lambda: "id",
    )

    def switch(name: str) -> JobSwitch:
        return codec.decode(JobSwitch, store.read(keys.switch(name))[0].value)

    def is_over() -> bool:
        snap = daemon.job_service.snapshot()
        settled = (
            switch("digits").parked is not None if parks else snap is not None and "digits" in snap.aside
        )
        return settled and switch("letters").phase is JobPhase.STOPPED

    running = asyncio.create_task(daemon.run())
    try:
        await until(is_over)
        assert not running.done()
        told = [codec.decode(Event, entry.value) for entry in store.select("events/")]
        assert [each.job for each in told if each.kind == "job_parked"] == ["digits"]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class OddAt(MemoryCoordination):
    """An etcd whose client raises what nobody expects, for writes of keys that begin with `prefix`."""

    def __init__(self, store: MemoryStore, prefix: str) -> None:
        super().__init__(store)
        self._prefix = prefix

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        if any(isinstance(op, Put) and op.key.startswith(self._prefix) for op in then):
            raise ZeroDivisionError("nobody expects this")
        return await super().txn(compares, then, otherwise)


def leader_that_cannot_write(store: MemoryStore, prefix: str) -> ControlDaemon:
    return ControlDaemon(
        ControlSettings("s0", "c", "unix:/s0", 1, FAST),
        OddAt(store, prefix),
        lambda _uri: MemoryCheckpointStore(),
        BootClock(),
        ListSink(),
        lambda: "id",
    )


async def test_an_error_of_an_action_about_no_job_and_no_node_ends_the_supervisor() -> None:
    daemon = leader_that_cannot_write(MemoryStore(), keys.CLUSTER)
    async with asyncio.timeout(20):
        with pytest.raises(ExceptionGroup) as caught:
            await daemon.run()
    assert caught.group_contains(ZeroDivisionError)


async def test_an_action_about_a_node_that_meets_an_error_cordons_it_and_is_left_for_a_while() -> None:
    store = MemoryStore()
    node = Incarnation(
        "n0", "i0", "boot", FAST.d_ms, "127.0.0.1", "", 20_000, 29_999, 1, NodeResources(4, 1 << 33)
    )
    assert store.commit([], [Put(keys.node("n0"), codec.encode(node))], []).succeeded
    daemon = leader_that_cannot_write(store, "lost/")
    running = asyncio.create_task(daemon.run())

    def is_left() -> bool:
        snap = daemon.job_service.snapshot()
        return snap is not None and "n0" in snap.nodes_aside

    try:
        await until(lambda: bool(store.read(keys.cordon("n0"))))
        await until(is_left)
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("prefix", ["events/", "none/"])
async def test_a_checkpoint_that_cannot_be_deleted_ends_no_supervisor_that_is_deposed(prefix: str) -> None:
    """Its event is refused, or cannot be written at all."""

    def odd_store(_uri: str) -> MemoryCheckpointStore:
        raise KeyError("odd")

    applier = Applier(
        LeaderToken(keys.LEADER, 5), OddAt(MemoryStore(), prefix), odd_store, BootClock(), ListSink(), 1
    )
    ref = CheckpointRef(1, 1)
    record = CommitRecord("uuid", ref, None, str(ref), 1, "00000000", "n0", "i0", 0)
    key = keys.commit("digits", ref)
    await applier.delete_files(DeleteFiles("digits", key, 3, record, "memory://x"))
    assert applier.is_deleting(key)
    assert not applier.broken


async def test_records_and_keys_that_cannot_be_read_end_no_supervisor() -> None:
    """They are there when it starts, or come later; what they are about is told, all else goes on."""
    store = MemoryStore()
    before = [Put("jobs/a/b", b"{}"), Put("events/x", b"{}"), Put("nodes/n0", b"[]")]
    assert store.commit([], before, []).succeeded
    sink = ListSink()
    daemon = ControlDaemon(
        ControlSettings("s0", "c", "unix:/s0", 1, FAST),
        MemoryCoordination(store),
        lambda _uri: MemoryCheckpointStore(),
        BootClock(),
        sink,
        lambda: "id",
    )
    running = asyncio.create_task(daemon.run())

    def told() -> list[str]:
        return [codec.decode(Event, each.value).kind for each in store.select("events/0")]

    try:
        await until(lambda: "node_parked" in told())
        assert store.commit([], [Put("jobs/c", b"\xff"), Put("switches//", b"")], []).succeeded
        await until(lambda: "job_parked" in told())
        assert not running.done()
        assert told().count("node_parked") == 1
        left = {fields["key"] for _level, text, fields in sink.lines if "is set aside" in text}
        assert left == {"jobs/a/b", "events/x", "nodes/n0", "jobs/c", "switches//"}
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_of_each_life_one_beat_waits_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.control.loop.daemon.MAX_BEATS", 2)
    sink = ListSink()
    daemon = ControlDaemon(
        ControlSettings("s0", "c", "unix:/s0", 1, FAST),
        MemoryCoordination(MemoryStore()),
        lambda _uri: MemoryCheckpointStore(),
        BootClock(),
        sink,
        lambda: "id",
    )
    for number in range(1, 1001):
        for node in ("n0", "n1", "n2", "n3"):
            daemon.on_beat(Beat(LINK_PROTOCOL, node, "i", number))
    assert daemon._inbox.qsize() == 2
    assert {beat.seq for beat in daemon._beats.values()} == {1000}
    refused = [fields["node"] for level, text, fields in sink.lines if "is dropped" in text]
    assert refused == ["n2"], "it is said once a minute"


async def test_a_new_leader_decides_only_on_a_snapshot_that_shows_its_own_election() -> None:
    daemon = Supervisor().daemon()
    daemon._token = LeaderToken(keys.LEADER, 100)
    daemon._view.apply((), 99, 0)
    assert daemon.job_service.snapshot() is None
    daemon._view.apply((), 100, 0)
    assert daemon.job_service.snapshot() is not None


async def test_a_supervisor_says_what_keeps_it_from_leading_and_from_its_disk() -> None:
    daemon = Supervisor().daemon()
    assert daemon.troubles() == ()
    daemon._election._retries.failed("cannot campaign", CoordinationUnreachable("etcd is away"))
    daemon._etcd.trouble = "cannot write etcd.json: No space left on device"
    first, second = daemon.troubles()
    assert first.endswith(": it cannot campaign to lead: etcd is away")
    assert second.endswith(
        ": it cannot write to its own disk: cannot write etcd.json: No space left on device"
    )


async def test_after_its_own_freeze_a_leader_listens_afresh() -> None:
    supervisor = Supervisor()
    daemon = supervisor.daemon()
    supervisor.clock.ms += 20_000
    daemon._notice_stall()
    daemon._token = LeaderToken(keys.LEADER, 1)
    daemon._view.apply((), 1, 0)
    picture = daemon._picture()
    assert picture is not None
    assert picture.since_ms == supervisor.clock.ms


async def test_an_outage_of_etcd_begins_the_time_to_obey_anew() -> None:
    supervisor = Supervisor()
    daemon, clock = supervisor.daemon(), supervisor.clock
    daemon._mirror._last_alive_ms = began_ms = clock.ms
    for _ in range(20):
        clock.ms += FAST.d_ms // 4
        daemon._notice_stall()
    assert daemon._etcd_since_ms == clock.ms
    daemon._mirror._last_alive_ms = back_ms = clock.ms
    clock.ms += FAST.d_ms // 4
    daemon._notice_stall()
    assert daemon._etcd_since_ms == back_ms > began_ms


async def test_a_supervisor_with_another_d_does_not_lead() -> None:
    with pytest.raises(UserError, match="make them equal"):
        await fixed(ClusterRecord("c", "default", 12_000))


def cluster_record(uuid: str, revision: int) -> KeyValue:
    value = codec.encode(ClusterRecord("c", FAST.profile, FAST.d_ms, uuid=uuid))
    return KeyValue(keys.CLUSTER, value, 2, revision)


@pytest.mark.parametrize("anew", [cluster_record("c2", 3), KeyDeleted(keys.CLUSTER, 3)])
async def test_a_supervisor_of_a_cluster_that_is_lost_stops(anew: KeyValue | KeyDeleted) -> None:
    daemon = Supervisor().daemon()
    for known in (cluster_record("", 2), cluster_record("c1", 2)):
        daemon._fold([MirrorUpdate(2, (known,), relisted=True)])
    with pytest.raises(Fenced, match="begun anew"):
        daemon._fold([MirrorUpdate(3, (anew,), relisted=True)])


@pytest.mark.parametrize(("revision", "forked"), [(8, False), (10, True)])
async def test_a_supervisor_decides_nothing_on_an_etcd_that_went_back(revision: int, forked: bool) -> None:
    """A snapshot was restored beneath it: its mirror has had to list again."""
    daemon = Supervisor().daemon()
    daemon._fold([MirrorUpdate(9, (cluster_record("c1", 9),), relisted=True)])
    with pytest.raises(UserError, match="A snapshot was restored"):
        daemon._fold([MirrorUpdate(revision, (), relisted=True, forked=forked)])


async def fixed(before: ClusterRecord | None, known: str = "") -> ClusterRecord:
    """The cluster's record once a leader, which has served a cluster before, has seen to it."""
    daemon = Supervisor().daemon()
    daemon._etcd.identity.cluster = known
    etcd = daemon._coordination
    if before is not None:
        await etcd.txn([], [put(keys.CLUSTER, before)])
    elected = await etcd.txn([], [Put(keys.LEADER, b"")])
    listing = await etcd.list(keys.CLUSTER)
    daemon._view.apply(listing.entries, listing.revision, 0)
    token = LeaderToken(keys.LEADER, elected.revision)
    sink = ListSink()
    await daemon._terms.fix(Applier(token, etcd, daemon._open_store, daemon._clock, sink, 1))
    entry = await etcd.get(keys.CLUSTER)
    assert entry is not None
    return codec.decode(ClusterRecord, entry.value)


@pytest.mark.parametrize("earlier", [None, ClusterRecord("c", FAST.profile, FAST.d_ms)])
async def test_a_leader_gives_a_cluster_its_uuid(earlier: ClusterRecord | None) -> None:
    assert (await fixed(earlier)).uuid == "id"


async def test_a_cluster_keeps_its_uuid() -> None:
    record = ClusterRecord("c", FAST.profile, FAST.d_ms, uuid="c1")
    assert (await fixed(record)).uuid == "c1"
    written_by_an_earlier_release = replace(record, uuid="")
    assert (await fixed(written_by_an_earlier_release, "c1")).uuid == "c1"
