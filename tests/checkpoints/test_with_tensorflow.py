"""Real saves by TensorFlow while they are taken from under its `max_to_keep`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from recovery.commit.bundle_outbox import CheckpointWatcher
from recovery.commit.commit import Committer
from recovery.commit.outbox import SavingJob, TakenCheckpoint, generation_directory
from recovery.families.commit_rule import CommitIdentity, Committed
from recovery.families.watch_rule import Idle, Unusable
from tests.checkpoints.world import JOB, NODE, QUIET_MS, UUID, World

SCRIPT = Path(__file__).with_name("tf1_saver.py")
SAVES = 120
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


async def commit_all(
    world: World, committer: Committer, identity: CommitIdentity, over: asyncio.Event
) -> None:
    while not over.is_set() or committer.pending is not None:
        outcome = await committer.run_once(identity, world.next_id(), QUIET_MS)
        assert outcome is None or isinstance(outcome, Committed)
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("store", ["local"], indirect=True)
async def test_every_committed_checkpoint_of_tf1_loads(world: World, tmp_path: Path) -> None:
    await world.put_switch(1)
    identity = await world.register()
    directory = generation_directory(world.parent, 1)
    directory.mkdir(parents=True)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", str(SCRIPT), str(directory), str(SAVES)),
        env={**os.environ, **QUIET},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    saved = asyncio.ensure_future(process.stdout.readline())
    try:
        watcher = CheckpointWatcher(world.parent, SavingJob(UUID, JOB, NODE, "i1"), 1, None, world.clock)
        committer = world.committer()
        over = asyncio.Event()
        committing = asyncio.create_task(commit_all(world, committer, identity, over))
        while True:
            dead = saved.done()
            seen = await watcher.look(final=dead)
            assert not isinstance(seen, Unusable)
            if isinstance(seen, TakenCheckpoint):
                committer.offer(seen)
            elif dead and isinstance(seen, Idle):
                break
            await asyncio.wait([saved], timeout=0.002)
        over.set()
        await committing
        assert saved.result() == b"saved\n"
        records = await world.records()
        assert records[-1].ref.step == SAVES
        assert len(records) >= 5, "hardly any save was taken while TensorFlow was saving"
        for record in records:
            elsewhere = tmp_path / f"restore-{record.ref.step}"
            staged = await world.stager(elsewhere).stage_base(record, 2, "x", QUIET_MS, fresh=True)
            process.stdin.write(f"{staged.directory}\n".encode())
            newest, step, values = json.loads(await process.stdout.readline())
            assert newest == f"{staged.directory}/model.ckpt-{record.ref.step}"
            assert (step, values) == (record.ref.step, [float(record.ref.step)])
    finally:
        process.stdin.close()
        if process.returncode is None:
            process.kill()
        await process.wait()
