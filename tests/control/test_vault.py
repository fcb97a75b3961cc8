"""Verify, collect, import and rebuild: what the leader does in a store, and what it records of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from recovery.checkpoints.commit_rule import (
    CommitIdentity,
    CommitRefused,
    Committed,
    Proceed,
    RefusalReason,
    decide,
    reads,
    view_of,
)
from recovery.checkpoints.manifest import (
    MANIFEST_FILE,
    Manifest,
    ManifestFile,
    crc32c_of_bytes,
    encode_manifest,
)
from recovery.checkpoints.paths import stored_path
from recovery.mount.layout import live_path
from recovery.stores.memory import MemoryCheckpointStore, Moment
from supervisor.adapters.clock import BootClock
from supervisor.adapters.memory import MemoryCoordination
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Delete, DeletePrefix, ModifiedAt
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState, Verify
from supervisor.contract.checkpoint_views import (
    AdoptRequest,
    CheckProgress,
    CheckView,
    CollectReport,
    CollectRequest,
    Finding,
    FindRequest,
    ImportRequest,
    Thing,
    VerifyRequest,
)
from supervisor.contract.desired import Closing, JobPhase
from supervisor.contract.errors import BadCheckpoint, Conflict, NotFound, StoreUnreachable, UserError
from supervisor.contract.views import JobRequest, SubmitMode, SubmitRequest
from supervisor.control.desk import Desk
from supervisor.control.invariants import check
from supervisor.control.plan import Action, put
from tests.control.world import World

FILE = "weights.bin"


class Bank:
    """A leader with a job `digits`, its store, and what programs have saved into it."""

    def __init__(self) -> None:
        self.world = World()
        self.store = MemoryCheckpointStore()
        self.desk = Desk(
            MemoryCoordination(self.world.store),
            lambda _uri: self.store,
            BootClock(),
            lambda: "new-uuid",
            lambda: None,
            self.world.snapshot,
        )
        self.vault = self.desk.checkpoints

    async def save(
        self,
        generation: int,
        step: int,
        parent: CheckpointRef | None = None,
        *,
        uuid: str = "uuid",
        job: str = "digits",
        name: str = "id",
        data: bytes = b"weights",
        commit: bool = True,
        verified: Verify = Verify.READBACK,
    ) -> CheckpointRef:
        """A complete directory, and its record."""
        ref = CheckpointRef(generation, step)
        path = stored_path(ref, name)
        file = ManifestFile(FILE, len(data), crc32c_of_bytes(data))
        manifest = Manifest(uuid, job, ref, parent, "n0", "i0", "", 5, (file,))
        raw = encode_manifest(manifest)
        await self.store.write_bytes(f"{path}/{FILE}", data)
        await self.store.write_bytes(f"{path}/{MANIFEST_FILE}", raw)
        if commit:
            record = CommitRecord(uuid, ref, parent, path, len(data), crc32c_of_bytes(raw), "n0", "i0", 5)
            self.world.commit(generation, step)
            self.world.write(put(keys.commit("digits", ref), replace(record, verified=verified)))
        return ref

    def damage(self, ref: CheckpointRef, data: bytes | None = b"Weights") -> None:
        path = f"{stored_path(ref, 'id')}/{FILE}"
        del self.store.disk.files[path]
        if data is not None:
            self.store.disk.files[path] = data

    def record(self, ref: CheckpointRef) -> CommitRecord:
        return self.world.job().commits[ref].value

    def end(self, phase: JobPhase = JobPhase.STOPPED) -> None:
        self.world.write(put(keys.switch("digits"), replace(self.world.switch(), phase=phase, closing=None)))

    def lose_etcd(self) -> None:
        """All that is left is the store."""
        for key in (
            keys.job_record("digits"),
            keys.switch("digits"),
            keys.intent("digits"),
            keys.head("digits"),
        ):
            self.world.write(Delete(key))
        self.world.write(DeletePrefix(keys.commits_of("digits")))
        self.world.write(DeletePrefix("plans/"), DeletePrefix("assignments/"), DeletePrefix("attempts/"))

    def decide(self) -> None:
        check(self.world.snapshot())
        self.world.decide()


@pytest.fixture
async def bank() -> Bank:
    made = Bank()
    made.world.start()
    await made.store.prepare()
    return made


async def views(stream: AsyncGenerator[CheckProgress, None]) -> list[CheckView]:
    return [item.found async for item in stream if item.found is not None]


async def last(stream: AsyncGenerator[CheckProgress, None]) -> str:
    return [item.end async for item in stream][-1]


def items(report: CollectReport) -> dict[str, tuple[Thing, bool, str]]:
    return {item.path: (item.thing, item.goes, item.why) for item in report.items}


async def test_what_reads_back_whole_is_verified_from_then_on(bank: Bank) -> None:
    refs = [await bank.save(1, step, verified=Verify.SIZE) for step in (10, 20)]
    found = await views(bank.vault.verify(VerifyRequest("digits")))
    assert [(view.ref, view.finding, view.size) for view in found] == [
        (refs[1], Finding.GOOD, 7),
        (refs[0], Finding.GOOD, 7),
    ]
    assert {bank.record(ref).verified for ref in refs} == {Verify.READBACK}
    before = bank.world.store.revision
    await views(bank.vault.verify(VerifyRequest("digits", (CheckpointRef(0, 20),))))
    assert bank.world.store.revision == before, "what is known is not written again"


@pytest.mark.parametrize("data", [b"Weights", b"weights and more", b"", None])
async def test_a_bad_one_is_quarantined_with_the_reason(bank: Bank, data: bytes | None) -> None:
    good, bad = await bank.save(1, 10), await bank.save(1, 20)
    bank.damage(bad, data)
    head = bank.world.job().head
    found = await views(bank.vault.verify(VerifyRequest("digits")))
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
    (found,) = await views(bank.vault.verify(VerifyRequest("digits")))
    assert (found.finding, bank.record(bad).state) == (Finding.BAD, CommitState.QUARANTINED)


async def test_unreadable_is_not_bad(bank: Bank) -> None:
    ref, other = await bank.save(1, 10), await bank.save(1, 20)

    async def away(operation: str, path: str, moment: Moment) -> None:
        if operation == "crc32c" and str(other.step) in path and moment is Moment.BEFORE:
            raise StoreUnreachable("the DataNodes do not answer")

    bank.store.hook = away
    found = await views(bank.vault.verify(VerifyRequest("digits")))
    assert [(view.ref, view.finding) for view in found] == [(other, Finding.UNKNOWN), (ref, Finding.GOOD)]
    assert "DataNodes" in found[0].detail
    assert bank.record(other).state is CommitState.COMMITTED


async def test_one_that_is_collected_meanwhile_is_not_called_bad(bank: Bank) -> None:
    ref = await bank.save(1, 10)
    bank.damage(ref, None)
    key = keys.commit("digits", ref)
    bank.world.write(put(key, replace(bank.record(ref), state=CommitState.COLLECTING)))
    stale = replace(bank.record(ref), state=CommitState.COMMITTED)
    finding, _ = await bank.vault._conclude("digits", stale, BadCheckpoint("missing"))
    assert finding is Finding.GONE
    bank.world.write(Delete(key))
    assert (await bank.vault._conclude("digits", stale, None))[0] is Finding.GONE


async def test_a_switch_that_is_closed_for_a_bad_base_is_opened(bank: Bank) -> None:
    ref = await bank.save(1, 10)
    bank.damage(ref)
    closed = replace(bank.world.switch(), closing=Closing("p", ref))
    bank.world.write(put(keys.switch("digits"), closed))
    await views(bank.vault.verify(VerifyRequest("digits")))
    assert bank.world.switch().closing is None


async def test_a_suspected_one_whose_files_are_whole_stays_set_aside(bank: Bank) -> None:
    ref = await bank.save(1, 10)
    suspected = replace(
        bank.record(ref), state=CommitState.QUARANTINED, suspected=True, reason="suspected: NaN"
    )
    bank.world.write(put(keys.commit("digits", ref), suspected))
    (found,) = await views(bank.vault.verify(VerifyRequest("digits")))
    assert (found.finding, bank.record(ref)) == (Finding.GOOD, suspected)
    assert "stays quarantined: suspected: NaN" in found.detail
    bank.damage(ref)
    await views(bank.vault.verify(VerifyRequest("digits")))
    assert not bank.record(ref).suspected, "now it is proven, and no acquittal brings it back"


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
    stream = bank.vault.verify(VerifyRequest("digits"))
    assert (await anext(stream)).found is None, "a sign of life"
    assert begun.is_set()
    await stream.aclose()
    assert ended.is_set()


async def test_a_job_without_checkpoints_has_none_to_verify(bank: Bank) -> None:
    with pytest.raises(NotFound, match="none is committed yet"):
        await views(bank.vault.verify(VerifyRequest("digits")))
    with pytest.raises(NotFound, match="no checkpoint of step 7"):
        await views(bank.vault.verify(VerifyRequest("digits", (CheckpointRef(0, 7),))))


async def test_a_deposed_leader_quarantines_nothing(bank: Bank) -> None:
    ref = await bank.save(1, 10)
    bank.damage(ref)
    stale = bank.world.snapshot()
    desk = Desk(
        MemoryCoordination(bank.world.store),
        lambda _uri: bank.store,
        BootClock(),
        lambda: "",
        lambda: None,
        lambda: stale,
    )
    bank.world.new_leader()
    with pytest.raises(Conflict):
        await views(desk.checkpoints.verify(VerifyRequest("digits")))
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
    await bank.store.write_bytes(".staging/1-old/x", b"")
    young = f".staging/{BootClock().wall_ms()}-young"
    await bank.store.write_bytes(f"{young}/x", b"")
    await bank.store.write_bytes(".trash/g00001-s0000000005.id/x", b"")
    in_force = live_path(2, bank.world.switch().plan_id)
    for path in (in_force, live_path(1, "over")):
        await bank.store.write_bytes(f"{path}/x", b"")
    before = dict(bank.store.disk.files)
    found = items(await bank.vault.collect(CollectRequest("digits", dry_run=True)))
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
        ".staging/1-old": (Thing.STAGING, True, "abandoned"),
        young: (Thing.STAGING, False, "begun_lately"),
    }
    assert items(await bank.vault.collect(CollectRequest("digits"))) == found
    gone = {path for path, (_, goes, _) in found.items() if goes}
    left = {path for path in before if not path.startswith(tuple(gone))}
    assert set(bank.store.disk.files) == left


async def test_an_import_is_what_the_next_start_begins_from(bank: Bank) -> None:
    world = bank.world
    old = await bank.save(1, 100)
    bank.end()
    place = await bank.vault.place(ImportRequest("digits", 40))
    assert (place.ref, place.job_uuid, place.uri) == (
        CheckpointRef(2, 40),
        "uuid",
        world.spec.checkpoint.uri,
    )
    await bank.save(2, 40, commit=False)
    said = await last(bank.vault.adopt(AdoptRequest("digits", stored_path(place.ref, "id"))))
    assert "begins from g2-s40" in said
    switch = world.switch()
    assert (switch.generation, switch.base, switch.phase) == (2, None, JobPhase.STOPPED)
    assert bank.record(place.ref).verified is Verify.READBACK
    bank.decide()
    assert bank.record(old).state is CommitState.COMMITTED, "what fell off the lineage has its grace"
    await bank.desk.start("digits")
    world.until(lambda: world.switch().phase is JobPhase.RUNNING)
    assert (world.switch().generation, world.switch().base) == (3, place.ref)


async def test_a_late_commit_of_the_generation_before_an_import_fails(bank: Bank) -> None:
    """The import's switch names another generation, which every commit compares (rule 7)."""
    late = CheckpointRef(bank.world.switch().generation, 99)
    manifest = Manifest("uuid", "digits", late, None, "n0", "i0", "", 5, (ManifestFile(FILE, 1, "0" * 8),))
    (node,) = bank.world.store.read(keys.node("n0"))
    identity = CommitIdentity("n0", "i0", ModifiedAt(node.key, node.mod_revision))

    def commit() -> Proceed | Committed | CommitRefused:
        found = tuple(bank.world.store.read(get.key) for get in reads(manifest, identity))
        return decide(view_of(found), manifest, identity, "path", "0" * 8, Verify.SIZE)

    bank.end()
    assert isinstance(commit(), Proceed), "an ended job's agent may still commit what it had taken"
    place = await bank.vault.place(ImportRequest("digits", 40))
    await bank.save(2, 40, commit=False)
    await last(bank.vault.adopt(AdoptRequest("digits", stored_path(place.ref, "id"))))
    refused = commit()
    assert isinstance(refused, CommitRefused)
    assert refused.reason is RefusalReason.GENERATION


