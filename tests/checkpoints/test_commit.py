"""Rule 7: committing, and every way in which a commit must not happen, or must not be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from recovery.commit.commit import Committer
from recovery.commit.outbox import TakenCheckpoint, drop_copy, prune_outbox
from recovery.families.commit_rule import CommitRefused, Committed, RefusalReason
from recovery.formats.paths import STAGING, TRASH, staging_path
from recovery.retention.collect import scan_store
from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.etcd.memory import Fault, MemoryCoordination, MemoryStore
from supervisor.contract import keys
from supervisor.contract.boundaries import (
    Compare,
    Coordination,
    Delete,
    Moved,
    Op,
    Put,
    StoredFile,
    TxnResult,
    unwatched,
)
from supervisor.contract.checkpoint import CheckpointRef, CommitHead, CommitRecord, CommitState, Verify
from supervisor.contract.codec import encode
from supervisor.contract.desired import JobPhase, JobSwitch
from supervisor.contract.errors import (
    BadCheckpoint,
    CoordinationUnreachable,
    InvariantBroken,
    StoreUnreachable,
)
from tests.checkpoints.world import (
    JOB,
    NODE,
    QUIET_MS,
    UUID,
    Crash,
    InlineExecutor,
    PointedStore,
    StrikeAfter,
    World,
    contents,
    no_point,
    save,
    snapshot,
)

REF = CheckpointRef(1, 120)
SAVED_BY_ANOTHER = JobSwitch(JOB, UUID, JobPhase.RUNNING, 1, "plan", saver="worker.1")


async def restorable(world: World, tmp_path: Path, last: int = 100) -> dict[CheckpointRef, dict[str, bytes]]:
    """The last committed checkpoints, staged on a machine that has nothing but the store."""
    found = {}
    for number, record in enumerate((await world.records())[-last:]):
        if record.state is CommitState.COMMITTED:
            parent = tmp_path / f"elsewhere-{world.next_id()}-{number}"
            staged = await world.stager(parent).stage_base(record, 99, "x", QUIET_MS, fresh=True)
            found[record.ref] = snapshot(staged.directory)
            found[record.ref].pop("checkpoint")
    return found


async def test_a_commit_is_a_record_and_a_new_head(world: World, tmp_path: Path) -> None:
    await world.put_switch(1)
    identity = await world.register()
    outcome = await world.commit(await world.take(REF), identity)
    assert isinstance(outcome, Committed)
    assert await world.records() == (outcome.record,)
    assert await world.head() == CommitHead(1, REF)
    assert outcome.record.size == sum(len(data) for data in contents(REF).values())
    assert (outcome.record.node, outcome.record.incarnation) == (NODE, "i1")
    second = await world.commit(await world.take(CheckpointRef(1, 130)), identity)
    assert isinstance(second, Committed)
    assert await world.head() == CommitHead(2, CheckpointRef(1, 130))
    assert await restorable(world, tmp_path) == {ref: contents(ref) for ref in (REF, CheckpointRef(1, 130))}
    assert (await world.store.list(".staging")).directories == ()


async def test_a_commit_is_made_once(world: World) -> None:
    await world.put_switch(1)
    identity = await world.register()
    taken = await world.take(REF)
    first = await world.commit(taken, identity)
    assert await world.commit(taken, identity) == first
    assert await world.head() == CommitHead(1, REF)


async def test_a_late_commit_of_an_old_generation_fails(world: World) -> None:
    await world.put_switch(1)
    identity = await world.register()
    taken = await world.take(REF)
    await world.put_switch(2)
    outcome = await world.commit(taken, identity)
    assert isinstance(outcome, CommitRefused)
    assert outcome.reason is RefusalReason.GENERATION
    assert (await world.store.list("")).directories == (), "nothing is uploaded in vain"


@pytest.mark.parametrize("reason", list(RefusalReason))
async def test_the_world_changes_during_the_upload(world: World, reason: RefusalReason) -> None:
    """The frozen writer of rule 5: everything is uploaded, then it is refused by the transaction."""
    await world.put_switch(1)
    identity = replace(await world.register(), member="worker.0")
    taken = await world.take(REF)

    async def change(point: str) -> None:
        if point != "after rename":
            return
        match reason:
            case RefusalReason.SAVER:
                await world.coordination.txn((), (Put(keys.switch(JOB), encode(SAVED_BY_ANOTHER)),))
            case RefusalReason.CLOSING:
                await world.put_switch(1, closing=True)
            case RefusalReason.GENERATION:
                await world.put_switch(2)
            case RefusalReason.INCARNATION:
                await world.register("i2")
            case RefusalReason.WITHDRAWN | RefusalReason.TAKEN:
                other = CommitRecord(UUID, REF, None, "p", 1, "0" * 8, NODE, "i0", 0)
                if reason is RefusalReason.WITHDRAWN:
                    other = replace(other, state=CommitState.QUARANTINED)
                await world.coordination.txn((), (Put(keys.commit(JOB, REF), encode(other)),))

    store = world.store
    world.store = PointedStore(store, change)
    outcome = await world.commit(taken, identity)
    assert isinstance(outcome, CommitRefused)
    assert outcome.reason is reason
    assert await world.head() is None
    assert len((await scan_store(store)).found) == 1, "it waits to be collected"


async def test_a_switch_that_is_only_rewritten_does_not_refuse(world: World) -> None:
    await world.put_switch(1)
    identity = await world.register()
    taken = await world.take(REF)
    rewrites = 0

    async def rewrite(point: str) -> None:
        nonlocal rewrites
        if point == "after rename":
            rewrites += 1
            await world.put_switch(1)

    world.store = PointedStore(world.store, rewrite)
    assert isinstance(await world.commit(taken, identity), Committed)
    assert rewrites == 1


async def test_the_task_that_the_switch_names_as_saver_commits(world: World) -> None:
    await world.coordination.txn((), (Put(keys.switch(JOB), encode(SAVED_BY_ANOTHER)),))
    expected = replace(await world.register(), member="worker.0")
    taken = await world.take(REF)
    refused = await world.commit(taken, expected)
    assert isinstance(refused, CommitRefused)
    assert refused.reason.may_pass, "the switch may name it again"
    assert isinstance(await world.commit(taken, replace(expected, member="worker.1")), Committed)


async def test_closing_that_is_given_up(world: World) -> None:
    await world.put_switch(1, closing=True)
    identity = await world.register()
    committer = world.committer()
    committer.offer(await world.take(REF))
    outcome = await committer.run_once(identity, "a", QUIET_MS)
    assert isinstance(outcome, CommitRefused)
    waiting = committer.pending
    assert waiting is not None
    await world.put_switch(1)
    assert isinstance(await committer.run_once(identity, "b", QUIET_MS), Committed)
    assert committer.pending is None
    assert await committer.run_once(identity, "c", QUIET_MS) is None


async def test_a_commit_waits_for_the_key_of_its_node(world: World) -> None:
    """Its lease had run out just as the program ended, and the last save was lost (seed 7770524)."""
    await world.put_switch(1)
    identity = await world.register()
    committer = world.committer()
    committer.offer(await world.take(REF))
    await world.coordination.txn((), (Delete(keys.node(NODE)),))
    refused = await committer.run_once(identity, "a", QUIET_MS)
    assert isinstance(refused, CommitRefused)
    assert refused.reason is RefusalReason.INCARNATION
    assert committer.pending is not None
    again = await world.register()
    assert isinstance(await committer.run_once(again, "b", QUIET_MS), Committed)
    assert committer.pending is None


async def test_what_was_refused_is_deleted_at_the_next_commit(world: World) -> None:
    """A whole directory that no record will ever name, as long as the generation lasts."""
    await world.put_switch(1)
    identity = await world.register()

    async def close(point: str) -> None:
        if point == "after rename":
            await world.put_switch(1, closing=True)

    store = world.store
    world.store = PointedStore(store, close)
    committer = world.committer()
    committer.offer(await world.take(REF))
    assert isinstance(await committer.run_once(identity, "a", QUIET_MS), CommitRefused)
    assert len((await scan_store(store)).found) == 1
    world.store.point = no_point
    await world.put_switch(1)
    done = await committer.run_once(identity, "b", QUIET_MS)
    assert isinstance(done, Committed)
    assert [one.path for one in (await scan_store(store)).found] == [done.record.path]


async def test_another_save_of_the_same_step_is_not_taken_for_the_one_that_is_committed(world: World) -> None:
    """Another node may have saved it, after its task became the saver."""
    await world.put_switch(1)
    identity = await world.register()
    assert isinstance(await world.commit(await world.take(REF), identity), Committed)
    drop_copy(world.parent, REF)
    save(world.parent, REF, "another life")
    other = await world.watcher(REF.generation).look(final=True)
    assert isinstance(other, TakenCheckpoint)
    outcome = await world.commit(other, identity)
    assert isinstance(outcome, CommitRefused)
    assert outcome.reason is RefusalReason.TAKEN


async def test_what_is_withdrawn_before_its_commit_is_known_stays_in_the_store(world: World) -> None:
    """Its record still names it: an operator may find it good after all."""
    await world.put_switch(1)
    identity = await world.register()
    inner = world.coordination

    class Withdrawing(MemoryCoordination):
        """Loses the answer to a commit, whose checkpoint is quarantined before anybody asks."""

        async def txn(
            self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
        ) -> TxnResult:
            result = await inner.txn(compares, then, otherwise)
            if compares and result.succeeded:
                (record,) = await world.records()
                bad = replace(record, state=CommitState.QUARANTINED)
                await inner.txn((), (Put(keys.commit(JOB, REF), encode(bad)),))
                raise CoordinationUnreachable("the answer was lost")
            return result

    committer = Committer(world.store, Withdrawing(MemoryStore()), world.clock, executor=world.executor)
    committer.offer(await world.take(REF))
    outcome = await committer.run_once(identity, "a", QUIET_MS)
    assert isinstance(outcome, CommitRefused)
    assert outcome.reason is RefusalReason.WITHDRAWN
    await committer.tidy(REF.generation)
    (record,) = await world.records()
    assert [one.path for one in (await scan_store(world.store)).found] == [record.path]


@pytest.mark.parametrize("commits", [True, False])
async def test_what_an_agent_that_died_has_left_is_deleted_by_the_next_one(
    world: World, commits: bool
) -> None:
    await world.put_switch(1)
    identity = await world.register()
    taken, other = await world.take(REF), staging_path(CheckpointRef(2, 5), "other")
    await world.store.write_bytes(f"{other}/f", b"of another generation")
    store = world.store

    def die(point: str) -> None:
        if point == "before rename":
            raise Crash(point)

    world.store = PointedStore(store, die)
    with pytest.raises(Crash):
        await world.commit(taken, identity)
    world.store = store
    assert len((await store.list(STAGING)).directories) == 2
    successor = world.committer()
    if commits:
        successor.offer(taken)
        assert isinstance(await successor.run_once(identity, "later", QUIET_MS), Committed)
    else:
        await successor.tidy(REF.generation)
    assert (await store.list(STAGING)).directories == (other.rpartition("/")[2],)
    assert (await store.list(TRASH)).directories == ()


async def test_a_rename_that_happened_but_failed_leaves_no_second_copy(world: World) -> None:
    await world.put_switch(1)
    identity = await world.register()
    store, renames = world.store, 0

    def fail(point: str) -> None:
        nonlocal renames
        renames += point == "after rename"
        if point == "after rename" and renames in (1, 3, 5):  # the others take away what these have left
            raise StoreUnreachable("the answer was lost")

    world.store = PointedStore(store, fail)
    committer = world.committer()
    committer.offer(await world.take(REF))
    for number in range(3):
        with pytest.raises(StoreUnreachable):
            await committer.run_once(identity, f"a{number}", QUIET_MS)
    done = await committer.run_once(identity, "b", QUIET_MS)
    assert isinstance(done, Committed)
    assert [one.path for one in (await scan_store(store)).found] == [done.record.path]


async def test_what_somebody_cleared_away_meanwhile_is_not_committed(world: World) -> None:
    await world.put_switch(1)
    identity = await world.register()
    real, cleared = world.store, 0

    async def clear(point: str) -> None:
        nonlocal cleared
        if point == "before write_bytes" and not cleared:
            cleared += 1
            await real.delete_tree(staging_path(REF, "a"))

    world.store = PointedStore(real, clear)
    committer = world.committer()
    committer.offer(await world.take(REF))
    with pytest.raises(StoreUnreachable, match=r"has lost what was sent there.*index"):
        await committer.run_once(identity, "a", QUIET_MS)
    assert await world.records() == ()
    done = await committer.run_once(identity, "b", QUIET_MS)
    assert isinstance(done, Committed)
    assert [one.path for one in (await scan_store(real)).found] == [done.record.path]


async def test_two_commits_at_a_time_are_a_fault_of_ours(world: World) -> None:
    await world.put_switch(1)
    identity = await world.register()
    uploading, go_on = asyncio.Event(), asyncio.Event()

    async def hold(point: str) -> None:
        if point == "before upload":
            uploading.set()
            await go_on.wait()

    world.store = PointedStore(world.store, hold)
    committer = world.committer()
    committer.offer(await world.take(REF))
    first = asyncio.create_task(committer.run_once(identity, "a", QUIET_MS))
    await uploading.wait()
    with pytest.raises(InvariantBroken, match="that of g1-s"):
        await committer.run_once(identity, "b", QUIET_MS)
    go_on.set()
    assert isinstance(await first, Committed)


async def test_the_newest_pending_wins(world: World) -> None:
    committer = world.committer()
    one, two = await world.take(CheckpointRef(1, 1)), await world.take(CheckpointRef(1, 2))
    committer.offer(one)
    committer.offer(one)
    assert committer.take_skipped() == ()
    committer.offer(two)
    assert committer.take_skipped() == (one.manifest.ref,)
    committer.offer(one)
    assert committer.take_skipped() == (one.manifest.ref,)
    assert committer.pending == two


@pytest.mark.parametrize("fails", [True, False])
async def test_what_is_in_hand_is_skipped_only_if_it_fails(world: World, fails: bool) -> None:
    await world.put_switch(1)
    identity = await world.register()
    one, two = await world.take(CheckpointRef(1, 1)), await world.take(CheckpointRef(1, 2))

    async def save_again(point: str) -> None:
        if point == "after rename":
            committer.offer(two)
            assert committer.take_skipped() == ()
            if fails:
                raise StoreUnreachable("no answer")

    world.store = PointedStore(world.store, save_again)
    committer = world.committer()
    committer.offer(one)
    if fails:
        with pytest.raises(StoreUnreachable):
            await committer.run_once(identity, "a", QUIET_MS)
        assert committer.take_skipped() == (one.manifest.ref,)
    else:
        assert isinstance(await committer.run_once(identity, "a", QUIET_MS), Committed)
        assert committer.take_skipped() == ()
    assert committer.pending == two


async def test_a_refused_generation_is_not_tried_again(world: World) -> None:
    await world.put_switch(2)
    identity = await world.register()
    committer = world.committer()
    committer.offer(await world.take(REF))
    assert isinstance(await committer.run_once(identity, "a", QUIET_MS), CommitRefused)
    assert committer.pending is None


async def test_an_own_copy_that_was_damaged_is_never_committed(world: World) -> None:
    await world.put_switch(1)
    identity = await world.register()
    taken = await world.take(REF)
    index = taken.directory / "model.ckpt-120.index"
    index.write_bytes(b"X" + index.read_bytes()[1:])
    committer = world.committer()
    committer.offer(taken)
    with pytest.raises(BadCheckpoint, match="changed since it was taken"):
        await committer.run_once(identity, "a", QUIET_MS)
    assert committer.pending is None
    assert await world.records() == ()


class Forger(MemoryCheckpointStore):
    """Changes a byte: of what it is sent, or of what it keeps."""

    where = ""

    async def upload(self, source: str, path: str, moved: Moved = unwatched) -> StoredFile:
        stored = await super().upload(source, path, moved)
        if path.endswith(".index") and self.where:
            data = self.disk.files[path]
            self.disk.files[path] = b"x" + data[1:]
        return stored if self.where == "kept" else replace(stored, crc32c=await self.crc32c(path))


@pytest.mark.parametrize("verify", list(Verify), ids=lambda verify: verify.name)
@pytest.mark.parametrize("where", ["sent", "kept"])
@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_what_a_policy_finds(world: World, where: str, verify: Verify) -> None:
    """Each finds what the one before finds, and more; the sizes are always right here."""
    store = Forger()
    await store.prepare()
    world.store = store
    await world.put_switch(1)
    identity = await world.register()
    taken = await world.take(REF)
    store.where = where
    committer = Committer(store, world.coordination, world.clock, verify, world.executor)
    committer.offer(taken)
    finds = {"sent": (Verify.CRC, Verify.READBACK), "kept": (Verify.READBACK,)}
    if verify in finds[where]:
        with pytest.raises(StoreUnreachable, match="not what was sent"):
            await committer.run_once(identity, "a", QUIET_MS)
        store.where = ""
    done = await committer.run_once(identity, "b", QUIET_MS)
    assert isinstance(done, Committed)
    assert done.record.verified is verify


async def test_a_slow_store_that_stands_still_is_given_up_and_leaves_no_litter(world: World) -> None:
    await world.put_switch(1)
    identity = await world.register()
    taken = await world.take(REF)
    stuck = asyncio.Event()

    async def hang(point: str) -> None:
        if point == "before write_bytes":
            await stuck.wait()

    real = world.store
    world.store = PointedStore(real, hang)
    committer = world.committer()
    committer.offer(taken)
    with pytest.raises(StoreUnreachable, match="has not moved"):
        await committer.run_once(identity, "a", 50)
    assert (await real.list(".staging")).directories != ()
    stuck.set()
    assert isinstance(await committer.run_once(identity, "b", QUIET_MS), Committed)
    assert (await real.list(".staging")).directories == ()


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("nth", [1, 2])
async def test_an_unknown_outcome_is_found_out(world: World, fault: Fault, nth: int) -> None:
    shared = MemoryStore()
    calm = MemoryCoordination(shared)
    world.coordination = calm
    await world.put_switch(1)
    identity = await world.register()
    taken = await world.take(REF)
    calls = 0

    def strike(_: str) -> Fault | None:
        nonlocal calls
        calls += 1
        return fault if calls == nth + 1 else None

    world.coordination = MemoryCoordination(shared, rpc_deadline_ms=20, fault=strike)
    assert isinstance(await world.commit(taken, identity), Committed)
    await world.coordination.close()
    world.coordination = calm
    assert await world.head() == CommitHead(1, REF)
    await calm.close()


async def test_concurrent_committers_share_one_head(
    tmp_path: Path, world: World, coordination: Coordination
) -> None:
    """Eight committers of different steps, two of each: the head counts each commit exactly once."""
    world.coordination = coordination
    await world.put_switch(1)
    identity = await world.register()
    taken = [await world.take(CheckpointRef(1, step)) for step in range(1, 9)]
    outcomes = await asyncio.gather(*(world.commit(one, identity) for one in (*taken, *taken)))
    assert all(isinstance(outcome, Committed) for outcome in outcomes)
    assert await world.head() == CommitHead(8, CheckpointRef(1, 8))
    records = await world.records()
    assert [record.ref.step for record in records] == list(range(1, 9))
    assert {outcome.record for outcome in outcomes if isinstance(outcome, Committed)} == set(records)
    assert set(await restorable(world, tmp_path)) == {one.manifest.ref for one in taken}


async def test_a_flip_and_commits_race(world: World, coordination: Coordination) -> None:
    """A leader that closes with the head that it read has seen every commit that was ever made."""
    world.coordination = coordination
    await world.put_switch(1)
    identity = await world.register()
    taken = [await world.take(CheckpointRef(1, step)) for step in range(1, 7)]

    async def close_soon() -> CommitHead | None:
        async with asyncio.timeout(10):
            async for _ in world.coordination.watch(keys.head(JOB), 1):
                if (await world.head()) is not None:
                    break
        await world.put_switch(1, closing=True)
        return await world.head()

    *outcomes, seen = await asyncio.gather(*(world.commit(one, identity) for one in taken), close_soon())
    assert await world.head() == seen
    assert isinstance(seen, CommitHead)
    assert len(await world.records()) == seen.serial == sum(isinstance(one, Committed) for one in outcomes)


async def test_prune_outbox(world: World) -> None:
    for step in (1, 2, 3):
        await world.take(CheckpointRef(1, step))
    prune_outbox(world.parent, [CheckpointRef(1, 1)], CheckpointRef(1, 3))
    kept = {path.name for path in (world.parent / ".outbox").iterdir()}
    assert kept == {"g1-s1", "g1-s3"}, "what is newer may have been taken meanwhile"
    prune_outbox(world.parent / "absent", [], CheckpointRef(1, 3))


# A crash between any two effects.


@pytest.mark.parametrize("kind", [Crash, StoreUnreachable])
async def test_a_crash_anywhere_in_a_commit(world: World, tmp_path: Path, kind: type[BaseException]) -> None:
    """After each: no half checkpoint can be restored, and a successor commits what was taken."""
    await world.put_switch(1)
    identity = await world.register()
    store = world.store
    survived = False
    crashes = 0
    before: dict[CheckpointRef, dict[str, bytes]] = {}
    while not survived:
        ref = CheckpointRef(1, crashes + 1)
        save(world.parent, ref)
        strike = StrikeAfter(crashes, kind)
        world.store, world.executor = PointedStore(store, strike), InlineExecutor(strike)
        try:
            taken = await world.watcher(1).look(final=True)
            assert isinstance(taken, TakenCheckpoint)
            await world.commit(taken, identity)
            survived = True
        except kind:
            crashes += 1
        world.store, world.executor = store, InlineExecutor()
        assert set(await restorable(world, tmp_path, last=2)) <= {*before, ref}
        again = await world.watcher(1).look(final=True)
        assert isinstance(again, TakenCheckpoint)
        assert isinstance(await world.commit(again, identity), Committed)
        before |= {ref: contents(ref)}
    assert await restorable(world, tmp_path) == before
    assert crashes >= 15, "every effect was struck"
