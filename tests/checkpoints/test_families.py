"""Every finished TensorFlow checkpoint below `$CHECKPOINT_DIR` is taken, or named with the reason."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.commit import bundle_outbox
from recovery.commit.bundle_outbox import CheckpointWatcher
from recovery.commit.follow import KEPT, Follower
from recovery.commit.outbox import OUTBOX, SavingJob, TakenCheckpoint, generation_directory
from recovery.commit.sight import Eyes
from recovery.families import saves
from recovery.families.commit_rule import Committed
from recovery.families.families import Family, family_of, prefix_below
from recovery.families.watch_rule import Idle, Unfinished, Unusable
from recovery.formats import manifest
from recovery.formats.steps import step_of_save
from recovery.formats.tf_files import number_of, render_state
from supervisor.contract.checkpoint import CheckpointRef
from tests.checkpoints.saves import below, committed_and_staged, put, taken
from tests.checkpoints.world import JOB, NODE, QUIET_MS, UUID, World

SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.mark.parametrize(
    ("prefix", "family", "number"),
    [
        ("model.ckpt-120", "model.ckpt", 120),
        ("ckpt_3", "ckpt", 3),
        ("training/cp-0005.ckpt", "training/cp.ckpt", 5),
        ("weights.03-0.25", "weights", 3),
        ("mlp.ckpt", "mlp.ckpt", None),
        ("resnet50-7", "resnet50", 7),
        ("resnet50", "resnet50", None),
        ("a/b-9/model", "a/b-9/model", None),
        ("epoch=12", "epoch", 12),
        ("ckpts/3.weights", "ckpts/.weights", 3),
        ("03-0.25.weights", ".weights", 3),
        ("03-0.25", "", 3),
        ("2.ckpt", ".ckpt", 2),
        ("12", "", 12),
        ("1-encoder", "1-encoder", None),
    ],
)
def test_what_a_name_says(prefix: str, family: str, number: int | None) -> None:
    assert (str(family_of(prefix)), number_of(prefix)) == (family, number)


@given(st.text(min_size=1, max_size=20).filter(lambda text: "/" not in text), st.integers(0, 10**12 - 1))
def test_a_name_with_a_step_behind_it_is_of_the_family_before(stem: str, step: int) -> None:
    assert family_of(f"d/{stem}-{step}") == Family("d", stem)
    assert number_of(f"d/{stem}-{step}") == step


@pytest.mark.parametrize(
    ("number", "values", "step"),
    [
        (120, {}, 120),
        (3, {"global_step": 900}, 900),
        (3, {f"step{SUFFIX}": 30, f"save_counter{SUFFIX}": 3}, 30),
        (3, {f"optimizer/_iterations{SUFFIX}": 2814}, 2814),
        (500, {f"optimizer/_iterations{SUFFIX}": 250}, 500),
        (2, {f"g/iter{SUFFIX}": 100, f"d/iter{SUFFIX}": 500}, 100),
        (None, {f"optimizer/iter{SUFFIX}": 7}, 7),
        (None, {f"save_counter{SUFFIX}": 4}, 4),
        (None, {"global_step": -1}, None),
        (None, {}, None),
    ],
)
def test_the_step_of_a_save(number: int | None, values: dict[str, int], step: int | None) -> None:
    assert step_of_save(number, values) == step


def test_where_a_state_file_points() -> None:
    roots = ("/p/g1",)
    assert prefix_below("ckpt-1", "run", roots) == "run/ckpt-1"
    assert prefix_below("./run/ckpt-1", "", roots) == "run/ckpt-1"
    assert prefix_below("/p/g1/run/ckpt-1", "", roots) == "run/ckpt-1"
    for outside in ("../x/ckpt-1", "/p/g2/ckpt-1", "/p/g1", "/", "run/", ".", ""):
        assert prefix_below(outside, "", roots) is None, outside


@pytest.mark.parametrize("prefix", ["mlp.ckpt", "ckpt_3", "sub/model.ckpt-7", "a/b/c/cp-0005.ckpt"])
@pytest.mark.parametrize("state", [True, False])
async def test_a_checkpoint_of_any_name_in_any_directory_comes_back_as_it_was(
    world: World, prefix: str, state: bool
) -> None:
    directory = generation_directory(world.parent, 1)
    put(directory, prefix, "w1", state=state)
    before = below(directory)
    assert below(await committed_and_staged(world, world.watcher(1))) == before


async def test_a_name_that_is_overwritten_is_taken_each_time_with_a_higher_step(world: World) -> None:
    directory = generation_directory(world.parent, 1)
    watcher = world.watcher(1)
    refs = []
    for n in range(3):
        put(directory, "mlp.ckpt", f"w{n}")
        refs.append((await taken(watcher)).manifest.ref)
        assert isinstance(await watcher.look(), Idle)
    assert refs == [CheckpointRef(1, step) for step in (1, 2, 3)]
    first = world.parent / OUTBOX / "g1-s1"
    assert b"w0" in (first / "mlp.ckpt.data-00000-of-00001").read_bytes(), "copies stay what they were"


async def test_steps_that_fall_or_repeat_keep_the_order_of_the_saves(world: World) -> None:
    directory = generation_directory(world.parent, 1)
    watcher = world.watcher(1)
    refs = []
    for n, step in enumerate((100, 5, 5, 200)):
        put(directory, "model", f"w{n}", counters={"global_step": step})
        refs.append((await taken(watcher)).manifest.ref.step)
    assert refs == [100, 101, 102, 200]


async def test_what_was_committed_before_an_agents_restart_gives_its_step_to_no_other_save(
    world: World,
) -> None:
    directory = generation_directory(world.parent, 1)
    put(directory, "mlp.ckpt", "w")
    job = SavingJob(UUID, JOB, NODE, "i1")
    watcher = CheckpointWatcher(world.parent, job, 1, None, world.clock, last_step=41)
    assert (await taken(watcher)).manifest.ref == CheckpointRef(1, 42)


async def test_families_are_told_apart_and_kept_together(world: World) -> None:
    directory = generation_directory(world.parent, 1)
    watcher = world.watcher(1)
    put(directory, "model.ckpt-10", "m10")
    first = await taken(watcher)
    assert (first.manifest.version, first.manifest.ref.step) == (1, 10)
    put(directory, "best/model.ckpt-10", "b10")
    second = await taken(watcher)
    assert (second.manifest.version, second.manifest.bundles) == (2, ("best/model.ckpt-10", "model.ckpt-10"))
    put(directory, "model.ckpt-20", "m20")
    third = await taken(watcher)
    assert third.manifest.bundles == ("best/model.ckpt-10", "model.ckpt-20")
    assert (third.manifest.prefix, third.manifest.ref.step) == ("model.ckpt-20", 20)
    put(directory, "best/model.ckpt-20", "b20")
    staged = below(await committed_and_staged(world, watcher))
    assert staged["checkpoint"] == render_state("model.ckpt-20")
    assert staged["best/checkpoint"] == render_state("model.ckpt-20")
    assert len([name for name in staged if name.endswith(".index")]) == 2
    for name in (name for name in staged if ".data-" in name):
        assert (b"b20" if "best" in name else b"m20") in staged[name]


async def test_the_base_of_several_families_is_known_and_carried_on(world: World) -> None:
    directory = generation_directory(world.parent, 1)
    put(directory, "model.ckpt-10", "m10")
    put(directory, "best.ckpt", "b10", state=False)
    seen = await world.watcher(1).look(final=True)
    assert isinstance(seen, TakenCheckpoint)
    await world.put_switch(1)
    outcome = await world.commit(seen, await world.register())
    assert isinstance(outcome, Committed)
    staged = await world.stager().stage_base(outcome.record, 2, "x", QUIET_MS, fresh=True)
    watcher = world.watcher(2, staged.base)
    assert isinstance(await watcher.look(), Idle)
    put(staged.directory, "model.ckpt-20", "m20")
    found = await taken(watcher)
    assert found.manifest.bundles == ("best.ckpt", "model.ckpt-20")
    assert (found.manifest.ref, found.manifest.parent) == (CheckpointRef(2, 20), seen.manifest.ref)


async def test_an_evaluator_elsewhere_gets_all_families_with_what_names_them(
    world: World, tmp_path: Path
) -> None:
    directory = generation_directory(world.parent, 1)
    await world.put_switch(1)
    identity, watcher = await world.register(), world.watcher(1)
    elsewhere = tmp_path / "elsewhere"
    follower = Follower(world.stager(elsewhere), elsewhere, 1)
    found: dict[str, bytes] = {}
    for n in range(KEPT + 2):
        put(directory, f"model.ckpt-{n}", f"m{n}")
        put(directory, "best/mlp.ckpt", f"b{n}")
        seen = await watcher.look(final=True)
        assert isinstance(seen, TakenCheckpoint)
        outcome = await world.commit(seen, identity)
        assert isinstance(outcome, Committed)
        await follower.bring(outcome.record, f"x{n}", QUIET_MS)
        found, saved = below(generation_directory(elsewhere, 1)), below(directory)
        assert {name: found[name] for name in ("checkpoint", "best/checkpoint", "best/mlp.ckpt.index")} == {
            name: saved[name] for name in ("checkpoint", "best/checkpoint", "best/mlp.ckpt.index")
        }
    assert len([name for name in found if name.startswith("model.ckpt") and name.endswith(".index")]) == KEPT


async def test_a_family_that_the_program_removes_goes(world: World) -> None:
    directory = generation_directory(world.parent, 1)
    watcher = world.watcher(1)
    put(directory, "model.ckpt-10", "m10")
    put(directory, "scratch", "s", state=False)
    assert (await taken(watcher)).manifest.version == 2
    for path in directory.glob("scratch.*"):
        path.unlink()
    put(directory, "model.ckpt-20", "m20")
    assert (await taken(watcher)).manifest.bundles == ("model.ckpt-20",)


async def test_a_torn_save_of_one_family_does_not_hold_up_the_others(world: World) -> None:
    """Its last whole save stays in each checkpoint, and it is told what is wrong."""
    directory = generation_directory(world.parent, 1)
    watcher = world.watcher(1)
    put(directory, "model.ckpt-10", "m10")
    put(directory, "best", "whole", state=False)
    await taken(watcher)
    index = (directory / "best.index").read_bytes()
    put(directory, "best", "torn!", state=False)
    (directory / "best.index").write_bytes(index)
    put(directory, "model.ckpt-20", "m20")
    seen = await watcher.look(final=True)
    assert isinstance(seen, TakenCheckpoint)
    assert seen.manifest.bundles == ("best", "model.ckpt-20")
    assert b"whole" in (seen.directory / "best.data-00000-of-00001").read_bytes()
    told = await watcher.look(final=True)
    assert isinstance(told, Unusable)
    assert told.prefix == "best"
    assert isinstance(await watcher.look(final=True), Idle)


async def test_what_was_written_over_in_place_is_in_no_later_checkpoint(world: World) -> None:
    """`shutil.copyfile` writes into the file that the outbox has under another name."""
    directory = generation_directory(world.parent, 1)
    watcher = world.watcher(1)
    put(directory, "model.ckpt-10", "m10")
    put(directory, "best", "whole", state=False)
    await taken(watcher)
    data = directory / "best.data-00000-of-00001"
    whole = data.read_bytes()
    os.utime(data, ns=(1, 1))
    put(directory, "model.ckpt-20", "m20")
    touched = await watcher.look(final=True)
    assert isinstance(touched, TakenCheckpoint)
    assert touched.manifest.bundles == ("best", "model.ckpt-20"), "its bytes are what they were"
    data.write_bytes(bytes(len(whole)))
    put(directory, "model.ckpt-30", "m30")
    seen = await watcher.look(final=True)
    assert isinstance(seen, TakenCheckpoint)
    assert seen.manifest.bundles == ("model.ckpt-30",)
    reasons = [each.reason for _ in range(3) if isinstance(each := await watcher.look(final=True), Unusable)]
    assert any("in place" in reason for reason in reasons)
    shutil.copyfile(touched.directory / "best.index", directory / "best.index")
    data.write_bytes(whole)
    again = await watcher.look(final=True)
    assert isinstance(again, TakenCheckpoint)
    assert again.manifest.bundles == ("best", "model.ckpt-30")


async def test_a_torn_save_whose_last_whole_one_is_gone_is_told(world: World) -> None:
    """The copy was removed as the disk was full, and the program was killed while it wrote over the rest."""
    directory = generation_directory(world.parent, 1)
    watcher = world.watcher(1)
    put(directory, "mlp.ckpt", "whole")
    shutil.rmtree((await taken(watcher)).directory)
    index = (directory / "mlp.ckpt.index").read_bytes()
    put(directory, "mlp.ckpt", "torn!")
    (directory / "mlp.ckpt.index").write_bytes(index)
    told = [await watcher.look(final=True) for _ in range(3)]
    assert [each.prefix for each in told if isinstance(each, Unusable)] == ["mlp.ckpt"] * 2
    assert isinstance(told[2], Idle)


async def test_an_agent_that_comes_back_finds_what_it_had_taken(world: World) -> None:
    directory = generation_directory(world.parent, 1)
    put(directory, "mlp.ckpt", "w1")
    put(directory, "best", "b1", state=False)
    first = await taken(world.watcher(1))
    again = world.watcher(1)
    assert await again.look() == first, "it may not have been committed yet"
    assert isinstance(await again.look(), Idle)
    put(directory, "mlp.ckpt", "w2")
    second = await taken(again)
    assert second.manifest.ref.step == first.manifest.ref.step + 1
    assert second.manifest.bundles == ("best", "mlp.ckpt")


async def test_what_tensorflow_is_writing_is_no_checkpoint(world: World) -> None:
    directory = generation_directory(world.parent, 1)
    for temporary in ("ckpt-1_temp", "model.ckpt-5_temp_0af3", "workertemp_1", "export/temp-1700000000"):
        put(directory, f"{temporary}/part-00000-of-00001", "w")
    assert isinstance(await world.watcher(1).look(final=True), Idle)


async def test_what_cannot_be_used_is_named_with_the_reason(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = generation_directory(world.parent, 1)
    put(tmp_path / "elsewhere", "ckpt-1", "w")
    directory.mkdir(parents=True)
    (directory / "link").symlink_to(tmp_path / "elsewhere")
    (directory / "latest").symlink_to("ckpt-9")
    put(directory, "export/variables/variables", "w", state=False)
    (directory / "export/saved_model.pb").write_bytes(b"")
    for name in ("a-1.weights.h5", "a-2.weights.h5", "b.keras"):
        (directory / "export" / name).write_bytes(b"")
    put(directory, "/".join(["deep"] * 8) + "/ckpt-1", "w")
    (directory / "ckpt-9.index").write_bytes(b"")
    monkeypatch.setattr(saves, "MAX_FAMILIES", 2)
    for n in range(3):
        put(directory, f"m{n}", "w", state=False)
    watcher = world.watcher(1)
    assert isinstance(await watcher.look(final=True), TakenCheckpoint)
    told = {}
    while isinstance(seen := await watcher.look(final=True), Unusable):
        told[seen.prefix] = seen.reason
    keras = {"export/*.h5", "export/*.keras"}
    assert set(told) == {"link", "export", "/".join(["deep"] * 8), "ckpt-9", "m0"} | keras
    assert "export/*.h5" in told["export/*.h5"]
    assert "symbolic link" in told["link"]
    assert "SavedModel" in told["export"]
    assert isinstance(await watcher.look(final=True), Idle)


async def test_a_family_too_many_is_told_and_not_looked_at_again_and_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = generation_directory(world.parent, 1)
    monkeypatch.setattr(saves, "MAX_FAMILIES", 1)
    put(directory, "old", "w", state=False)
    put(directory, "new", "w", state=False)
    watcher = world.watcher(1)
    seen = await watcher.look(final=True)
    assert isinstance(seen, TakenCheckpoint)
    assert seen.manifest.bundles == ("new",)
    monkeypatch.setattr(bundle_outbox, "put_in_outbox", None)
    told = await watcher.look(final=True)
    assert isinstance(told, Unusable)
    assert told.prefix == "old"
    assert isinstance(await watcher.look(final=True), Idle)


async def test_more_files_than_one_checkpoint_can_have_are_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = generation_directory(world.parent, 1)
    monkeypatch.setattr(manifest, "MAX_FILES", 3)
    put(directory, "one", "w", state=False)
    put(directory, "two", "w", state=False)
    watcher = world.watcher(1)
    told = [await watcher.look(final=True) for _ in range(3)]
    assert sorted(each.prefix for each in told if isinstance(each, Unusable)) == ["one", "two"]
    assert isinstance(told[2], Idle)


async def test_shards_that_parameter_servers_wrote_elsewhere_are_missed(world: World) -> None:
    directory = generation_directory(world.parent, 1)
    put(directory, "ckpt-1", "w")
    (directory / "ckpt-1.data-00000-of-00001").unlink()
    watcher = world.watcher(1)
    seen = [await watcher.look() for _ in range(30)]
    told = [each for each in seen if isinstance(each, Unusable)]
    assert [each.prefix for each in told] == ["ckpt-1"]
    assert "mounted" in told[0].reason


async def test_a_large_directory_is_looked_at_less_often(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = generation_directory(world.parent, 1)
    monkeypatch.setattr(bundle_outbox, "ENTRIES_A_LOOK", 2)
    put(directory, "model.ckpt-10", "w")
    watcher = world.watcher(1)
    seen = [type(await watcher.look()) for _ in range(4)]
    assert seen == [Unfinished, Idle, TakenCheckpoint, Idle]
    assert isinstance(await watcher.look(final=True), Idle)


def test_a_look_opens_nothing_that_it_does_not_close(tmp_path: Path) -> None:
    put(tmp_path, "a/b/ckpt-1", "w")
    eyes = Eyes(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        assert [mark.name for mark in eyes.look().marks] == [
            "a/b/ckpt-1.data-00000-of-00001",
            "a/b/ckpt-1.index",
        ]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