async def test_an_import_into_a_job_that_runs_is_refused(bank: Bank) -> None:
    with pytest.raises(Conflict, match="digits is running"):
        await bank.vault.place(ImportRequest("digits", 40))
    await bank.save(2, 40, commit=False)
    with pytest.raises(Conflict, match="digits is running"):
        await last(bank.vault.adopt(AdoptRequest("digits", stored_path(CheckpointRef(2, 40), "id"))))
    bank.end()
    kept = replace(bank.world.switch(), held=("worker.0",))
    bank.world.write(put(keys.switch("digits"), kept))
    with pytest.raises(Conflict, match=r"worker\.0 of job digits are kept for inspection"):
        await bank.vault.place(ImportRequest("digits", 40))
    bank.world.write(put(keys.switch("digits"), replace(kept, held=())))
    bank.world.intend(serial=1)
    with pytest.raises(Conflict, match="about to start"):
        await bank.vault.place(ImportRequest("digits", 40))


async def test_an_import_while_somebody_starts_the_job_has_no_effect(bank: Bank) -> None:
    bank.end()
    ref = await bank.save(2, 40, commit=False)

    async def start(operation: str, _path: str, moment: Moment) -> None:
        if operation == "crc32c" and moment is Moment.BEFORE:
            bank.world.intend(serial=1)

    bank.store.hook = start
    with pytest.raises(Conflict):
        await last(bank.vault.adopt(AdoptRequest("digits", stored_path(ref, "id"))))
    assert ref not in bank.world.job().commits


