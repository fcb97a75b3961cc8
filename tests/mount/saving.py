"""A mounted generation, whose program saves and whose saves are committed."""

from __future__ import annotations

from pathlib import Path

from recovery.commit.outbox import SavingJob, TakenCheckpoint
from recovery.families.commit_rule import CommitIdentity, CommitRefused, Committed
from recovery.families.watch_rule import Idle, Unfinished
from recovery.formats.tf_files import render_state
from recovery.mount.commit import MountedCommitter
from recovery.mount.take import MountedGeneration, MountedWatcher
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.adapters.etcd.memory_store import MemoryStore
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord
from tests.checkpoints.world import JOB, QUIET_MS, UUID, World, contents
from tests.mount.world import Site


def save(directory: Path, ref: CheckpointRef, life: str = "") -> None:
    """As TensorFlow does, by names of its own and renames."""
    for name, data in contents(ref, life).items():
        part = directory / f"{name}.tmp"
        part.write_bytes(data)
        part.rename(directory / name)
    state = directory / "checkpoint.tmp"
    state.write_bytes(render_state(f"model.ckpt-{ref.step}"))
    state.rename(directory / "checkpoint")


class Saving:
    """The saver's node of one generation."""

    def __init__(
        self, site: Site, directory: Path, generation: int = 1, base: CheckpointRef | None = None
    ) -> None:
        self.world = World(site.home, site.store(), MemoryCoordination(MemoryStore()))
        self.site = site
        self.what = MountedGeneration(site.live(generation), directory, generation, base)
        self.watcher = self.new_watcher()

    def new_watcher(self) -> MountedWatcher:
        job = SavingJob(UUID, JOB, "n1", "i1")
        return MountedWatcher(self.what, job, self.world.clock, self.world.next_id)

    async def take(self, watcher: MountedWatcher | None = None) -> TakenCheckpoint:
        for _ in range(50):
            found = await (watcher or self.watcher).look()
            if isinstance(found, TakenCheckpoint):
                return found
            assert isinstance(found, Unfinished | Idle), found
        raise AssertionError("nothing is taken")

    async def identity(self) -> CommitIdentity:
        await self.world.put_switch(self.what.generation, self.what.base)
        return await self.world.register()

    async def commit(self, taken: TakenCheckpoint, identity: CommitIdentity) -> CommitRecord:
        outcome = await self.try_commit(taken, identity)
        assert isinstance(outcome, Committed), outcome
        return outcome.record

    async def try_commit(self, taken: TakenCheckpoint, identity: CommitIdentity) -> Committed | CommitRefused:
        world = self.world
        committer = MountedCommitter(self.what.live.backend, world.store, world.coordination, world.clock)
        return await committer.commit(taken, identity, world.next_id(), QUIET_MS)
