"""Uploads: whole or not there, under the leader token, and gone when no job needs them."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from recovery.stores.local import LocalStore
from recovery.stores.memory import MemoryCheckpointStore, MemoryDisk, Moment
from recovery.stores.open import Stores
from supervisor.adapters.etcd.memory import Fault, MemoryCoordination, no_fault
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import BULK, Delete, Put
from supervisor.contract.code import (
    CHUNK_BYTES,
    MAX_PACKED_BYTES,
    CodeChunk,
    CodePart,
    ShippedCode,
    answer_s,
    chunk_count,
)
from supervisor.contract.desired import ClusterRecord
from supervisor.contract.errors import (
    Conflict,
    CoordinationFull,
    IncompatibleRecord,
    Refused,
    StoreUnreachable,
    Unreachable,
    UserError,
)
from supervisor.contract.job.spec import CodeRef, JobRecord, JobSpec
from supervisor.contract.timing import FAST
from supervisor.control.decide.jobs import code_gc
from supervisor.control.decide.plan import put
from supervisor.control.loop import code_sweep
from supervisor.control.loop.code_sweep import CodeSweep
from supervisor.control.services import code_uploads
from supervisor.control.services.code_uploads import CodeUploads
from tests.control.world import World
from tests.support.builders import code_archive, job_spec
from tests.support.sinks import ListSink
from tests.support.virtual import in_virtual_time


def part(ref: CodeRef, data: bytes, index: int) -> CodePart:
    piece = data[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
    return CodePart(ref.digest, ref.size, index, base64.b64encode(piece).decode())


STORE = "hdfs://prod/code"


class Leader:
    """The leader's code uploads over a world, whose clock and leader a test can change.

    `stored`: the store of code is their carrier, otherwise etcd.
    """

    def __init__(
        self,
        fault: Callable[[str], Fault | None] = no_fault,
        spec: JobSpec | None = None,
        *,
        stored: bool = False,
    ) -> None:
        self.world = World(spec)
        self.world.write(put(keys.CLUSTER, ClusterRecord("c", "fast", FAST.d_ms, uuid="us")))
        self.coordination = MemoryCoordination(self.world.store, fault=fault, rpc_deadline_ms=50)
        self.disk = MemoryDisk()
        self.store = MemoryCheckpointStore(self.disk)
        self.stored = stored
        self.ids = (f"id{number}" for number in count())
        self.uploads = CodeUploads(
            self.coordination, self.world.snapshot, self.open_store, lambda: next(self.ids)
        )
        self.uploads.store = STORE if stored else ""
        self.sweeper = CodeSweep(
            self.coordination, self.open_store, self.world.snapshot, STORE if stored else "", ListSink()
        )

    def open_store(self, uri: str) -> MemoryCheckpointStore:
        assert uri == STORE
        return self.store

    async def upload(self, ref: CodeRef, data: bytes, *indexes: int) -> bool:
        state = [(await self.uploads.put(part(ref, data, index))).complete for index in indexes]
        return state[-1]

    def record(self, ref: CodeRef) -> ShippedCode | None:
        found = self.world.store.read(keys.shipped(ref.digest))
        return codec.decode(ShippedCode, found[0].value) if found else None

    def chunks(self, ref: CodeRef) -> int:
        if self.stored:
            return len([path for path in self.disk.files if ref.digest in path])
        return len(self.world.store.select(keys.chunks_of(ref.digest)))

    def tidy(self, after_ms: int = 0) -> list[str]:
        """One look of the leader's housekeeping; what it has removed."""
        self.world.now_ms += after_ms
        actions = code_gc.tidy(self.world.snapshot())
        for action in actions:
            assert self.world.store.commit(action.compares, action.ops, []).succeeded
        return [action.fields["digest"] for action in actions]


@pytest.fixture(params=["etcd", "store"])
def leader(request: pytest.FixtureRequest) -> Leader:
    """The contract of uploads is the same, whatever carries them."""
    return Leader(stored=request.param == "store")