async def test_an_import_goes_above_every_generation_in_the_store(bank: Bank) -> None:
    bank.end()
    await bank.save(12, 5, commit=False)
    assert (await bank.vault.place(ImportRequest("digits", 40))).ref == CheckpointRef(13, 40)


@pytest.mark.parametrize(
    ("uuid", "job", "message"), [("other", "digits", "not g2-s40"), ("uuid", "other", "of job other")]
)
async def test_an_import_of_another_job_is_refused(bank: Bank, uuid: str, job: str, message: str) -> None:
    bank.end()
    ref = await bank.save(2, 40, commit=False, uuid=uuid, job=job)
    with pytest.raises(BadCheckpoint, match=message):
        await last(bank.vault.adopt(AdoptRequest("digits", stored_path(ref, "id"))))
    assert bank.world.job().commits == {}


async def test_an_import_that_is_torn_or_hostile_is_refused(bank: Bank) -> None:
    bank.end()
    torn = await bank.save(2, 40, commit=False)
    bank.damage(torn)
    with pytest.raises(BadCheckpoint, match="checksum"):
        await last(bank.vault.adopt(AdoptRequest("digits", stored_path(torn, "id"))))
    lying = stored_path(CheckpointRef(2, 41), "id")
    raw = bank.store.disk.files[f"{stored_path(torn, 'id')}/{MANIFEST_FILE}"]
    await bank.store.write_bytes(f"{lying}/{MANIFEST_FILE}", raw)
    with pytest.raises(BadCheckpoint, match="describes g2-s40"):
        await last(bank.vault.adopt(AdoptRequest("digits", lying)))
    for path in ("../elsewhere", ".staging/1-x", "", "g2", stored_path(CheckpointRef(99_999_999, 1), "id")):
        with pytest.raises(UserError):
            await last(bank.vault.adopt(AdoptRequest("digits", path)))
    empty = stored_path(CheckpointRef(2, 42), "id")
    await bank.store.write_bytes(f"{empty}/x", b"")
    with pytest.raises(BadCheckpoint, match=r"has no manifest"):
        await last(bank.vault.adopt(AdoptRequest("digits", empty)))
    await bank.store.write_bytes(f"{stored_path(CheckpointRef(2, 43), 'id')}/{MANIFEST_FILE}", b"[" * 100_000)
    with pytest.raises(BadCheckpoint, match="not JSON"):
        await last(bank.vault.adopt(AdoptRequest("digits", stored_path(CheckpointRef(2, 43), "id"))))
    assert bank.world.job().commits == {}


