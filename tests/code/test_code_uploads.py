"""Uploads: whole or not there, under the leader token, and gone when no job needs them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace

import pytest

from supervisor.adapters.etcd.memory import Fault, MemoryCoordination, no_fault
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import BULK, Delete
from supervisor.contract.code import CHUNK_BYTES, MAX_PACKED_BYTES, CodePart, ShippedCode
from supervisor.contract.errors import Conflict, CoordinationFull, Unreachable, UserError
from supervisor.contract.job.spec import CodeRef, JobRecord, JobSpec
from supervisor.control.decide.jobs import code_gc
from supervisor.control.decide.plan import put
from supervisor.control.services import code_uploads
from supervisor.control.services.code_uploads import CodeUploads
from tests.control.world import World
from tests.support.builders import code_archive, job_spec


def part(ref: CodeRef, data: bytes, index: int) -> CodePart:
    piece = data[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
    return CodePart(ref.digest, ref.size, index, base64.b64encode(piece).decode())


class Leader:
    """The leader's code uploads over a world, whose clock and leader a test can change."""

    def __init__(self, fault: Callable[[str], Fault | None] = no_fault, spec: JobSpec | None = None) -> None:
        self.world = World(spec)
        self.coordination = MemoryCoordination(self.world.store, fault=fault, rpc_deadline_ms=50)
        self.uploads = CodeUploads(self.coordination, self.world.snapshot)

    async def upload(self, ref: CodeRef, data: bytes, *indexes: int) -> bool:
        state = [(await self.uploads.put(part(ref, data, index))).complete for index in indexes]
        return state[-1]

    def record(self, ref: CodeRef) -> ShippedCode | None:
        found = self.world.store.read(keys.shipped(ref.digest))
        return codec.decode(ShippedCode, found[0].value) if found else None

    def chunks(self, ref: CodeRef) -> int:
        return len(self.world.store.select(keys.chunks_of(ref.digest)))

    def tidy(self, after_ms: int = 0) -> list[str]:
        """One look of the leader's housekeeping; what it has removed."""
        self.world.now_ms += after_ms
        actions = code_gc.tidy(self.world.snapshot())
        for action in actions:
            assert self.world.store.commit(action.compares, action.ops, []).succeeded
        return [action.fields["digest"] for action in actions]


async def test_it_is_complete_with_its_last_chunk_and_not_before() -> None:
    leader = Leader()
    ref, data = code_archive(2 * CHUNK_BYTES + 5)
    assert not (await leader.uploads.find(ref)).complete
    assert not await leader.upload(ref, data, 0, 1)
    assert leader.record(ref) == ShippedCode(ref.digest, ref.size)
    assert not (await leader.uploads.find(ref)).complete
    with pytest.raises(Conflict, match="submit it again"):
        await leader.uploads.require(ref)
    assert await leader.upload(ref, data, 2)
    assert (await leader.uploads.find(ref)).complete
    compare = await leader.uploads.require(ref)
    assert leader.world.store.commit([compare], [], []).succeeded


async def test_every_call_may_be_repeated() -> None:
    leader = Leader()
    ref, data = code_archive(CHUNK_BYTES + 1)
    assert await leader.upload(ref, data, 0, 0, 1, 1, 0)
    assert leader.chunks(ref) == 2


