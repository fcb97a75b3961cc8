"""Saves are found, told apart, committed and shown again: the same scenes in both modes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from recovery.commit.bundle_outbox import CheckpointWatcher
from recovery.commit.commit import Committer
from recovery.commit.outbox import SavingJob, Seen, TakenCheckpoint, generation_directory
from recovery.families import saves
from recovery.families.commit_rule import CommitIdentity, Committed
from recovery.families.watch_rule import Idle, Unfinished, Unusable
from recovery.formats.manifest import Manifest
from recovery.formats.tf_files import render_state
from recovery.mount.backends.backend import Backend, read_small
from recovery.mount.base import stage_live
from recovery.mount.commit import MountedCommitter
from recovery.mount.take import MountedGeneration, MountedWatcher
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.adapters.etcd.memory_store import MemoryStore
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord
from tests.checkpoints.saves import below, put
from tests.checkpoints.world import JOB, NODE, QUIET_MS, UUID, World
from tests.mount.world import Site, local_site


class Watching(Protocol):
    """A watcher of either mode."""

    async def look(self, step: int = -1, *, final: bool = False) -> Seen:
        """Look once."""


ADOPTED = "/data/train_logs"


class Scene:
    """One job in one mode, with one program that saves into `directory`."""

    def __init__(self, site: Site, stack: ExitStack, *, mounted: bool) -> None:
        self.site, self.stack, self.mounted = site, stack, mounted
        self.world = World(site.parent(), site.store(), MemoryCoordination(MemoryStore()))
        self.generation = 0
        self.base: Manifest | None = None
        self.directory = Path()
        self.watcher: Watching
        self.identity: CommitIdentity

    async def begin(self, record: CommitRecord | None = None, base: Manifest | None = None) -> None:
        """The next generation."""
        self.generation, self.base = self.generation + 1, base
        if self.mounted:
            await stage_live(self.world.store, self.site.live(self.generation), record)
            self.directory = self.stack.enter_context(self.site.mounted(self.generation))
        else:
            await self.world.store.prepare()
            await self.world.stager().stage_base(record, self.generation, "x", QUIET_MS, fresh=True)
            self.directory = generation_directory(self.site.parent(), self.generation)
        await self.world.put_switch(self.generation, base.ref if base is not None else None)
        self.identity = await self.world.register()
        self.restart_agent()

    def restart_agent(self) -> None:
        """An agent begins that knows nothing."""
        job, clock = SavingJob(UUID, JOB, NODE, "i1", adopt=ADOPTED), self.world.clock
        if self.mounted:
            ref = self.base.ref if self.base is not None else None
            site = MountedGeneration(self.site.live(self.generation), self.directory, self.generation, ref)
            self.watcher = MountedWatcher(site, job, clock, self.world.next_id)
        else:
            self.watcher = CheckpointWatcher(self.site.parent(), job, self.generation, self.base, clock)

    async def take(self, *, final: bool = True) -> TakenCheckpoint:
        """The next save that is taken."""
        for _ in range(50):
            seen = await self.watcher.look(final=final)
            if isinstance(seen, TakenCheckpoint):
                return seen
            assert isinstance(seen, Idle | Unfinished), seen
        raise AssertionError("nothing is taken")

    async def commit(self, taken: TakenCheckpoint) -> CommitRecord:
        """Commit it."""
        world = self.world
        committer: Committer = world.committer()
        if self.mounted:
            backend = self.site.live(self.generation).backend
            committer = MountedCommitter(backend, world.store, world.coordination, world.clock)
        outcome = await committer.commit(taken, self.identity, world.next_id(), QUIET_MS)
        assert isinstance(outcome, Committed), outcome
        return outcome.record

    async def stored(self, record: CommitRecord) -> dict[str, bytes]:
        """The files of a commit in the store."""
        return {name: data async for name, data in files_below(self.site.live().backend, record.path)}

    async def told(self) -> dict[str, str]:
        """All that is told next: path -> reason."""
        found = {}
        while isinstance(seen := await self.watcher.look(final=True), Unusable):
            found[seen.prefix] = seen.reason
        assert isinstance(seen, Idle), "it is told once"
        return found


async def files_below(backend: Backend, top: str, inside: str = "") -> AsyncIterator[tuple[str, bytes]]:
    """All files in a directory of a store, by their paths below it."""
    for entry in await backend.list(f"{top}/{inside}".rstrip("/")):
        path = f"{inside}/{entry.name}".lstrip("/")
        if entry.directory:
            async for found in files_below(backend, top, path):
                yield found
        else:
            yield path, await read_small(backend, f"{top}/{path}", 1 << 20)


@pytest.fixture(params=["staged", "mounted"])
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    site = local_site(tmp_path)
    with ExitStack() as stack:
        found = Scene(site, stack, mounted=request.param == "mounted")
        await found.begin()
        yield found
    site.assert_clean()


async def test_saves_of_any_name_in_any_directory_come_back_as_they_were(scene: Scene) -> None:
    await saves_come_back(scene)


@pytest.mark.timeout(180)
async def test_saves_of_any_name_come_back_from_hdfs(on_hdfs: Site) -> None:
    with ExitStack() as stack:
        scene = Scene(on_hdfs, stack, mounted=True)
        await scene.begin()
        await saves_come_back(scene)


async def saves_come_back(scene: Scene) -> None:
    put(scene.directory, "mlp.ckpt", "w1")
    put(scene.directory, "ckpts/run 1/3.weights", "w2", state=False)
    put(scene.directory, "a/b/c/50%-cp-0005.ckpt", "w3")
    put(scene.directory, "é/model", "w4", counters={"global_step": 70})
    before = below(scene.directory)
    taken = await scene.take()
    assert below(scene.directory) == before, "the program sees what it saved"
    record = await scene.commit(taken)
    assert below(scene.directory) == before
    stored = await scene.stored(record)
    assert {name: stored[name] for name in before} == before
    await scene.begin(record, taken.manifest)
    assert below(scene.directory) == before
    assert isinstance(await scene.watcher.look(final=True), Idle), "the base is not committed again"
    put(scene.directory, "ckpts/run 1/4.weights", "w5", state=False)
    later = await scene.take()
    assert (later.manifest.ref.generation, later.manifest.parent) == (2, record.ref)
    assert later.manifest.ref.step > record.ref.step
    assert len(later.manifest.bundles) == 4


async def test_a_name_that_is_overwritten_is_committed_each_time_with_a_higher_step(scene: Scene) -> None:
    records = []
    for n in range(3):
        put(scene.directory, "run/mlp.ckpt", f"w{n}")
        records.append(await scene.commit(await scene.take(final=False)))
        assert isinstance(await scene.watcher.look(), Idle)
    assert [record.ref for record in records] == [CheckpointRef(1, step) for step in (1, 2, 3)]
    for n, record in enumerate(records):
        stored = await scene.stored(record)
        assert f"w{n}".encode() in stored["run/mlp.ckpt.data-00000-of-00001"], "a commit never changes"
    assert b"w2" in below(scene.directory)["run/mlp.ckpt.data-00000-of-00001"]


async def test_the_step_is_what_the_tensors_tell_and_never_falls(scene: Scene) -> None:
    steps = []
    for n, step in enumerate((100, 5, 200)):
        put(scene.directory, f"ckpt_{n}", f"w{n}", counters={"global_step": step})
        steps.append((await scene.take()).manifest.ref.step)
    assert steps == [100, 101, 200]


async def test_a_time_in_a_name_is_no_step(scene: Scene) -> None:
    refs = []
    for name in ("model-1700000000000", "model-17000000000000000001"):
        put(scene.directory, name, name)
        refs.append((await scene.take()).manifest.ref)
    assert refs == [CheckpointRef(1, 1), CheckpointRef(1, 2)]


async def test_families_are_told_apart_and_kept_together(scene: Scene) -> None:
    put(scene.directory, "model.ckpt-10", "m10")
    first = await scene.take()
    assert (first.manifest.version, first.manifest.ref.step) == (1, 10)
    await scene.commit(first)
    put(scene.directory, "best/model.ckpt-10", "b10")
    await scene.commit(await scene.take())
    put(scene.directory, "model.ckpt-20", "m20")
    third = await scene.take()
    assert third.manifest.bundles == ("best/model.ckpt-10", "model.ckpt-20")
    assert (third.manifest.prefix, third.manifest.ref.step) == ("model.ckpt-20", 20)
    record = await scene.commit(third)
    stored = await scene.stored(record)
    assert b"b10" in stored["best/model.ckpt-10.data-00000-of-00001"]
    await scene.begin(record, third.manifest)
    shown = below(scene.directory)
    assert shown["checkpoint"] == render_state("model.ckpt-20")
    assert shown["best/checkpoint"] == render_state("model.ckpt-10")
    assert sorted(name for name in shown if name.endswith(".index")) == [
        "best/model.ckpt-10.index",
        "model.ckpt-20.index",
    ]


async def test_saves_of_two_families_at_once_make_one_checkpoint(scene: Scene) -> None:
    put(scene.directory, "model.ckpt-10", "m10")
    put(scene.directory, "best", "b10", state=False)
    taken = await scene.take()
    assert taken.manifest.bundles == ("best", "model.ckpt-10")
    before = below(scene.directory)
    await scene.commit(taken)
    assert below(scene.directory) == before


async def test_a_torn_save_of_one_family_does_not_hold_up_the_others(scene: Scene) -> None:
    put(scene.directory, "model.ckpt-10", "m10")
    put(scene.directory, "best", "whole", state=False)
    await scene.commit(await scene.take())
    index = (scene.directory / "best.index").read_bytes()
    put(scene.directory, "best", "torn!", state=False)
    (scene.directory / "best.index").write_bytes(index)
    put(scene.directory, "model.ckpt-20", "m20")
    before = below(scene.directory)
    taken = await scene.take()
    record = await scene.commit(taken)
    assert taken.manifest.bundles == ("best", "model.ckpt-20")
    assert b"whole" in (await scene.stored(record))["best.data-00000-of-00001"]
    assert below(scene.directory) == before, "the program sees what it has written itself"
    assert (await scene.told()).keys() == {"best"}
    put(scene.directory, "best", "again", state=False)
    record = await scene.commit(await scene.take())
    assert b"again" in (await scene.stored(record))["best.data-00000-of-00001"]


async def test_a_save_that_is_half_written_is_not_taken(scene: Scene) -> None:
    put(scene.directory, "sub/ckpt-1", "w")
    index = scene.directory / "sub/ckpt-1.index"
    raw = index.read_bytes()
    index.unlink()
    temporary = scene.directory / "sub/ckpt-2_temp"
    temporary.mkdir()
    for name in ("part-00000-of-00001.index", "part-00000-of-00001.data-00000-of-00001"):
        (temporary / name).write_bytes(raw)
    for _ in range(3):
        assert isinstance(await scene.watcher.look(), Idle | Unfinished)
    index.write_bytes(raw)
    assert (await scene.take(final=False)).manifest.bundles == ("sub/ckpt-1",)


async def test_an_agent_that_comes_back_finds_what_it_had_taken(scene: Scene) -> None:
    put(scene.directory, "sub/mlp.ckpt", "w1")
    put(scene.directory, "best", "b1", state=False)
    first = await scene.take()
    await scene.commit(first)
    scene.restart_agent()
    again = await scene.take()
    assert (again.manifest.ref, again.raw) == (first.manifest.ref, first.raw)
    assert isinstance(await scene.watcher.look(), Idle)
    put(scene.directory, "sub/mlp.ckpt", "w2")
    second = await scene.take()
    assert second.manifest.ref.step == first.manifest.ref.step + 1
    assert second.manifest.bundles == ("best", "sub/mlp.ckpt")


async def test_a_state_file_may_name_a_save_by_the_adopted_path(scene: Scene) -> None:
    put(scene.directory, "model.ckpt-10", "m10", state=False)
    put(scene.directory, "model.ckpt-9", "m9", state=False)
    (scene.directory / "checkpoint").write_bytes(render_state(f"{ADOPTED}/model.ckpt-9"))
    taken = await scene.take()
    assert taken.manifest.prefix == "model.ckpt-9", "two of three witnesses"
    assert await scene.told() == {}
    await scene.begin(await scene.commit(taken), taken.manifest)
    assert below(scene.directory)["checkpoint"] == render_state("model.ckpt-9")


async def test_a_family_that_the_program_removes_goes(scene: Scene) -> None:
    put(scene.directory, "model.ckpt-10", "m10")
    put(scene.directory, "scratch/s", "s", state=False)
    assert (await scene.take()).manifest.version == 2
    for path in (scene.directory / "scratch").iterdir():
        path.unlink()
    (scene.directory / "scratch").rmdir()
    put(scene.directory, "model.ckpt-20", "m20")
    assert (await scene.take()).manifest.bundles == ("model.ckpt-20",)


async def test_what_cannot_be_used_is_named_with_what_helps(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = "/".join(["deep"] * 8)
    put(scene.directory, "export/variables/variables", "w", state=False)
    (scene.directory / "export/saved_model.pb").write_bytes(b"x")
    (scene.directory / "a-1.weights.h5").write_bytes(b"x")
    put(scene.directory, f"{deep}/ckpt-1", "w")
    (scene.directory / "ckpt-9.index").write_bytes(b"x")
    (scene.directory / "checkpoint").write_bytes(render_state("/elsewhere/ckpt-1"))
    monkeypatch.setattr(saves, "MAX_FAMILIES", 1)
    for name in ("old", "new"):
        put(scene.directory, name, "w", state=False)
    assert (await scene.take()).manifest.bundles == ("new",)
    told = await scene.told()
    assert told.keys() == {"export", "*.h5", deep, "ckpt-9", "/elsewhere/ckpt-1", "old"}
    says: dict[str, Callable[[str], bool]] = {
        "export": lambda reason: "another directory" in reason,
        "*.h5": lambda reason: "checkpoint.pattern" in reason,
        deep: lambda reason: "save nearer" in reason,
        "/elsewhere/ckpt-1": lambda reason: "below $CHECKPOINT_DIR" in reason,
        "old": lambda reason: "fewer names" in reason,
    }
    assert {path for path, right in says.items() if not right(told[path])} == set()