async def test_a_lost_etcd_is_made_good_from_the_store(bank: Bank) -> None:
    world = bank.world
    first, second = await bank.save(1, 100), await bank.save(1, 200)
    third = await bank.save(2, 250, first, commit=False)
    bank.lose_etcd()
    with pytest.raises(Conflict, match="--resume takes them up"):
        await bank.desk.submit(SubmitRequest(world.spec))
    other = replace(world.spec, name="other")
    with pytest.raises(Conflict, match="of another job"):
        await bank.desk.submit(SubmitRequest(other))
    with pytest.raises(NotFound, match="holds those of digits: submit it under that name"):
        await bank.desk.submit(SubmitRequest(other, SubmitMode.RESUME))
    accepted = await bank.desk.submit(SubmitRequest(world.spec, SubmitMode.RESUME))
    assert "checkpoints digits rebuild" in accepted.detail
    held = world.switch()
    assert (held.phase, held.job_uuid) == (JobPhase.STOPPED, "uuid")
    with pytest.raises(Conflict, match="records were lost"):
        await bank.desk.start("digits")
    everything = dict(bank.store.disk.files)
    await bank.vault.collect(CollectRequest("digits"))
    assert bank.store.disk.files == everything, "nothing goes while the records are lost"
    bank.damage(second)
    said = await last(bank.vault.rebuild(JobRequest("digits")))
    assert "begins from g2-s250" in said
    job = world.job()
    assert {ref: held.value.state for ref, held in job.commits.items()} == {
        first: CommitState.COMMITTED,
        second: CommitState.QUARANTINED,
        third: CommitState.COMMITTED,
    }
    assert job.commits[third].value.parent == first
    with pytest.raises(Conflict, match="has its records"):
        await last(bank.vault.rebuild(JobRequest("digits")))
    bank.decide()
    await bank.desk.start("digits")
    world.until(lambda: world.switch().phase is JobPhase.RUNNING)
    assert (world.switch().base, world.switch().generation) == (third, 4), "above all that was ever seen"