async def test_what_is_not_whole_is_never_complete() -> None:
    leader = Leader()
    ref, data = code_archive(2 * CHUNK_BYTES)
    with pytest.raises(Conflict, match=r"chunk 0 of code .* has not arrived"):
        await leader.upload(ref, data, 1)
    other = bytes(len(data))
    with pytest.raises(UserError, match="another sha256"):
        await leader.upload(ref, other, 0, 1)
    assert leader.record(ref) == ShippedCode(ref.digest, ref.size)
    assert await leader.upload(ref, data, 0, 1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda given: replace(given, digest="../../etc"), "is not a sha256"),
        (lambda given: replace(given, digest="A" * 64), "is not a sha256"),
        (lambda given: replace(given, size=0), "code of 0 bytes"),
        (lambda given: replace(given, size=MAX_PACKED_BYTES + 1), f"1 to {MAX_PACKED_BYTES} are possible"),
        (lambda given: replace(given, index=1), "has no chunk 1"),
        (lambda given: replace(given, index=-1), "has no chunk -1"),
        (lambda given: replace(given, data="?"), "is not base64"),
        (lambda given: replace(given, data="MTI="), "has 2 bytes instead of 100"),
    ],
)
async def test_a_part_that_contradicts_itself_is_refused(
    change: Callable[[CodePart], CodePart], told: str
) -> None:
    leader = Leader()
    ref, data = code_archive(100)
    with pytest.raises(UserError, match=told):
        await leader.uploads.put(change(part(ref, data, 0)))
    assert leader.record(ref) is None


async def test_a_deposed_leader_writes_nothing() -> None:
    leader = Leader()
    ref, data = code_archive(100)
    leader.world.write(Delete(leader.world.snapshot().token.key))
    with pytest.raises(Unreachable):
        await leader.upload(ref, data, 0)
    assert leader.record(ref) is None
    assert leader.chunks(ref) == 0


async def test_an_answer_that_was_lost_is_asked_for_again() -> None:
    faults = iter([Fault.LOST_REPLY, None, Fault.LOST_REQUEST, Fault.LOST_REPLY])
    leader = Leader(lambda call: next(faults, None) if call == "txn" else None)
    ref, data = code_archive(100)
    assert await leader.upload(ref, data, 0)


async def test_the_cluster_holds_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_uploads, "MAX_ALL_BYTES", 250)
    leader = Leader()
    for seed in (1, 2):
        assert await leader.upload(*code_archive(100, seed), 0)
    with pytest.raises(CoordinationFull, match=r"ship less with code\.exclude"):
        await leader.upload(*code_archive(100, 3), 0)


async def test_what_no_job_needs_goes_after_a_while_half_uploads_too() -> None:
    leader = Leader()
    whole, data = code_archive(100)
    half, more = code_archive(2 * CHUNK_BYTES)
    await leader.upload(whole, data, 0)
    await leader.upload(half, more, 0)
    assert leader.tidy() == []
    assert leader.tidy(code_gc.KEPT_UNUSED_MS - 1) == []
    # Who is about to submit it has asked for it, and has its while from then on.
    assert (await leader.uploads.find(whole)).complete
    assert leader.tidy(1) == [half.digest]
    assert leader.tidy(code_gc.KEPT_UNUSED_MS) == [whole.digest]
    assert leader.world.store.select(BULK) == ()
    assert leader.record(whole) is None


async def test_what_a_job_or_a_plan_names_stays() -> None:
    first, second = code_archive(100, 1), code_archive(100, 2)
    third = code_archive(100, 3)
    leader = Leader(spec=replace(job_spec(), code=first[0]))
    for each in (first, second, third):
        await leader.upload(*each, 0)
    world = leader.world.start()
    plan = world.job().plan_in_force
    assert plan is not None
    assert plan.value.code == first[0].digest
    assigned = [held.value.code for held in world.job().assignments.values()]
    assert assigned == [first[0]] * len(assigned)
    # Submitted again with other code: what runs still is the first.
    resumed = JobRecord(replace(job_spec(), code=second[0]), "uuid", 0)
    world.write(put(keys.job_record("digits"), resumed))
    assert leader.tidy(2 * code_gc.KEPT_UNUSED_MS) == [third[0].digest]


async def test_a_removal_and_a_submit_cannot_both_win() -> None:
    leader = Leader()
    ref, data = code_archive(100)
    await leader.upload(ref, data, 0)
    compare = await leader.uploads.require(ref)
    leader.world.snapshot()
    leader.world.now_ms += code_gc.KEPT_UNUSED_MS
    (removal,) = code_gc.tidy(leader.world.snapshot())
    assert leader.world.store.commit(removal.compares, removal.ops, []).succeeded
    assert not leader.world.store.commit([compare], [], []).succeeded