async def test_it_is_complete_with_its_last_chunk_and_not_before(leader: Leader) -> None:
    ref, data = code_archive(2 * CHUNK_BYTES + 5)
    assert not (await leader.uploads.find(ref)).complete
    assert not await leader.upload(ref, data, 0, 1)
    record = leader.record(ref)
    assert record is not None
    assert not record.complete
    assert not (await leader.uploads.find(ref)).complete
    with pytest.raises(Conflict, match="submit it again"):
        await leader.uploads.require(ref)
    assert await leader.upload(ref, data, 2)
    assert (await leader.uploads.find(ref)).complete
    compare = await leader.uploads.require(ref)
    assert leader.world.store.commit([compare], [], []).succeeded


async def test_every_call_may_be_repeated(leader: Leader) -> None:
    ref, data = code_archive(CHUNK_BYTES + 1)
    assert await leader.upload(ref, data, 0, 0, 1, 1, 0)
    assert leader.chunks(ref) == 2


async def test_what_is_not_whole_is_never_complete(leader: Leader) -> None:
    ref, data = code_archive(2 * CHUNK_BYTES)
    with pytest.raises(Conflict, match=r"chunk 0 of code .* has not arrived"):
        await leader.upload(ref, data, 1)
    other = bytes(len(data))
    with pytest.raises(UserError, match="another sha256"):
        await leader.upload(ref, other, 0, 1)
    record = leader.record(ref)
    assert record is not None
    assert not record.complete
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


async def test_a_deposed_leader_writes_nothing(leader: Leader) -> None:
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


async def test_what_no_job_needs_goes_after_a_while_half_uploads_too(leader: Leader) -> None:
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
    await leader.sweeper.sweep()
    assert leader.disk.files == {}


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


async def test_a_removal_and_a_submit_cannot_both_win(leader: Leader) -> None:
    ref, data = code_archive(100)
    await leader.upload(ref, data, 0)
    compare = await leader.uploads.require(ref)
    leader.world.snapshot()
    leader.world.now_ms += code_gc.KEPT_UNUSED_MS
    (removal,) = code_gc.tidy(leader.world.snapshot())
    assert leader.world.store.commit(removal.compares, removal.ops, []).succeeded
    assert not leader.world.store.commit([compare], [], []).succeeded


# The store of code alone.


@pytest.fixture
def storing() -> Leader:
    return Leader(stored=True)


def place(leader: Leader, ref: CodeRef) -> str:
    """The directory in the store that etcd names now."""
    (found,) = leader.world.store.select(keys.chunks_of(ref.digest))
    stored = codec.decode(CodeChunk, found.value).stored
    assert stored is not None
    assert stored.store == STORE
    return stored.directory


async def test_etcd_holds_the_place_alone_and_the_files_are_the_archive(storing: Leader) -> None:
    ref, data = code_archive(2 * CHUNK_BYTES + 5)
    assert await storing.upload(ref, data, 0, 1, 2)
    assert place(storing, ref) == f"us/{ref.digest}.id0"
    (found,) = storing.world.store.select(BULK)
    assert len(found.value) < 1000
    assert b"".join(storing.disk.files[name] for name in sorted(storing.disk.files)) == data


async def test_earlier_releases_do_not_take_the_place_for_a_chunk(storing: Leader) -> None:
    """Their agents say that they need an update, instead of running an empty archive."""
    ref, data = code_archive(100)
    await storing.upload(ref, data, 0)
    (found,) = storing.world.store.select(BULK)
    assert b'"record":"CodeChunk+stored"' in found.value


@pytest.mark.parametrize("damage", ["another", "shorter", "missing"])
async def test_what_is_damaged_in_the_store_is_uploaded_again(storing: Leader, damage: str) -> None:
    ref, data = code_archive(2 * CHUNK_BYTES)
    await storing.upload(ref, data, 0, 1)
    before = place(storing, ref)
    name = f"{before}/00001"
    if damage == "missing":
        del storing.disk.files[name]
    else:
        storing.disk.files[name] = bytes(CHUNK_BYTES if damage == "another" else 5)
    assert not (await storing.uploads.find(ref)).complete
    with pytest.raises(Conflict):
        await storing.uploads.require(ref)
    assert await storing.upload(ref, data, 0, 1)
    assert (await storing.uploads.find(ref)).complete
    assert place(storing, ref) != before
    await storing.sweeper.sweep()
    assert {path.rpartition("/")[0] for path in storing.disk.files} == {place(storing, ref)}


