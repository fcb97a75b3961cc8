"""Verify and collect: what the leader does in a store, and what it records of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from recovery.formats.manifest import (
    MANIFEST_FILE,
)
from recovery.formats.paths import staging_path, stored_path
from recovery.mount.layout import live_path
from recovery.stores.memory import Moment
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.checkpoint import CheckpointRef, CommitState, Verify
from supervisor.contract.desired import Closing
from supervisor.contract.errors import BadCheckpoint, Conflict, NotFound, StoreUnreachable
from supervisor.contract.views.checkpoints import (
    CollectRequest,
    Finding,
    FindRequest,
    Thing,
    VerifyRequest,
)
from supervisor.control.decide.plan import put
from supervisor.control.services.jobs import JobService
from tests.control.bank import FILE, Bank, items, open_bank, views


@pytest.fixture
async def bank() -> Bank:
    return await open_bank()


async def test_what_reads_back_whole_is_verified_from_then_on(bank: Bank) -> None:
    refs = [await bank.save(1, step, verified=Verify.SIZE) for step in (10, 20)]
    found = await views(bank.checkpoints.verify(VerifyRequest("digits")))
    assert [(view.ref, view.finding, view.size) for view in found] == [
        (refs[1], Finding.GOOD, 7),
        (refs[0], Finding.GOOD, 7),
    ]
    assert {bank.record(ref).verified for ref in refs} == {Verify.READBACK}
    before = bank.world.store.revision
    await views(bank.checkpoints.verify(VerifyRequest("digits", (CheckpointRef(0, 20),))))
    assert bank.world.store.revision == before, "what is known is not written again"


@pytest.mark.parametrize("data", [b"Weights", b"weights and more", b"", None])
async def test_a_bad_one_is_quarantined_with_the_reason(bank: Bank, data: bytes | None) -> None:
    good, bad = await bank.save(1, 10), await bank.save(1, 20)
    bank.damage(bad, data)
    head = bank.world.job().head
    found = await views(bank.checkpoints.verify(VerifyRequest("digits")))
    assert [view.finding for view in found] == [Finding.BAD, Finding.GOOD]
    record = bank.record(bad)
    assert record.state is CommitState.QUARANTINED
    assert FILE in record.reason
    assert "failed verification" in record.reason
    assert bank.record(good).state is CommitState.COMMITTED
    after = bank.world.job().head
    assert head is not None
    assert after is not None
    assert after.value.serial > head.value.serial, "a flip that has chosen this base must fail"


async def test_a_damaged_manifest_is_bad(bank: Bank) -> None:
    bad = await bank.save(1, 10)
    bank.store.disk.files[f"{stored_path(bad, 'id')}/{MANIFEST_FILE}"] = b"{}"
    (found,) = await views(bank.checkpoints.verify(VerifyRequest("digits")))
    assert (found.finding, bank.record(bad).state) == (Finding.BAD, CommitState.QUARANTINED)


async def test_unreadable_is_not_bad(bank: Bank) -> None:
    ref, other = await bank.save(1, 10), await bank.save(1, 20)

    async def away(operation: str, path: str, moment: Moment) -> None:
        if operation == "crc32c" and str(other.step) in path and moment is Moment.BEFORE:
            raise StoreUnreachable("the DataNodes do not answer")

    bank.store.hook = away
    found = await views(bank.checkpoints.verify(VerifyRequest("digits")))
    assert [(view.ref, view.finding) for view in found] == [(other, Finding.UNKNOWN), (ref, Finding.GOOD)]
    assert "DataNodes" in found[0].detail
    assert bank.record(other).state is CommitState.COMMITTED


async def test_one_that_is_collected_meanwhile_is_not_called_bad(bank: Bank) -> None:
    ref = await bank.save(1, 10)
    bank.damage(ref, None)
    key = keys.commit("digits", ref)
    bank.world.write(put(key, replace(bank.record(ref), state=CommitState.COLLECTING)))
    stale = replace(bank.record(ref), state=CommitState.COMMITTED)
    finding, _ = await bank.checkpoints._conclude("digits", stale, BadCheckpoint("missing"))
    assert finding is Finding.GONE
    bank.world.write(Delete(key))
    assert (await bank.checkpoints._conclude("digits", stale, None))[0] is Finding.GONE


async def test_a_switch_that_is_closed_for_a_bad_base_is_opened(bank: Bank) -> None:
    ref = await bank.save(1, 10)
    bank.damage(ref)
    closed = replace(bank.world.switch(), closing=Closing("p", ref))
    bank.world.write(put(keys.switch("digits"), closed))
    await views(bank.checkpoints.verify(VerifyRequest("digits")))
    assert bank.world.switch().closing is None


async def test_a_suspected_one_whose_files_are_whole_stays_set_aside(bank: Bank) -> None:
    ref = await bank.save(1, 10)
    suspected = replace(
        bank.record(ref), state=CommitState.QUARANTINED, suspected=True, reason="suspected: NaN"
    )
    bank.world.write(put(keys.commit("digits", ref), suspected))
    (found,) = await views(bank.checkpoints.verify(VerifyRequest("digits")))
    assert (found.finding, bank.record(ref)) == (Finding.GOOD, suspected)
    assert "stays quarantined: suspected: NaN" in found.detail
    bank.damage(ref)
    await views(bank.checkpoints.verify(VerifyRequest("digits")))
    assert not bank.record(ref).suspected, "now it is proven, and no acquittal brings it back"


async def test_one_that_cannot_be_read_to_its_end_is_given_up(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.control.services.checkpoints.QUIET_MS", 50)
    stuck, other = await bank.save(1, 20), await bank.save(1, 10)

    async def hang(operation: str, path: str, moment: Moment) -> None:
        if operation == "crc32c" and str(stuck.step) in path and moment is Moment.BEFORE:
            await asyncio.Event().wait()

    bank.store.hook = hang
    found = await views(bank.checkpoints.verify(VerifyRequest("digits")))
    assert [(view.ref, view.finding) for view in found] == [(stuck, Finding.UNKNOWN), (other, Finding.GOOD)]
    assert "has not moved for 0.05 s" in found[0].detail
    assert bank.record(stuck).state is CommitState.COMMITTED


async def test_a_caller_that_goes_away_stops_the_reading(bank: Bank) -> None:
    await bank.save(1, 10)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow(operation: str, _path: str, moment: Moment) -> None:
        if operation == "crc32c" and moment is Moment.BEFORE:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    bank.store.hook = slow
    stream = bank.checkpoints.verify(VerifyRequest("digits"))
    assert (await anext(stream)).found is None, "a sign of life"
    assert begun.is_set()
    await stream.aclose()
    assert ended.is_set()


async def test_a_job_without_checkpoints_has_none_to_verify(bank: Bank) -> None:
    with pytest.raises(NotFound, match="none is committed yet"):
        await views(bank.checkpoints.verify(VerifyRequest("digits")))
    with pytest.raises(NotFound, match="no checkpoint of step 7"):
        await views(bank.checkpoints.verify(VerifyRequest("digits", (CheckpointRef(0, 7),))))


async def test_a_deposed_leader_quarantines_nothing(bank: Bank) -> None:
    ref = await bank.save(1, 10)
    bank.damage(ref)
    stale = bank.world.snapshot()
    service = JobService(
        MemoryCoordination(bank.world.store),
        lambda _uri: bank.store,
        BootClock(),
        lambda: "",
        lambda: None,
        lambda: stale,
    )
    bank.world.new_leader()
    with pytest.raises(Conflict):
        await views(service.checkpoints.verify(VerifyRequest("digits")))
    assert bank.record(ref).state is CommitState.COMMITTED


async def test_a_dry_run_tells_of_everything_and_deletes_nothing(bank: Bank) -> None:
    for step in (10, 20, 30):
        await bank.save(1, step)
    switch = replace(bank.world.switch(), generation=2, base=CheckpointRef(1, 20))
    bank.world.write(put(keys.switch("digits"), switch))
    await bank.save(1, 40, commit=False)
    await bank.save(2, 50, commit=False)
    await bank.save(1, 60, commit=False, uuid="another")
    await bank.store.write_bytes(f"{stored_path(CheckpointRef(1, 70), 'id')}/x", b"")
    old, young = (staging_path(CheckpointRef(generation, 80), "id") for generation in (1, 2))
    for path in (old, young, ".staging/strange"):
        await bank.store.write_bytes(f"{path}/x", b"")
    await bank.store.write_bytes(".trash/g00001-s0000000005.id/x", b"")
    in_force = live_path(2, bank.world.switch().plan_id)
    for path in (in_force, live_path(1, "over")):
        await bank.store.write_bytes(f"{path}/x", b"")
    before = dict(bank.store.disk.files)
    found = items(await bank.checkpoints.collect(CollectRequest("digits", dry_run=True)))
    assert bank.store.disk.files == before
    assert found == {
        stored_path(CheckpointRef(1, 10), "id"): (Thing.CHECKPOINT, False, "newest"),
        stored_path(CheckpointRef(1, 20), "id"): (Thing.CHECKPOINT, False, "base"),
        stored_path(CheckpointRef(1, 30), "id"): (Thing.CHECKPOINT, False, "grace"),
        stored_path(CheckpointRef(1, 40), "id"): (Thing.UNCOMMITTED, True, "never_committed"),
        stored_path(CheckpointRef(2, 50), "id"): (Thing.UNCOMMITTED, False, "in_force"),
        stored_path(CheckpointRef(1, 60), "id"): (Thing.FOREIGN, False, "other_job"),
        stored_path(CheckpointRef(1, 70), "id"): (Thing.UNREADABLE, False, "unreadable"),
        ".trash/g00001-s0000000005.id": (Thing.TRASH, True, "collecting"),
        in_force: (Thing.LIVE, False, "in_use"),
        live_path(1, "over"): (Thing.LIVE, True, "generation_over"),
        old: (Thing.STAGING, True, "abandoned"),
        young: (Thing.STAGING, False, "in_force"),
        ".staging/strange": (Thing.STAGING, False, "unreadable"),
    }
    assert items(await bank.checkpoints.collect(CollectRequest("digits"))) == found
    gone = {path for path, (_, goes, _) in found.items() if goes}
    left = {path for path in before if not path.startswith(tuple(gone))}
    assert set(bank.store.disk.files) == left


async def test_nothing_goes_while_records_are_made_again(bank: Bank) -> None:
    for step in (10, 20, 30, 40, 50):
        await bank.save(1, step)
    world = bank.world
    spec = replace(world.spec, checkpoint=replace(world.spec.checkpoint, keep=2))
    world.write(put(keys.job_record("digits"), replace(world.job().record.value, spec=spec)))
    world.write(put(keys.switch("digits"), replace(world.switch(), base=CheckpointRef(1, 50))))
    before = items(await bank.checkpoints.collect(CollectRequest("digits", dry_run=True)))
    assert {why for _, goes, why in before.values() if goes} == {"surplus"}
    world.write(Delete(keys.head("digits")))
    after = items(await bank.checkpoints.collect(CollectRequest("digits", dry_run=True)))
    assert not any(goes for _, goes, _ in after.values())
    assert {path for path, (_, _, why) in after.items() if why == "records_lost"} == {
        path for path, (_, goes, _) in before.items() if goes
    }


async def test_a_checkpoint_is_found_by_its_step(bank: Bank) -> None:
    ref = await bank.save(1, 100)
    found = await bank.checkpoints.find(FindRequest("digits", CheckpointRef(0, 100)))
    assert (found.commit.ref, found.uri) == (ref, bank.world.spec.checkpoint.uri)
    assert codec.decode(type(found), codec.encode(found)) == found


async def test_a_restart_from_one_that_is_collected_in_that_moment_is_refused(bank: Bank) -> None:
    """Its snapshot is a watch behind etcd: the wish would name what can never be restored."""
    ref = await bank.save(1, 10)
    seen = bank.world.snapshot()
    marked = replace(bank.record(ref), state=CommitState.COLLECTING)
    bank.world.write(put(keys.commit("digits", ref), marked))
    bank.job_service._context._snapshot = lambda: seen
    with pytest.raises(Conflict, match="changed at the same moment"):
        await bank.job_service.restart("digits", from_ref=ref)
    assert bank.world.job().intent.value.restart_from is None
