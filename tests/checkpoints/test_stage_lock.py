"""Plans of one generation are staged one after the other on a node: a late one must not move the winner's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.checkpoints.keeper import NodeCheckpoints
from agent.core.instructions import Stage
from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination, MemoryStore
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Put
from supervisor.contract.desired import JobPhase, JobSwitch
from supervisor.contract.errors import StoreUnreachable
from supervisor.contract.observed import Staged
from tests.support.sinks import ListSink


class Slow(MemoryCheckpointStore):
    """Preparing it takes until it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0
        self.first = asyncio.Event()
        self.go = asyncio.Event()

    async def prepare(self) -> None:
        self.begun += 1
        self.first.set()
        await self.go.wait()
        await super().prepare()


def node_of(etcd: MemoryStore, store: Slow, parent: Path) -> NodeCheckpoints:
    return NodeCheckpoints(
        "n1", parent, MemoryCoordination(etcd), lambda _uri: store, BootClock(), ListSink(), lambda: "1" * 32
    )


async def test_a_late_stage_waits_and_then_finds_that_its_plan_has_lost(tmp_path: Path) -> None:
    etcd, store = MemoryStore(), Slow()

    def in_force(generation: int) -> None:
        switch = JobSwitch("digits", "uuid", JobPhase.RUNNING, generation)
        assert etcd.commit([], [Put(keys.switch("digits"), codec.encode(switch))], []).succeeded

    in_force(0)
    node = node_of(etcd, store, tmp_path)
    winner = asyncio.create_task(node.stage(Stage("digits", "uuid", "p1", 1, None, "memory://")))
    await asyncio.wait_for(store.first.wait(), 10)
    loser = asyncio.create_task(node.stage(Stage("digits", "uuid", "p2", 1, None, "memory://")))
    for _ in range(20):
        await asyncio.sleep(0)
    assert store.begun == 1, "the second waits for the first"
    in_force(1)
    store.go.set()
    await asyncio.wait_for(winner, 10)
    directory = Path(node.directory("uuid", 1))
    (directory / "model.ckpt-1.index").write_bytes(b"the program has begun to write")
    with pytest.raises(StoreUnreachable, match="not in preparation any more"):
        await asyncio.wait_for(loser, 10)
    assert (directory / "model.ckpt-1.index").exists()


@pytest.mark.parametrize(("boot_id", "begun"), [("boot-1", 0), ("boot-2", 1)])
async def test_what_was_brought_in_before_the_last_boot_is_brought_in_again(
    tmp_path: Path, boot_id: str, begun: int
) -> None:
    etcd, store = MemoryStore(), Slow()
    store.go.set()
    answer = Staged("digits", "p1", "n1", "life-1", None, boot_id="boot-1")
    switch = JobSwitch("digits", "uuid", JobPhase.RUNNING, 0)
    records = {keys.staged("digits", "p1", "n1"): answer, keys.switch("digits"): switch}
    puts = [Put(key, codec.encode(record)) for key, record in records.items()]
    assert etcd.commit([], puts, []).succeeded
    await node_of(etcd, store, tmp_path).stage(
        Stage("digits", "uuid", "p1", 1, None, "memory://", boot_id=boot_id)
    )
    assert store.begun == begun
