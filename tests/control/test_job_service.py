"""Requests about jobs that the leader refuses to record (rules 2 and 12); etcd and store are in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from recovery.formats.manifest import MANIFEST_FILE
from recovery.formats.paths import stored_path
from recovery.mount.layout import live_path
from recovery.retention.claims import read_claims, take_claim
from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.contract import keys
from supervisor.contract.boundaries import Compare, Delete, Op, Put, TxnResult
from supervisor.contract.checkpoint import CheckpointRef, CommitState
from supervisor.contract.desired import JobPhase, LeaderRecord
from supervisor.contract.errors import (
    Conflict,
    CoordinationUnreachable,
    NotFound,
    StoreUnreachable,
    UserError,
)
from supervisor.contract.job.spec import CheckpointSpec, JobRecord
from supervisor.contract.observed import Gpu
from supervisor.contract.views.jobs import SubmitMode, SubmitRequest
from supervisor.control.decide.plan import put
from supervisor.control.services.jobs import JobService
from tests.control.leader import Leader, other_job


async def test_a_name_is_not_taken_twice_by_accident() -> None:
    leader = Leader()
    leader.end()
    with pytest.raises(Conflict, match="--resume"):
        await leader.job_service.submissions.submit(SubmitRequest(leader.world.spec))
    kept = leader.record("digits")
    assert kept is not None
    assert kept.uuid == "uuid"


async def test_a_checkpoint_directory_belongs_to_one_job() -> None:
    leader = Leader()
    with pytest.raises(Conflict, match="belongs to job digits"):
        await leader.job_service.submissions.submit(
            SubmitRequest(other_job(leader.world.spec.checkpoint.uri))
        )
    assert leader.record("other") is None


@pytest.mark.parametrize("mode", [SubmitMode.NEW, SubmitMode.FRESH])
@pytest.mark.parametrize(("key", "claimed"), [("heads/digits", False), ("jobs/digits", True)])
async def test_the_directory_of_a_job_that_is_left_aside_is_given_to_nobody(
    key: str, mode: SubmitMode, *, claimed: bool
) -> None:
    """Its tasks may run. Where its record cannot be read, the claim in the store tells whose it is."""
    leader = Leader()
    if claimed:
        await leader.store.prepare()
        await take_claim(leader.store, (), "uuid", "digits")
    leader.world.write(Put(key, b"{"))
    uri = "file:///link/to/it" if claimed else leader.world.spec.checkpoint.uri
    with pytest.raises(Conflict, match="job digits"):
        await leader.job_service.submissions.submit(SubmitRequest(other_job(uri), mode))
    assert leader.record("other") is None


async def test_resuming_goes_on_above_every_generation_in_etcd_and_in_the_store() -> None:
    leader = Leader()
    leader.end()
    await leader.store.prepare()
    leftover = stored_path(CheckpointRef(12, 5), "x")
    await leader.store.write_bytes(f"{leftover}/{MANIFEST_FILE}", b"damaged")
    await leader.job_service.submissions.submit(SubmitRequest(leader.world.spec, SubmitMode.RESUME))
    resumed = leader.record("digits")
    assert resumed is not None
    assert (resumed.uuid, resumed.generation_floor) == ("uuid", 12)
    leader.end()
    await leader.store.delete_tree(leftover)
    await leader.store.write_bytes(f"{live_path(15, 'p')}/x", b"")
    await leader.job_service.submissions.submit(SubmitRequest(leader.world.spec, SubmitMode.RESUME))
    above = leader.record("digits")
    assert above is not None
    assert above.generation_floor == 15, "a mounted generation that saved nothing"
    leader.end()
    await leader.store.delete_tree(".live")
    await leader.job_service.submissions.submit(SubmitRequest(leader.world.spec, SubmitMode.FRESH))
    fresh = leader.record("digits")
    assert fresh is not None
    assert (fresh.uuid, fresh.generation_floor) == ("new-uuid", 7)


async def test_a_job_that_begins_afresh_loses_no_steps_of_the_life_before() -> None:
    """They were counted as lost, and as made again."""
    leader = Leader()
    world = leader.world
    world.until(lambda: world.switch().generation == 1 and len(world.running()) == len(world.spec.tasks()))
    await leader.job_service.stop("digits")
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    for attempt, held in world.job().attempts.items():
        world.write(put(keys.attempt(attempt), replace(held.value, last_step=97)))
    await leader.job_service.submissions.submit(SubmitRequest(world.spec, SubmitMode.FRESH))
    world.until(
        lambda: world.switch().generation == 2 and "switched" in world.incidents()["submit"].phases_ms
    )
    submitted = world.incidents()["submit"]
    assert (submitted.from_step, submitted.lost_steps) == (-1, -1)


async def test_a_restart_from_a_checkpoint_names_one_that_is_there() -> None:
    leader = Leader()
    world = leader.world
    world.until(lambda: world.switch().generation == 1 and not world.switch().closing)
    old, new = world.commit(1, 100), world.commit(1, 200)
    with pytest.raises(NotFound, match="no checkpoint of step 150; it has those of the steps 100, 200"):
        await leader.job_service.restart("digits", from_ref=CheckpointRef(0, 150))
    with pytest.raises(NotFound, match="no task digits/worker:7; tasks of this job: digits/chief:0, "):
        await leader.job_service.restart("digits", "worker.7")
    with pytest.raises(UserError, match="whole job"):
        await leader.job_service.restart("digits", "worker.0", from_ref=old)
    await leader.job_service.restart("digits", from_ref=CheckpointRef(0, 100))
    intent = world.job().intent.value
    assert (intent.restart_from, intent.restart_serial) == (old, 1)
    key = keys.commit("digits", new)
    world.write(
        put(key, replace(world.job().commits[new].value, state=CommitState.QUARANTINED, reason="bad"))
    )
    with pytest.raises(Conflict, match="quarantined: bad"):
        await leader.job_service.restart("digits", from_ref=new)
    world.write(put(key, replace(world.job().commits[new].value, state=CommitState.COLLECTING)))
    with pytest.raises(NotFound):
        await leader.job_service.restart("digits", from_ref=new)


async def test_a_checkpoint_is_pinned_by_a_transaction_that_rewrites_the_head() -> None:
    leader = Leader()
    world = leader.world
    ref = world.commit(1, 100)
    before = world.job().head
    await leader.job_service.checkpoints.pin("digits", CheckpointRef(0, 100), pinned=True)
    assert world.job().commits[ref].value.pinned
    after = world.job().head
    assert before is not None
    assert after is not None
    assert after.value.serial == before.value.serial + 1
    await leader.job_service.checkpoints.pin("digits", ref, pinned=False)
    assert not world.job().commits[ref].value.pinned


async def test_what_was_accepted_is_known_to_whoever_asks_next() -> None:
    """The leader's snapshot follows etcd by a watch, which may be late."""
    leader = Leader()
    late = [leader.world.snapshot()] * 9
    service = JobService(
        MemoryCoordination(leader.world.store),
        leader._open_store,
        BootClock(),
        lambda: "new-uuid",
        lambda: LeaderRecord("s", "", 1),
        lambda: late.pop() if late else leader.world.snapshot(),
    )
    await service.submissions.submit(SubmitRequest(other_job()))
    shown = service.snapshot()
    assert shown is not None
    assert "other" in shown.jobs