async def test_a_rebuild_takes_the_newest_that_is_good(bank: Bank) -> None:
    old, new = await bank.save(1, 100), await bank.save(1, 200)
    bank.lose_etcd()
    await bank.desk.submit(SubmitRequest(bank.world.spec, SubmitMode.RESUME))
    bank.damage(new)
    assert f"begins from {old}" in await last(bank.vault.rebuild(JobRequest("digits")))
    assert bank.world.switch().base == old


async def test_with_nothing_good_a_start_fails_and_never_begins_from_scratch(bank: Bank) -> None:
    world = bank.world
    ref = await bank.save(1, 100)
    bank.lose_etcd()
    await bank.desk.submit(SubmitRequest(world.spec, SubmitMode.RESUME))
    bank.damage(ref)
    await last(bank.vault.rebuild(JobRequest("digits")))
    await bank.desk.start("digits")
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    assert "no checkpoint is left" in world.switch().reason


async def test_a_rebuild_that_cannot_read_all_records_nothing(bank: Bank) -> None:
    await bank.save(1, 100)
    await bank.save(1, 200)
    bank.lose_etcd()
    await bank.desk.submit(SubmitRequest(bank.world.spec, SubmitMode.RESUME))

    async def away(operation: str, path: str, moment: Moment) -> None:
        if operation == "crc32c" and "0100" in path and moment is Moment.BEFORE:
            raise StoreUnreachable("away")

    bank.store.hook = away
    with pytest.raises(StoreUnreachable):
        await last(bank.vault.rebuild(JobRequest("digits")))
    assert bank.world.job().commits == {}
    assert bank.world.job().head is None


