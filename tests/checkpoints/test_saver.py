"""The saver's node through the life of a generation: attempts die and come back, commits go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from agent.copies import LocalCopies
from agent.core.instructions import Commit
from agent.saver import Saver, SaverSite
from recovery.checkpoints.watch_rule import Idle, Unfinished, Unusable
from recovery.outbox import CheckpointWatcher, TakenCheckpoint
from recovery.plain_outbox import PlainWatcher
from supervisor.contract.boundaries import ModifiedAt
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.errors import Refused
from supervisor.contract.ids import TaskId
from tests.checkpoints.world import JOB, NODE, UUID, World, save
from tests.support.sinks import ListSink

WORKER = TaskId(JOB, "worker", 0)
WAIT_S = 10
COMMIT = Commit(JOB, UUID, 1, None, "file:///unused", WORKER)


class Commits(ListSink):
    """Hands out the names of committed checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self._names: asyncio.Queue[object] = asyncio.Queue()

    def info(self, event: str, **fields: object) -> object:
        if event == "committed":
            self._names.put_nowait(fields["checkpoint"])
        return super().info(event, **fields)

    async def next(self) -> object:
        async with asyncio.timeout(WAIT_S):
            return await self._names.get()


@pytest.fixture
def sink() -> Commits:
    return Commits()


@pytest.fixture
async def site(world: World, sink: Commits) -> SaverSite:
    identity = await world.register()
    node = await world.coordination.get(identity.compare.key)
    assert node is not None
    fence = ModifiedAt(node.key, node.mod_revision)
    await world.put_switch(1)
    return SaverSite(
        NODE,
        "i1",
        world.parent,
        world.store,
        world.coordination,
        world.clock,
        sink,
        lambda: fence,
        world.next_id,
        lambda: 1,
        LocalCopies(world.parent.parent),
    )


@pytest.fixture
async def saver(site: SaverSite) -> AsyncIterator[Saver]:
    made = Saver(COMMIT, site)
    made.start()
    yield made
    made.stop()


async def test_a_saver_that_comes_back_in_place_commits_again(
    world: World, saver: Saver, sink: Commits
) -> None:
    save(world.parent, CheckpointRef(1, 10))
    assert await sink.next() == "g1-s10"
    save(world.parent, CheckpointRef(1, 20))
    await saver.drain(WAIT_S * 1000, clean=False)
    assert {record.ref.step for record in await world.records()} == {10, 20}
    save(world.parent, CheckpointRef(1, 30))
    assert [await sink.next(), await sink.next()] == ["g1-s20", "g1-s30"]


async def test_a_drain_does_not_outlive_the_generation(world: World, saver: Saver) -> None:
    saver.stop()
    await saver.drain(WAIT_S * 1000, clean=False)
    save(world.parent, CheckpointRef(1, 10))
    await asyncio.sleep(0)
    assert all(task.done() for task in saver._tasks)


class FullDisk(Saver):
    """Cannot take anything at its first looks."""

    left = 3

    async def _look(
        self, watcher: CheckpointWatcher | PlainWatcher
    ) -> TakenCheckpoint | Idle | Unfinished | Unusable:
        if self.left:
            self.left -= 1
            raise Refused("no space left on device")
        return await super()._look(watcher)


async def test_a_full_disk_is_told_once_and_not_ten_times_a_second(
    world: World, site: SaverSite, sink: Commits
) -> None:
    saver = FullDisk(COMMIT, site)
    saver.start()
    save(world.parent, CheckpointRef(1, 10))
    assert await sink.next() == "g1-s10"
    saver.stop()
    said = [event for _, event, _ in sink.lines if event.startswith("checkpoints cannot be taken")]
    assert said == ["checkpoints cannot be taken; trying again", "checkpoints cannot be taken: this is over"]