async def test_a_deposed_leader_records_no_job() -> None:
    leader = Leader()
    stale = leader.world.snapshot()
    leader.world.new_leader()
    service = JobService(
        MemoryCoordination(leader.world.store),
        leader._open_store,
        BootClock(),
        lambda: "new-uuid",
        lambda: None,
        lambda: stale,
    )
    with pytest.raises(Conflict):
        await service.submissions.submit(SubmitRequest(other_job()))
    assert leader.record("other") is None


async def test_a_job_that_has_used_up_its_time_is_not_started_again_to_fail_at_once() -> None:
    leader = Leader()
    record = leader.world.job().record.value
    spec = replace(record.spec, limits=replace(record.spec.limits, wall_time_ms=60_000))
    leader.world.write(put(keys.job_record("digits"), replace(record, spec=spec, ran_ms=61_000)))
    leader.world.commit(0, 100)
    leader.end()
    for ask in (
        leader.job_service.start("digits"),
        leader.job_service.restart("digits", from_ref=CheckpointRef(0, 100)),
    ):
        with pytest.raises(
            Conflict, match=r"all that limits.wall_time allows \(60 s\); submit it with --resume"
        ):
            await ask
    assert leader.world.job().intent.value.restart_serial == 0


@pytest.mark.parametrize(
    "spelt",
    [
        "/checkpoints/digits",
        "file:///checkpoints//digits/",
        "file:///checkpoints/./digits",
        "file:///checkpoints/d%69gits",
        "file://localhost/checkpoints/digits",
    ],
)
async def test_a_directory_is_the_same_however_it_is_spelt(spelt: str) -> None:
    leader = Leader()
    for asked in (leader.job_service.submissions.submit, leader.job_service.submissions.validate):
        with pytest.raises(Conflict, match="belongs to job digits; two jobs cannot share one") as caught:
            await asked(SubmitRequest(other_job(spelt)))
        assert caught.value.field == ("checkpoint", "uri")
    assert leader.record("other") is None


