"""A saver on a real HDFS that has no room, and then has."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.checkpoints.local_copies import LocalCopies
from agent.checkpoints.saver import Saver, SaverSite
from chaos.hdfs import HdfsCluster
from recovery.formats.paths import STAGING
from recovery.stores.hdfs import HdfsStore
from recovery.stores.open import open_store
from supervisor.adapters.etcd.memory import MemoryCoordination, MemoryStore
from supervisor.contract.boundaries import ModifiedAt
from supervisor.contract.checkpoint import CheckpointRef
from tests.checkpoints.world import COMMIT, NODE, QUIET_MS, World, save, snapshot, staged_form
from tests.support.sinks import ListSink
from tests.support.waiting import until

WAIT_S = 60.0
OLD, NEW = CheckpointRef(1, 10), CheckpointRef(1, 20)


async def test_a_quota_that_is_reached_in_a_commit(
    hdfs: HdfsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part that was written is deleted, commits stay, and the save is committed once there is room."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf_dir))
    uri = hdfs.fresh_uri("quota")
    store, sink = open_store(uri), ListSink()
    assert isinstance(store, HdfsStore)
    await store.prepare()
    world = World(tmp_path / "parent", store, MemoryCoordination(MemoryStore()))
    await world.put_switch(1)
    identity = await world.register()
    node = await world.coordination.get(identity.compare.key)
    assert node is not None
    fence = ModifiedAt(node.key, node.mod_revision)
    copies = LocalCopies(world.parent.parent)
    site = SaverSite(
        *(NODE, "i1", world.parent, store, world.coordination, world.clock, sink),
        *(lambda: fence, world.next_id, lambda: 1, copies),
    )
    saver = Saver(COMMIT, site)
    saver.start()
    save(world.parent, OLD)
    await until(lambda: events(sink, "info").count("checkpoint committed") == 1)
    path = uri.removeprefix(hdfs.uri)
    await asyncio.to_thread(hdfs.set_quota, path, 1 << 20)
    save(world.parent, NEW)
    await until(lambda: bool(saver.beat().trouble))
    beat = saver.beat()
    assert "quota" in beat.trouble
    assert (beat.pending, beat.trouble_ms >= 0) == (NEW, True)
    # Half a checkpoint uses up no quota; a next try may just have begun one.
    async with asyncio.timeout(WAIT_S):
        while True:
            if not (await store.list(STAGING)).directories:
                break
            await asyncio.sleep(0.02)
    (record,) = await world.records()
    staged = await world.stager(tmp_path / "machine").stage_base(record, 2, "x", QUIET_MS, fresh=True)
    assert snapshot(staged.directory) == staged_form(OLD)
    await asyncio.to_thread(hdfs.set_quota, path, None)
    await until(lambda: events(sink, "info").count("checkpoint committed") == 2)
    assert [record.ref for record in await world.records()] == [OLD, NEW]
    assert events(sink, "warning") == ["checkpoints cannot be committed; trying again"]
    saver.stop()
    await world.coordination.close()


def events(sink: ListSink, level: str) -> list[str]:
    return [event for found, event, _ in sink.lines if found == level]
