"""TensorFlow's own savers, as programs use them: what each saves is committed and comes back as it was."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from recovery.commit.bundle_outbox import CheckpointWatcher
from recovery.commit.outbox import SavingJob, TakenCheckpoint, generation_directory
from recovery.families.commit_rule import Committed
from tests.checkpoints.world import JOB, NODE, QUIET_MS, UUID, World

SCRIPT = Path(__file__).with_name("tf_shapes.py")
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "TF_USE_LEGACY_KERAS": "1",
}
STEPS = {"tf1_saver": 1, "manager": 30, "written": 1, "callback": 30}
"""Of a name that tells none, the first; of a manager, its variable; of epochs, the optimizer's iterations."""


@pytest.mark.parametrize("store", ["local"], indirect=True)
async def test_what_savers_of_all_kinds_save_comes_back_as_it_was(world: World, tmp_path: Path) -> None:
    await world.put_switch(1)
    identity = await world.register()
    root = tmp_path / "shapes"
    world.parent.mkdir(parents=True, exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", str(SCRIPT), str(root)),
        env={**os.environ, **QUIET},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        saved = json.loads(await process.stdout.readline())
        assert set(saved) == set(STEPS)
        for number, (name, (newest, weights)) in enumerate(saved.items(), start=1):
            await world.put_switch(number)
            (root / name).rename(generation_directory(world.parent, number))
            job = SavingJob(UUID, JOB, NODE, "i1")
            watcher = CheckpointWatcher(world.parent, job, number, None, world.clock)
            taken = await watcher.look(final=True)
            assert isinstance(taken, TakenCheckpoint), (name, taken)
            assert taken.manifest.ref.step == STEPS[name], name
            outcome = await world.commit(taken, identity)
            assert isinstance(outcome, Committed)
            stager = world.stager(tmp_path / f"restore-{name}")
            staged = await stager.stage_base(outcome.record, number + 1, "x", QUIET_MS, fresh=True)
            process.stdin.write(f"{name} {staged.directory}\n".encode())
            found, restored = json.loads(await process.stdout.readline())
            assert restored == weights, name
            assert found == (newest and newest.replace(str(root / name), str(staged.directory))), name
    finally:
        process.stdin.close()
        if process.returncode is None:
            process.kill()
        await process.wait()