@pytest.mark.parametrize("uri", ["hdfs://nn:1/tfsup", "hdfs://nn:1/tfsup/code", "hdfs://NN:1/tfsup/code/a"])
async def test_a_job_keeps_out_of_the_store_of_code(uri: str) -> None:
    leader = Leader()
    leader.job_service.uploads.store = "hdfs://tfsup@nn:1/tfsup/code"
    for asked in (leader.job_service.submissions.submit, leader.job_service.submissions.validate):
        with pytest.raises(UserError, match="are within one another; use another directory") as caught:
            await asked(SubmitRequest(other_job(uri)))
        assert caught.value.field == ("checkpoint", "uri")
    await leader.job_service.submissions.submit(SubmitRequest(other_job("hdfs://nn:1/tfsup/coder")))


async def test_a_namenode_is_its_nameservice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {
        "dfs.nameservices": "ns1",
        "dfs.ha.namenodes.ns1": "a,b",
        "dfs.namenode.rpc-address.ns1.a": "nn-a:8020",
        "dfs.namenode.rpc-address.ns1.b": "nn-b:8020",
    }
    lines = (f"<property><name>{n}</name><value>{v}</value></property>" for n, v in properties.items())
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{''.join(lines)}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    leader = Leader()
    await leader.job_service.submissions.submit(SubmitRequest(other_job("hdfs://ns1/jobs/a")))
    for spelt in ("hdfs://nn-a:8020/jobs/a", "hdfs://NN-B:08020/jobs//a/"):
        taken = replace(other_job(spelt), name="another")
        with pytest.raises(Conflict, match="belongs to job other"):
            await leader.job_service.submissions.submit(SubmitRequest(taken))
    leader.stores["hdfs://nn-c:8020/jobs/a"] = MemoryCheckpointStore()
    await leader.job_service.submissions.submit(
        SubmitRequest(replace(other_job("hdfs://nn-c:8020/jobs/a"), name="another"))
    )


async def test_a_directory_that_another_job_knows_by_another_name_is_found_out() -> None:
    leader = Leader()
    await leader.job_service.submissions.submit(SubmitRequest(other_job("file:///mnt/jobs")))
    linked = replace(other_job("file:///link/to/jobs"), name="third")
    for mode in (SubmitMode.NEW, SubmitMode.FRESH):
        with pytest.raises(Conflict, match="is the directory of job other, which knows it by another name"):
            await leader.job_service.submissions.submit(SubmitRequest(linked, mode))
    assert leader.record("third") is None


async def test_a_directory_that_another_cluster_has_taken_is_found_out_before_it_holds_a_checkpoint() -> None:
    leader = Leader()
    await leader.store.prepare()
    await take_claim(leader.store, (), "far-away", "theirs")
    with pytest.raises(Conflict, match="was taken by job theirs, which this cluster does not know"):
        await leader.job_service.submissions.submit(SubmitRequest(other_job()))
    await leader.job_service.submissions.submit(SubmitRequest(other_job(), SubmitMode.FRESH))
    assert {(each.job_uuid, each.job) for each in await read_claims(leader.store)} == {
        ("far-away", "theirs"),
        ("new-uuid", "other"),
    }
    leader.world.write(
        put(
            keys.switch("other"),
            replace(leader.world.snapshot().jobs["other"].switch.value, phase=JobPhase.FAILED),
        )
    )
    await leader.job_service.submissions.submit(SubmitRequest(other_job(), SubmitMode.RESUME))


