"""Import and rebuild: records that the leader makes itself, of what it has read back from the store."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from recovery.families.commit_rule import (
    CommitIdentity,
    CommitRefused,
    Committed,
    Proceed,
    RefusalReason,
    decide,
    reads,
    view_of,
)
from recovery.formats.manifest import (
    MANIFEST_FILE,
    Manifest,
    ManifestFile,
)
from recovery.formats.paths import stored_path
from recovery.retention.pins import is_marked
from recovery.stores.memory import Moment
from supervisor.contract import keys
from supervisor.contract.boundaries import Delete, DeletePrefix, ModifiedAt
from supervisor.contract.checkpoint import CheckpointRef, CommitState, Verify
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import BadCheckpoint, Conflict, NotFound, StoreUnreachable, UserError
from supervisor.contract.timing import FAST
from supervisor.contract.views.checkpoints import (
    AdoptRequest,
    CollectRequest,
    Finding,
    ImportRequest,
    Thing,
    VerifyRequest,
)
from supervisor.contract.views.jobs import JobRequest, SubmitMode, SubmitRequest
from supervisor.control.decide.jobs.admission import FORGOTTEN
from supervisor.control.decide.plan import Action, put
from tests.control.bank import FILE, Bank, items, last, open_bank, views
from tests.control.world import check


@pytest.fixture
async def bank() -> Bank:
    return await open_bank()


async def test_an_import_is_what_the_next_start_begins_from(bank: Bank) -> None:
    world = bank.world
    old = await bank.save(1, 100)
    bank.end()
    place = await bank.checkpoints.place(ImportRequest("digits", 40))
    assert (place.ref, place.job_uuid, place.uri) == (
        CheckpointRef(2, 40),
        "uuid",
        world.spec.checkpoint.uri,
    )
    await bank.save(2, 40, commit=False)
    said = await last(bank.checkpoints.adopt(AdoptRequest("digits", stored_path(place.ref, "id"))))
    assert "begins from g2-s40" in said
    switch = world.switch()
    assert (switch.generation, switch.base, switch.phase) == (2, None, JobPhase.STOPPED)
    assert bank.record(place.ref).verified is Verify.READBACK
    bank.decide()
    assert bank.record(old).state is CommitState.COMMITTED, "what fell off the lineage has its grace"
    await bank.job_service.start("digits")
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
    place = await bank.checkpoints.place(ImportRequest("digits", 40))
    await bank.save(2, 40, commit=False)
    await last(bank.checkpoints.adopt(AdoptRequest("digits", stored_path(place.ref, "id"))))
    refused = commit()
    assert isinstance(refused, CommitRefused)
    assert refused.reason is RefusalReason.GENERATION


async def test_an_import_into_a_job_that_runs_is_refused(bank: Bank) -> None:
    with pytest.raises(Conflict, match="digits is running"):
        await bank.checkpoints.place(ImportRequest("digits", 40))
    await bank.save(2, 40, commit=False)
    with pytest.raises(Conflict, match="digits is running"):
        await last(bank.checkpoints.adopt(AdoptRequest("digits", stored_path(CheckpointRef(2, 40), "id"))))
    bank.end()
    kept = replace(bank.world.switch(), held=("worker.0",))
    bank.world.write(put(keys.switch("digits"), kept))
    with pytest.raises(Conflict, match=r"worker\.0 of job digits are kept for inspection"):
        await bank.checkpoints.place(ImportRequest("digits", 40))
    bank.world.write(put(keys.switch("digits"), replace(kept, held=())))
    bank.world.intend(serial=1)
    with pytest.raises(Conflict, match="about to start"):
        await bank.checkpoints.place(ImportRequest("digits", 40))


async def test_an_import_while_somebody_starts_the_job_has_no_effect(bank: Bank) -> None:
    bank.end()
    ref = await bank.save(2, 40, commit=False)

    async def start(operation: str, _path: str, moment: Moment) -> None:
        if operation == "crc32c" and moment is Moment.BEFORE:
            bank.world.intend(serial=1)

    bank.store.hook = start
    with pytest.raises(Conflict):
        await last(bank.checkpoints.adopt(AdoptRequest("digits", stored_path(ref, "id"))))
    assert ref not in bank.world.job().commits


async def test_an_import_goes_above_every_generation_in_the_store(bank: Bank) -> None:
    bank.end()
    await bank.save(12, 5, commit=False)
    assert (await bank.checkpoints.place(ImportRequest("digits", 40))).ref == CheckpointRef(13, 40)


@pytest.mark.parametrize(
    ("uuid", "job", "message"), [("other", "digits", "not g2-s40"), ("uuid", "other", "of job other")]
)
async def test_an_import_of_another_job_is_refused(bank: Bank, uuid: str, job: str, message: str) -> None:
    bank.end()
    ref = await bank.save(2, 40, commit=False, uuid=uuid, job=job)
    with pytest.raises(BadCheckpoint, match=message):
        await last(bank.checkpoints.adopt(AdoptRequest("digits", stored_path(ref, "id"))))
    assert bank.world.job().commits == {}


async def test_an_import_that_is_torn_or_hostile_is_refused(bank: Bank) -> None:
    bank.end()
    torn = await bank.save(2, 40, commit=False)
    bank.damage(torn)
    with pytest.raises(BadCheckpoint, match="checksum"):
        await last(bank.checkpoints.adopt(AdoptRequest("digits", stored_path(torn, "id"))))
    lying = stored_path(CheckpointRef(2, 41), "id")
    raw = bank.store.disk.files[f"{stored_path(torn, 'id')}/{MANIFEST_FILE}"]
    await bank.store.write_bytes(f"{lying}/{MANIFEST_FILE}", raw)
    with pytest.raises(BadCheckpoint, match="describes g2-s40"):
        await last(bank.checkpoints.adopt(AdoptRequest("digits", lying)))
    for path in ("../elsewhere", ".staging/1-x", "", "g2", stored_path(CheckpointRef(99_999_999, 1), "id")):
        with pytest.raises(UserError):
            await last(bank.checkpoints.adopt(AdoptRequest("digits", path)))
    empty = stored_path(CheckpointRef(2, 42), "id")
    await bank.store.write_bytes(f"{empty}/x", b"")
    with pytest.raises(BadCheckpoint, match=r"has no manifest"):
        await last(bank.checkpoints.adopt(AdoptRequest("digits", empty)))
    await bank.store.write_bytes(f"{stored_path(CheckpointRef(2, 43), 'id')}/{MANIFEST_FILE}", b"[" * 100_000)
    with pytest.raises(BadCheckpoint, match="not JSON"):
        await last(bank.checkpoints.adopt(AdoptRequest("digits", stored_path(CheckpointRef(2, 43), "id"))))
    assert bank.world.job().commits == {}


async def test_a_lost_etcd_is_made_good_from_the_store(bank: Bank) -> None:
    world = bank.world
    first, second = await bank.save(1, 100), await bank.save(1, 200)
    third = await bank.save(2, 250, first, commit=False)
    bank.lose_etcd()
    with pytest.raises(Conflict, match="--resume takes them up"):
        await bank.job_service.submissions.submit(SubmitRequest(world.spec))
    other = replace(world.spec, name="other")
    with pytest.raises(Conflict, match="of another job"):
        await bank.job_service.submissions.submit(SubmitRequest(other))
    with pytest.raises(NotFound, match="holds checkpoints of digits: submit it under that name"):
        await bank.job_service.submissions.submit(SubmitRequest(other, SubmitMode.RESUME))
    accepted = await bank.job_service.submissions.submit(SubmitRequest(world.spec, SubmitMode.RESUME))
    assert "checkpoints digits rebuild" in accepted.detail
    held = world.switch()
    assert (held.phase, held.job_uuid) == (JobPhase.STOPPED, "uuid")
    with pytest.raises(Conflict, match="records were lost"):
        await bank.job_service.start("digits")
    everything = dict(bank.store.disk.files)
    await bank.checkpoints.collect(CollectRequest("digits"))
    assert bank.store.disk.files == everything, "nothing goes while the records are lost"
    bank.damage(second)
    said = await last(bank.checkpoints.rebuild(JobRequest("digits")))
    assert "begins from g2-s250" in said
    job = world.job()
    assert {ref: held.value.state for ref, held in job.commits.items()} == {
        first: CommitState.COMMITTED,
        second: CommitState.QUARANTINED,
        third: CommitState.COMMITTED,
    }
    assert job.commits[third].value.parent == first
    with pytest.raises(Conflict, match="has its records"):
        await last(bank.checkpoints.rebuild(JobRequest("digits")))
    bank.decide()
    await bank.job_service.start("digits")
    world.until(lambda: world.switch().phase is JobPhase.RUNNING)
    assert world.switch().base == third
    assert world.switch().generation == 2 + FORGOTTEN + 2, "above all that was ever seen, or may have been"


async def test_a_generation_whose_number_etcd_has_forgotten_does_not_come_again(bank: Bank) -> None:
    """The last ones may have saved nothing: the store does not tell of them, but their tasks may run on."""
    await bank.save(1, 100)
    floors = []
    for _ in range(3):
        bank.lose_etcd()
        await bank.job_service.submissions.submit(SubmitRequest(bank.world.spec, SubmitMode.RESUME))
        floors.append(bank.world.switch().generation)
    assert floors == [1 + FORGOTTEN, 1 + 2 * FORGOTTEN, 1 + 3 * FORGOTTEN]


async def test_a_rebuild_waits_until_no_task_of_a_lost_etcd_can_run(bank: Bank) -> None:
    """The simulator: a job went on beside its tasks of before, on a node that was cut off meanwhile."""
    world = bank.world
    await bank.save(1, 100)
    bank.lose_etcd()
    world.form_cluster(promise_ms=5_000)
    await bank.job_service.submissions.submit(SubmitRequest(world.spec, SubmitMode.RESUME))
    world.now_ms -= FAST.d_ms
    waits = []
    async for item in bank.checkpoints.rebuild(JobRequest("digits")):
        if item.waits_ms:
            assert world.job().head is None
            waits.append(item.waits_ms)
            world.now_ms += 4_500
    assert waits == [FAST.d_ms + 5_000, FAST.d_ms + 500]
    assert world.job().head is not None


async def test_where_etcd_was_lost_nothing_begins_afresh_beside_tasks_that_may_run(bank: Bank) -> None:
    world = bank.world
    await bank.save(1, 100)
    bank.lose_etcd()
    world.form_cluster()
    world.now_ms -= 1
    with pytest.raises(Conflict, match="its tasks may still be running: submit again in 1 s"):
        await bank.job_service.submissions.submit(SubmitRequest(world.spec, SubmitMode.FRESH))
    world.now_ms += 1
    await bank.job_service.submissions.submit(SubmitRequest(world.spec, SubmitMode.FRESH))


async def test_a_rebuild_takes_the_newest_that_is_good(bank: Bank) -> None:
    old, new = await bank.save(1, 100), await bank.save(1, 200)
    bank.lose_etcd()
    await bank.job_service.submissions.submit(SubmitRequest(bank.world.spec, SubmitMode.RESUME))
    bank.damage(new)
    assert f"begins from {old}" in await last(bank.checkpoints.rebuild(JobRequest("digits")))
    assert bank.world.switch().base == old


async def test_a_rebuild_knows_what_was_pinned(bank: Bank) -> None:
    refs = [await bank.save(1, step) for step in (100, 200, 300)]
    for ref in refs[:2]:
        said = await bank.checkpoints.pin("digits", ref, pinned=True)
        assert said.detail == f"checkpoint {ref} is pinned"
        await bank.checkpoints.pin("digits", ref, pinned=True)
    await bank.checkpoints.pin("digits", refs[1], pinned=False)
    assert (await views(bank.checkpoints.verify(VerifyRequest("digits"))))[0].finding is Finding.GOOD
    bank.lose_etcd()
    await bank.job_service.submissions.submit(SubmitRequest(bank.world.spec, SubmitMode.RESUME))
    await last(bank.checkpoints.rebuild(JobRequest("digits")))
    assert [bank.record(ref).pinned for ref in refs] == [True, False, False]


async def test_a_pin_counts_although_the_store_does_not_answer(bank: Bank) -> None:
    ref = await bank.save(1, 100)
    bank.store.disk.prepared = False
    said = await bank.checkpoints.pin("digits", ref, pinned=True)
    assert f"checkpoint {ref} is pinned; a `rebuild` after a loss of etcd would not know of it" in said.detail
    assert bank.record(ref).pinned
    bank.store.disk.prepared = True
    said = await bank.checkpoints.pin("digits", ref, pinned=True)
    assert said.detail == f"checkpoint {ref} is pinned already"
    assert await is_marked(bank.store, bank.record(ref).path)


async def test_with_nothing_good_a_start_fails_and_never_begins_from_scratch(bank: Bank) -> None:
    world = bank.world
    ref = await bank.save(1, 100)
    bank.lose_etcd()
    await bank.job_service.submissions.submit(SubmitRequest(world.spec, SubmitMode.RESUME))
    bank.damage(ref)
    await last(bank.checkpoints.rebuild(JobRequest("digits")))
    await bank.job_service.start("digits")
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    assert "no checkpoint is left" in world.switch().reason


async def test_a_rebuild_that_cannot_read_all_records_nothing(bank: Bank) -> None:
    await bank.save(1, 100)
    await bank.save(1, 200)
    bank.lose_etcd()
    await bank.job_service.submissions.submit(SubmitRequest(bank.world.spec, SubmitMode.RESUME))

    async def away(operation: str, path: str, moment: Moment) -> None:
        if operation == "crc32c" and "0100" in path and moment is Moment.BEFORE:
            raise StoreUnreachable("away")

    bank.store.hook = away
    with pytest.raises(StoreUnreachable):
        await last(bank.checkpoints.rebuild(JobRequest("digits")))
    assert bank.world.job().commits == {}
    assert bank.world.job().head is None


async def test_a_rebuild_of_very_many_can_be_cut_anywhere_and_repeated(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = bank.world
    for step in range(200):
        await bank.save(1, step, commit=False)
    bank.lose_etcd()
    await bank.job_service.submissions.submit(SubmitRequest(world.spec, SubmitMode.RESUME))
    before = world.store.revision
    stream = bank.checkpoints.rebuild(JobRequest("digits"))
    written: list[int] = []
    original = bank.checkpoints._context.run

    async def cut(action: Action) -> None:
        written.append(len(action.ops))
        if len(written) == 2:
            raise StoreUnreachable("cut")
        await original(action)

    monkeypatch.setattr(bank.checkpoints._context, "run", cut)
    with pytest.raises(StoreUnreachable):
        await last(stream)
    assert world.store.revision > before
    check(world.snapshot())
    with pytest.raises(Conflict, match="records were lost"):
        await bank.job_service.start("digits")
    monkeypatch.setattr(bank.checkpoints._context, "run", original)
    await last(bank.checkpoints.rebuild(JobRequest("digits")))
    assert len(world.job().commits) == 200
    assert world.switch().base == CheckpointRef(1, 199)
    assert max(written) <= 100


async def test_one_of_two_directories_of_a_checkpoint_is_recorded_the_whole_one(bank: Bank) -> None:
    for name in ("a", "id", "z"):
        await bank.save(1, 100, commit=False, name=name)
    for name in ("a", "z"):
        bank.store.disk.files[f"{stored_path(CheckpointRef(1, 100), name)}/{FILE}"] = b"Weights"
    bank.lose_etcd()
    await bank.job_service.submissions.submit(SubmitRequest(bank.world.spec, SubmitMode.RESUME))
    await last(bank.checkpoints.rebuild(JobRequest("digits")))
    (held,) = bank.world.job().commits.values()
    assert (held.value.path, held.value.state) == (
        stored_path(CheckpointRef(1, 100), "id"),
        CommitState.COMMITTED,
    )


async def test_a_lost_job_is_its_last_life_alone(bank: Bank) -> None:
    """Checkpoints of an earlier life (`--fresh`) have another UUID."""
    old = await bank.save(1, 900, uuid="first-life", commit=False)
    new = await bank.save(2, 100, commit=False)
    bank.lose_etcd()
    await bank.job_service.submissions.submit(SubmitRequest(bank.world.spec, SubmitMode.RESUME))
    await last(bank.checkpoints.rebuild(JobRequest("digits")))
    assert set(bank.world.job().commits) == {new}
    found = items(await bank.checkpoints.collect(CollectRequest("digits")))
    assert found[stored_path(old, "id")] == (Thing.FOREIGN, False, "other_job")


async def test_two_imports_at_once_are_not_both_taken_up(bank: Bank) -> None:
    bank.end()
    first = await bank.checkpoints.place(ImportRequest("digits", 40))
    second = await bank.checkpoints.place(ImportRequest("digits", 50))
    assert first.ref.generation == second.ref.generation
    for place in (first, second):
        await bank.save(place.ref.generation, place.ref.step, commit=False)
    await last(bank.checkpoints.adopt(AdoptRequest("digits", stored_path(second.ref, "id"))))
    with pytest.raises(Conflict, match="another generation meanwhile; import it again"):
        await last(bank.checkpoints.adopt(AdoptRequest("digits", stored_path(first.ref, "id"))))
    assert set(bank.world.job().commits) == {second.ref}


async def test_an_import_waits_for_the_records_that_etcd_has_lost(bank: Bank) -> None:
    """Its head would make the job count as whole, and what the store holds as never committed."""
    old = await bank.save(1, 100)
    bank.lose_etcd()
    await bank.job_service.submissions.submit(SubmitRequest(bank.world.spec, SubmitMode.RESUME))
    with pytest.raises(Conflict, match="checkpoints digits rebuild"):
        await bank.checkpoints.place(ImportRequest("digits", 40))
    new = await bank.save(2, 40, commit=False)
    with pytest.raises(Conflict, match="checkpoints digits rebuild"):
        await last(bank.checkpoints.adopt(AdoptRequest("digits", stored_path(new, "id"))))
    await bank.checkpoints.collect(CollectRequest("digits"))
    await last(bank.checkpoints.rebuild(JobRequest("digits")))
    assert set(bank.world.job().commits) == {old, new}


async def test_nothing_takes_a_job_for_whole_while_its_records_are_made_again(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write of the head would end the rebuild, and then delete checkpoints that are not recorded yet."""
    world = bank.world
    for step in range(200):
        await bank.save(1, step, commit=False)
    bank.lose_etcd()
    await bank.job_service.submissions.submit(SubmitRequest(world.spec, SubmitMode.RESUME))
    original = bank.checkpoints._context.run
    parts: list[Action] = []

    async def between(action: Action) -> None:
        await original(action)
        parts.append(action)
        if len(parts) == 1:
            world.decide()
            newest = CheckpointRef(1, 199)
            with pytest.raises(Conflict, match="records were lost"):
                await bank.checkpoints.pin("digits", newest, pinned=True)
            with pytest.raises(Conflict, match="records were lost"):
                await views(bank.checkpoints.verify(VerifyRequest("digits", (newest,))))

    monkeypatch.setattr(bank.checkpoints._context, "run", between)
    await last(bank.checkpoints.rebuild(JobRequest("digits")))
    assert len(parts) == 3
    assert len(world.job().commits) == 200


