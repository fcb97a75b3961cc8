"""Saves of any name and shape, and the way of one through a commit to the next base."""

from __future__ import annotations

from pathlib import Path

from chaos.bundles import bundle, plain
from recovery.commit.bundle_outbox import CheckpointWatcher
from recovery.commit.outbox import TakenCheckpoint
from recovery.families.commit_rule import Committed
from recovery.families.watch_rule import Idle, Unfinished
from recovery.formats.tf_files import render_state
from tests.checkpoints.world import QUIET_MS, UINT8, World

INT64 = 9


def put(
    directory: Path, prefix: str, weights: str, *, state: bool = True, counters: dict[str, int] | None = None
) -> None:
    """Save as TensorFlow does: the data, the index, then what names it the newest."""
    tensors = {b"weights": plain(UINT8, [len(weights)], weights.encode())}
    for name, value in (counters or {}).items():
        tensors[name.encode()] = plain(INT64, [], value.to_bytes(8, "little"))
    path = directory / prefix
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, data in bundle(path.name, [dict(sorted(tensors.items()))]).items():
        part = path.parent / f".{name}"
        part.write_bytes(data)
        part.rename(path.parent / name)
    if state:
        (path.parent / "checkpoint").write_bytes(render_state(path.name))


def below(directory: Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


async def taken(watcher: CheckpointWatcher, looks: int = 40) -> TakenCheckpoint:
    for _ in range(looks):
        seen = await watcher.look()
        if isinstance(seen, TakenCheckpoint):
            return seen
        assert isinstance(seen, Idle | Unfinished), seen
    raise AssertionError(f"nothing was taken in {looks} looks")


async def committed_and_staged(world: World, watcher: CheckpointWatcher) -> Path:
    """Commit what a dead program has left, and stage it for the next generation."""
    await world.put_switch(1)
    seen = await watcher.look(final=True)
    assert isinstance(seen, TakenCheckpoint), seen
    outcome = await world.commit(seen, await world.register())
    assert isinstance(outcome, Committed)
    staged = await world.stager().stage_base(outcome.record, 2, "x", QUIET_MS, fresh=True)
    again = await world.stager().stage_base(outcome.record, 2, "y", QUIET_MS, fresh=True)
    assert again == staged, "what was staged is exactly the base"
    return staged.directory