async def test_a_job_remembers_the_lives_that_were_ended_for_good() -> None:
    leader = Leader()
    leader.end()
    await leader.job_service.submissions.submit(SubmitRequest(leader.world.spec, SubmitMode.FRESH))
    record = leader.record("digits")
    assert record is not None
    assert (record.uuid, record.former) == ("new-uuid", ("uuid",))
    leader.end()
    await leader.job_service.submissions.submit(SubmitRequest(leader.world.spec, SubmitMode.RESUME))
    resumed = leader.record("digits")
    assert resumed is not None
    assert (resumed.uuid, resumed.former) == ("new-uuid", ("uuid",))


async def test_of_two_clusters_that_take_a_directory_at_once_one_is_told() -> None:
    """The other cluster's claim comes after this one has looked, and before it takes its own."""
    leader, theirs = Leader(), Leader()
    store = Meanwhile()
    leader.store = theirs.store = store
    store.then = lambda: theirs.job_service.submissions.submit(SubmitRequest(other_job("file:///mnt/jobs")))
    with pytest.raises(Conflict, match="another job takes this directory in the very same moment"):
        await leader.job_service.submissions.submit(SubmitRequest(other_job()))
    assert leader.record("other") is None
    assert theirs.record("other") is not None
    assert [each.number for each in await read_claims(store)] == [1]


async def test_a_job_that_is_not_recorded_leaves_no_claim() -> None:
    leader = Leader()
    store = leader.store = Meanwhile()

    async def its_name_is_taken() -> None:
        leader.world.write(put(keys.job_record("other"), JobRecord(other_job(), "another", 0)))

    store.then = its_name_is_taken
    with pytest.raises(Conflict, match="changed at the same moment"):
        await leader.job_service.submissions.submit(SubmitRequest(other_job()))
    assert await read_claims(store) == ()


async def test_a_job_that_asks_for_no_gpus_where_there_are_some_is_told_so() -> None:
    leader = Leader()
    assert (await leader.job_service.submissions.validate(SubmitRequest(other_job()))).cautions == ()
    for node in ("n0", "n1"):
        leader.world.see_gpus(node, *(Gpu(f"GPU-{node}", 0, "T4", 1 << 34) for _ in range(node == "n1")))
    (caution,) = (await leader.job_service.submissions.validate(SubmitRequest(other_job()))).cautions
    assert caution.startswith("no role asks for GPUs, so that its tasks see none of those of n1;")
    first, *rest = other_job().roles
    asks = replace(other_job(), roles=(replace(first, resources=replace(first.resources, gpus=1)), *rest))
    assert (await leader.job_service.submissions.validate(SubmitRequest(asks))).cautions == ()
    assert (await leader.job_service.submissions.submit(SubmitRequest(other_job()))).cautions == (caution,)


class Silent(MemoryCoordination):
    """Does not answer."""

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        """Raises, and writes nothing."""
        raise CoordinationUnreachable("no answer")


async def test_a_submit_that_was_not_finished_is_told_of_and_fresh_takes_its_directory_over() -> None:
    """Its record may yet come to be known, so that its claim has to stay."""
    leader = Leader(Silent)
    with pytest.raises(CoordinationUnreachable):
        await leader.job_service.submissions.submit(SubmitRequest(other_job()))
    again = leader.beside(uuid="newer-uuid")
    with pytest.raises(Conflict, match=r"a submit of other was not finished \(--fresh takes"):
        await again.submissions.submit(SubmitRequest(other_job()))
    await again.submissions.submit(SubmitRequest(other_job(), SubmitMode.FRESH))
    assert leader.record("other") is not None


class Meanwhile(MemoryCheckpointStore):
    """Something happens right before the first claim is taken."""

    then: Callable[[], Awaitable[object]] | None = None

    async def write_bytes(self, path: str, data: bytes) -> None:
        then, self.then = self.then, None
        if then is not None:
            await then()
        await super().write_bytes(path, data)


async def test_what_a_stranger_left_in_the_directory_is_not_mixed_with_a_new_job() -> None:
    leader = Leader()
    await leader.store.prepare()
    unknown = stored_path(CheckpointRef(3, 5), "x")
    await leader.store.write_bytes(f"{unknown}/{MANIFEST_FILE}", b"damaged")
    with pytest.raises(Conflict, match="already holds 1 checkpoints of nobody known"):
        await leader.job_service.submissions.submit(SubmitRequest(other_job()))
    await leader.job_service.submissions.submit(SubmitRequest(other_job(), SubmitMode.FRESH))
    begun = leader.record("other")
    assert begun is not None
    assert begun.generation_floor == 3