def to_link(chunk: Path) -> None:
    chunk.symlink_to(chunk.rename(chunk.with_name("elsewhere")))


def to_directory(chunk: Path) -> None:
    chunk.unlink()
    chunk.mkdir()


def to_large(chunk: Path) -> None:
    chunk.write_bytes(bytes(CHUNK_BYTES + 1))


def to_fifo(chunk: Path) -> None:
    chunk.unlink()
    os.mkfifo(chunk)


def upload_to_link(chunk: Path) -> None:
    upload = chunk.parent
    upload.symlink_to(upload.rename(upload.with_name("notes")))


@pytest.mark.parametrize("damage", [to_link, to_directory, to_large, to_fifo, upload_to_link])
async def test_whatever_is_in_the_place_of_a_chunk_another_upload_mends_it(
    storing: Leader, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    storing.uploads.open_store = lambda _: LocalStore(tmp_path)
    ref, data = code_archive(2 * CHUNK_BYTES)
    await storing.upload(ref, data, 0, 1)
    damage(tmp_path / place(storing, ref) / "00001")
    assert not (await storing.uploads.find(ref)).complete
    assert await storing.upload(ref, data, 0, 1)
    assert (await storing.uploads.find(ref)).complete


async def test_a_chunk_that_is_damaged_during_its_upload_is_told_and_sent_again(
    storing: Leader, tmp_path: Path
) -> None:
    storing.uploads.open_store = lambda _: LocalStore(tmp_path)
    ref, data = code_archive(2 * CHUNK_BYTES)
    await storing.upload(ref, data, 0)
    to_large(tmp_path / place(storing, ref) / "00000")
    with pytest.raises(UserError, match=r"chunk 0 .* is damaged"):
        await storing.upload(ref, data, 1)
    assert await storing.upload(ref, data, 0, 1)


async def test_a_chunk_in_etcd_that_is_not_base64_is_uploaded_again() -> None:
    leader = Leader()
    ref, data = code_archive(100)
    await leader.upload(ref, data, 0)
    leader.world.write(put(keys.chunk(ref.digest, 0), CodeChunk("?")))
    assert not (await leader.uploads.find(ref)).complete
    assert await leader.upload(ref, data, 0)


async def test_a_store_that_does_not_answer_is_told_and_nothing_is_forgotten(storing: Leader) -> None:
    ref, data = code_archive(2 * CHUNK_BYTES)
    other, more = code_archive(100, seed=2)
    await storing.upload(ref, data, 0, 1)
    before = storing.record(ref)

    async def away(_operation: str, _path: str, _moment: Moment) -> None:
        raise StoreUnreachable("no NameNode answers")

    storing.store.hook = away
    with pytest.raises(StoreUnreachable, match=r"code_store: hdfs://prod/code.*no NameNode answers"):
        await storing.upload(other, more, 0)
    with pytest.raises(StoreUnreachable):
        await storing.uploads.find(ref)
    assert storing.record(ref) == before
    with pytest.raises(StoreUnreachable):
        await storing.sweeper.sweep()


@in_virtual_time
async def test_a_call_ends_while_its_client_still_listens() -> None:
    """Also where no part of it takes long; the same store a little faster is read to the end."""
    storing = Leader(stored=True)
    ref, data = code_archive(MAX_PACKED_BYTES)
    await storing.upload(ref, data, *range(chunk_count(ref.size)))
    before = storing.record(ref)
    took_s = 0.0

    async def slow(_operation: str, _path: str, moment: Moment) -> None:
        if moment is Moment.BEFORE:
            await asyncio.sleep(took_s)

    storing.store.hook = slow
    loop = asyncio.get_running_loop()
    took_s, began = 5.0, loop.time()
    with pytest.raises(StoreUnreachable, match=r"code_store: hdfs://prod/code.*took longer than 22 s"):
        await storing.uploads.find(ref)
    assert loop.time() - began == pytest.approx(answer_s(ref.size))
    assert storing.record(ref) == before
    took_s = 1.0
    assert (await storing.uploads.find(ref)).complete


@in_virtual_time
async def test_a_chunk_that_hangs_is_told_in_time() -> None:
    storing = Leader(stored=True)

    async def hang(_operation: str, _path: str, _moment: Moment) -> None:
        await asyncio.Event().wait()

    storing.store.hook = hang
    with pytest.raises(StoreUnreachable, match=r"code_store: hdfs://prod/code.*took longer than 6 s"):
        await storing.upload(*code_archive(2 * CHUNK_BYTES), 0)


async def test_a_store_that_hangs_ends_its_sweep_with_a_reason_and_no_other(
    storing: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_sweep, "STORE_S", 0.05)
    hangs = "file:///mnt/away"
    storing.disk.prepared = True
    storing.disk.files[f"us/{'0' * 64}.id9/00000"] = b"x"

    async def hang(_operation: str, _path: str, _moment: Moment) -> None:
        await asyncio.Event().wait()

    def open_store(uri: str) -> MemoryCheckpointStore:
        return MemoryCheckpointStore(MemoryDisk(prepared=True), hang) if uri == hangs else storing.store

    async with asyncio.timeout(30):
        sweep = CodeSweep(storing.coordination, open_store, storing.world.snapshot, hangs, ListSink())
        sweep._stores = {STORE}
        with pytest.raises(StoreUnreachable, match=r"file:///mnt/away has not answered in 0\.05 s"):
            await sweep.sweep()
    assert storing.disk.files == {}


async def test_an_empty_mount_point_is_not_made_a_store(storing: Leader) -> None:
    await storing.sweeper.sweep()
    await storing.upload(*code_archive(100), 0)
    storing.disk.prepared = False
    with pytest.raises(StoreUnreachable, match="was not prepared"):
        await storing.upload(*code_archive(100, seed=2), 0)


async def test_a_directory_that_is_not_there_is_not_made_a_store(storing: Leader, tmp_path: Path) -> None:
    """Also when no record names the store: with its last record it has not become a new one."""
    root = tmp_path / "mnt" / "code"
    storing.uploads.open_store = lambda _: Stores().open_code(root.as_uri())
    for _ in range(2):
        with pytest.raises(StoreUnreachable, match="code does not exist; is its file system mounted"):
            await storing.upload(*code_archive(100), 0)
        assert not root.parent.exists()
    root.mkdir(mode=0o700, parents=True)
    assert await storing.upload(*code_archive(100), 0)


async def test_a_mount_point_is_not_made_a_store(storing: Leader) -> None:
    storing.uploads.open_store = lambda _: Stores().open_code("file:///proc")
    with pytest.raises(Refused, match=r"/proc is a mount point.* name a directory below it"):
        await storing.upload(*code_archive(100), 0)


@pytest.mark.parametrize("mode", [0o755, 0o701, 0o702])
async def test_a_directory_that_all_users_can_reach_is_refused(
    storing: Leader, tmp_path: Path, mode: int
) -> None:
    tmp_path.chmod(mode)
    storing.uploads.open_store = lambda _: Stores().open_code(tmp_path.as_uri())
    with pytest.raises(Refused, match=rf"mode {mode:04o}, .* run `chmod o= {tmp_path}`"):
        await storing.upload(*code_archive(100), 0)
    assert list(tmp_path.iterdir()) == []
    tmp_path.chmod(0o750)
    assert await storing.upload(*code_archive(100), 0)


async def test_a_deposed_leader_changes_nothing_of_an_archive_that_is_whole(storing: Leader) -> None:
    """It still holds a request with another content for the same chunk."""
    ref, data = code_archive(100)
    held = await storing.uploads._begin(ref, None)
    await storing.upload(ref, data, 0)
    forged = part(ref, bytes(100), 0)
    await storing.uploads._take(forged, bytes(100), held)
    assert (await storing.uploads.find(ref)).complete


async def test_an_upload_that_began_anew_is_not_completed_by_what_was_read_before(storing: Leader) -> None:
    ref, data = code_archive(100)
    held = await storing.uploads._begin(ref, None)
    await storing.uploads._take(part(ref, data, 0), data, held)
    assert await storing.uploads._damage(ref) is None
    await storing.uploads._begin(ref, held)
    with pytest.raises(Unreachable):
        await storing.uploads._complete(ref, held)
    assert not (await storing.uploads.find(ref)).complete


async def test_a_wrong_size_forgets_nothing(storing: Leader) -> None:
    ref, data = code_archive(100)
    await storing.upload(ref, data, 0)
    before = place(storing, ref)
    wrong = CodeRef(ref.digest, 50)
    assert (await storing.uploads.find(wrong)).complete
    await storing.uploads.put(part(wrong, data[:50], 0))
    assert place(storing, ref) == before
    assert (await storing.uploads.find(ref)).complete


async def test_an_upload_goes_on_where_the_configuration_has_it_now() -> None:
    leader = Leader()
    ref, data = code_archive(2 * CHUNK_BYTES)
    await leader.upload(ref, data, 0)
    leader.uploads.store, leader.stored = STORE, True
    with pytest.raises(Conflict, match=r"chunk 0 .* has not arrived"):
        await leader.upload(ref, data, 1)
    assert await leader.upload(ref, data, 0, 1)
    leader.uploads.store = ""
    third, more = code_archive(2 * CHUNK_BYTES, seed=3)
    await leader.upload(third, more, 0)
    assert (await leader.uploads.find(ref)).complete, "it stays where it is"


async def test_what_is_in_the_store_takes_no_room_of_etcd(
    storing: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_uploads, "MAX_ALL_BYTES", 150)
    for seed in (1, 2, 3):
        assert await storing.upload(*code_archive(100, seed), 0)
    storing.uploads.store = ""
    assert await storing.upload(*code_archive(100, 4), 0)
    with pytest.raises(CoordinationFull, match="configure a `code_store`"):
        await storing.upload(*code_archive(100, 5), 0)


async def test_the_sweep_leaves_what_is_not_ours(storing: Leader) -> None:
    ref, data = code_archive(100)
    half, more = code_archive(2 * CHUNK_BYTES, seed=2)
    await storing.upload(ref, data, 0)
    await storing.upload(half, more, 0)
    foreign = {f"them/{'0' * 64}.id9/00000", "us/notes/readme", f"us/{'0' * 64}/00000"}
    orphan = f"us/{'0' * 64}.id9/00000"
    storing.disk.files |= dict.fromkeys({*foreign, orphan}, b"x")
    kept = {f"{place(storing, each)}/00000" for each in (ref, half)}
    await storing.sweeper.sweep()
    assert set(storing.disk.files) == foreign | kept


async def test_a_record_that_cannot_be_read_keeps_its_directories_and_no_others(storing: Leader) -> None:
    first, data = code_archive(100)
    second, more = code_archive(100, seed=2)
    await storing.upload(first, data, 0)
    await storing.upload(second, more, 0)
    storing.world.write(Put(keys.chunk(first.digest, 0), b"?"))
    kept = f"us/{first.digest}.id8/00000"
    storing.disk.files |= dict.fromkeys(
        (kept, f"us/{second.digest}.id9/00000", f"us/{'f' * 64}.id9/00000"), b"x"
    )
    with pytest.raises(IncompatibleRecord):
        await storing.sweeper.sweep()
    here = {f"us/{first.digest}.id0/00000", kept, f"{place(storing, second)}/00000"}
    assert set(storing.disk.files) == here


async def test_a_supervisor_that_follows_sweeps_nothing(storing: Leader) -> None:
    await storing.upload(*code_archive(100), 0)
    storing.disk.files[f"us/{'0' * 64}.id9/00000"] = b"x"
    before = dict(storing.disk.files)
    await CodeSweep(storing.coordination, storing.open_store, lambda: None, STORE, ListSink()).sweep()
    assert storing.disk.files == before


async def test_an_upload_that_begins_during_a_sweep_is_left_alone(storing: Leader) -> None:
    """The store is listed before etcd is read: what was listed was named then, or never will be."""
    await storing.upload(*code_archive(100), 0)
    ref, data = code_archive(100, seed=2)

    async def meanwhile(_operation: str, _path: str, _moment: Moment) -> None:
        storing.store.hook = no_hook
        await storing.upload(ref, data, 0)

    storing.store.hook = meanwhile
    await storing.sweeper.sweep()
    assert (await storing.uploads.find(ref)).complete


async def no_hook(_operation: str, _path: str, _moment: Moment) -> None:
    pass