async def test_a_rebuild_of_very_many_can_be_cut_anywhere_and_repeated(bank: Bank) -> None:
    world = bank.world
    for step in range(200):
        await bank.save(1, step, commit=False)
    bank.lose_etcd()
    await bank.desk.submit(SubmitRequest(world.spec, SubmitMode.RESUME))
    before = world.store.revision
    stream = bank.vault.rebuild(JobRequest("digits"))
    written: list[int] = []
    original = bank.vault._office.run

    async def cut(action: Action) -> None:
        written.append(len(action.ops))
        if len(written) == 2:
            raise StoreUnreachable("cut")
        await original(action)

    bank.vault._office = replace(bank.vault._office, run=cut)
    with pytest.raises(StoreUnreachable):
        await last(stream)
    assert world.store.revision > before
    check(world.snapshot())
    with pytest.raises(Conflict, match="records were lost"):
        await bank.desk.start("digits")
    bank.vault._office = replace(bank.vault._office, run=original)
    await last(bank.vault.rebuild(JobRequest("digits")))
    assert len(world.job().commits) == 200
    assert world.switch().base == CheckpointRef(1, 199)
    assert max(written) <= 100


async def test_one_of_two_directories_of_a_checkpoint_is_recorded_the_whole_one(bank: Bank) -> None:
    for name in ("a", "id", "z"):
        await bank.save(1, 100, commit=False, name=name)
    for name in ("a", "z"):
        bank.store.disk.files[f"{stored_path(CheckpointRef(1, 100), name)}/{FILE}"] = b"Weights"
    bank.lose_etcd()
    await bank.desk.submit(SubmitRequest(bank.world.spec, SubmitMode.RESUME))
    await last(bank.vault.rebuild(JobRequest("digits")))
    (held,) = bank.world.job().commits.values()
    assert (held.value.path, held.value.state) == (
        stored_path(CheckpointRef(1, 100), "id"),
        CommitState.COMMITTED,
    )


async def test_a_lost_job_is_its_last_life_alone(bank: Bank) -> None:
    """What an earlier life left (`--fresh`) has another UUID."""
    old = await bank.save(1, 900, uuid="first-life", commit=False)
    new = await bank.save(2, 100, commit=False)
    bank.lose_etcd()
    await bank.desk.submit(SubmitRequest(bank.world.spec, SubmitMode.RESUME))
    await last(bank.vault.rebuild(JobRequest("digits")))
    assert set(bank.world.job().commits) == {new}
    found = items(await bank.vault.collect(CollectRequest("digits")))
    assert found[stored_path(old, "id")] == (Thing.FOREIGN, False, "other_job")


async def test_two_imports_at_once_are_not_both_taken_up(bank: Bank) -> None:
    bank.end()
    first = await bank.vault.place(ImportRequest("digits", 40))
    second = await bank.vault.place(ImportRequest("digits", 50))
    assert first.ref.generation == second.ref.generation
    for place in (first, second):
        await bank.save(place.ref.generation, place.ref.step, commit=False)
    await last(bank.vault.adopt(AdoptRequest("digits", stored_path(second.ref, "id"))))
    with pytest.raises(Conflict, match="another generation meanwhile; import it again"):
        await last(bank.vault.adopt(AdoptRequest("digits", stored_path(first.ref, "id"))))
    assert set(bank.world.job().commits) == {second.ref}


async def test_a_checkpoint_is_found_by_its_step(bank: Bank) -> None:
    ref = await bank.save(1, 100)
    found = await bank.vault.find(FindRequest("digits", CheckpointRef(0, 100)))
    assert (found.commit.ref, found.uri) == (ref, bank.world.spec.checkpoint.uri)
    assert codec.decode(type(found), codec.encode(found)) == found