async def test_a_generation_that_nobody_has_trained_is_no_floor() -> None:
    """It would leave no generation to go on with."""
    leader = Leader()
    await leader.store.prepare()
    absurd = stored_path(CheckpointRef(99_999_999, 5), "x")
    await leader.store.write_bytes(f"{absurd}/{MANIFEST_FILE}", b"damaged")
    for mode in SubmitMode:
        with pytest.raises(Conflict, match="generation 99999999, which no training has left; move it away"):
            await leader.job_service.submissions.submit(SubmitRequest(other_job(), mode))


async def test_a_store_that_is_not_there_is_not_made_where_checkpoints_are_known() -> None:
    """A mount that is missing must not become an empty store, in which every checkpoint would be bad."""
    leader = Leader()
    leader.world.commit(0, 100)
    leader.end()
    with pytest.raises(StoreUnreachable):
        await leader.job_service.submissions.submit(SubmitRequest(leader.world.spec, SubmitMode.RESUME))
    with pytest.raises(StoreUnreachable):
        await leader.job_service.submissions.submit(SubmitRequest(other_job(), SubmitMode.RESUME))
    assert not leader.store.disk.prepared


async def test_a_job_that_moves_to_another_directory_must_find_its_checkpoints_there() -> None:
    leader = Leader()
    ref = leader.world.commit(1, 100)
    path = leader.world.job().commits[ref].value.path
    leader.end()
    await leader.store.prepare()
    moved = replace(leader.world.spec, checkpoint=CheckpointSpec("file:///new"))
    with pytest.raises(Conflict, match=f"lacks 1 checkpoints of the job, {path} among them; copy all of"):
        await leader.job_service.submissions.submit(SubmitRequest(moved, SubmitMode.RESUME))


async def test_a_resume_above_what_others_left_still_begins_from_the_newest_commit() -> None:
    leader = Leader()
    world = leader.world
    world.start()
    world.commit(1, 100)
    newest = world.commit(1, 200)
    world.write(put(keys.switch("digits"), replace(world.switch(), phase=JobPhase.STOPPED)))
    await leader.store.prepare()
    leftover = stored_path(CheckpointRef(12, 5), "x")
    await leader.store.write_bytes(f"{leftover}/{MANIFEST_FILE}", b"damaged")
    for report in world.job().attempts.values():
        world.write(Delete(report.key))
    await leader.job_service.submissions.submit(SubmitRequest(world.spec, SubmitMode.RESUME))
    world.until(lambda: world.switch().phase is JobPhase.RUNNING)
    assert (world.switch().generation, world.switch().base) == (13, newest)


async def test_a_job_on_hold_is_recorded_and_started_when_somebody_asks() -> None:
    leader = Leader()
    world = leader.world
    leader.end()
    accepted = await leader.job_service.submissions.submit(
        SubmitRequest(world.spec, SubmitMode.FRESH, hold=True)
    )
    assert "on hold" in accepted.detail
    for _ in range(5):
        world.tick()
    assert world.switch().phase is JobPhase.STOPPED
    await leader.job_service.start("digits")
    world.until(lambda: world.switch().phase is JobPhase.RUNNING)


async def test_what_is_kept_of_a_failed_job_is_ended_by_a_stop_and_before_it_is_submitted_again() -> None:
    leader = Leader()
    leader.end()
    kept = replace(leader.world.switch(), phase=JobPhase.FAILED, held=("worker.0",))
    leader.world.write(put(keys.switch("digits"), kept))
    with pytest.raises(Conflict, match="kept for inspection; `supervisorctl stop digits` ends them"):
        await leader.job_service.submissions.submit(SubmitRequest(leader.world.spec, SubmitMode.RESUME))
    answer = await leader.job_service.stop("digits")
    assert "kept of it for inspection is ended" in answer.detail
    assert leader.world.switch() == replace(kept, held=())
    await leader.job_service.submissions.submit(SubmitRequest(leader.world.spec, SubmitMode.RESUME))


@pytest.mark.parametrize(
    ("given", "kept"), [(("name", "roles.worker.count"), 2), (("roles.worker.env",) * 1000, 0)]
)
async def test_the_fields_that_a_job_file_gives_are_recorded_unless_they_are_too_many(
    given: tuple[str, ...], kept: int
) -> None:
    leader = Leader()
    await leader.job_service.submissions.submit(SubmitRequest(other_job(), given=given))
    record = leader.record("other")
    assert record is not None
    assert record.given == given[:kept]