@pytest.mark.parametrize("verb", ["rebuild", "adopt"])
async def test_what_was_read_for_one_life_of_a_job_is_not_recorded_in_another(bank: Bank, verb: str) -> None:
    """Reading takes long; an operator may have submitted the job anew meanwhile."""
    world = bank.world
    await bank.save(1, 100)
    bank.end()
    new = await bank.save(2, 40, commit=False)
    stream = bank.checkpoints.adopt(AdoptRequest("digits", stored_path(new, "id")))
    if verb == "rebuild":
        bank.lose_etcd()
        await bank.job_service.submissions.submit(SubmitRequest(world.spec, SubmitMode.RESUME))
        stream = bank.checkpoints.rebuild(JobRequest("digits"))
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(operation: str, _path: str, moment: Moment) -> None:
        if operation == "crc32c" and moment is Moment.BEFORE:
            begun.set()
            await go.wait()

    bank.store.hook = slow
    reading = asyncio.ensure_future(last(stream))
    await begun.wait()
    before = world.job()
    switch = replace(before.switch.value, job_uuid="new-life", base=None)
    record = replace(before.record.value, uuid="new-life")
    world.write(put(keys.job_record("digits"), record), put(keys.switch("digits"), switch))
    world.write(DeletePrefix(keys.commits_of("digits")), Delete(keys.head("digits")))
    go.set()
    with pytest.raises(Conflict, match="submitted anew"):
        await reading
    assert world.job().commits == {}
    assert world.job().head is None
