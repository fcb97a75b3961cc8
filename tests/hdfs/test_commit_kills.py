"""A committing, restoring and collecting process is SIGKILLed again and again, on a real HDFS and etcd.

No committed checkpoint is lost, none that can be restored is bad, and nothing is left for ever.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from chaos.hdfs import HdfsCluster
from recovery.commit.stage import Stager
from recovery.stores.hdfs import HdfsStore
from recovery.stores.open import open_store
from supervisor.adapters.clock import BootClock
from supervisor.contract import keys
from supervisor.contract.boundaries import Coordination, Put
from supervisor.contract.checkpoint import CommitRecord, CommitState
from supervisor.contract.codec import encode
from supervisor.contract.desired import JobPhase, JobSwitch
from tests.hdfs import committing
from tests.hdfs.committing import JOB, QUIET_MS, UUID, contents, records_of
from tests.support.etcd_server import EtcdServer
from tests.support.hadoop_conf import conf_with

LIFE_S = 60.0
SEED = 20261121


class Lives:
    """The process whose forks are killed, and what they have said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.committed: list[int] = []
        self.collecting: set[int] = set()

    async def begin(self) -> int:
        """A new life; returns its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        return int((await self.until("pid")).split()[1])

    async def until(self, word: str) -> str:
        """Read on until a line begins so."""
        assert self._process.stdout is not None
        async with asyncio.timeout(LIFE_S):
            while True:
                line = (await self._process.stdout.readline()).decode()
                assert line, "the process has ended"
                first, _, step = line.strip().partition(" ")
                if first == "committed":
                    self.committed.append(int(step))
                elif first == "collecting":
                    self.collecting.add(int(step))
                if first == word:
                    return line

    async def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        await self.until("dead")

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.wait_for(self._process.wait(), LIFE_S)


async def restored(stager: Stager, record: CommitRecord, number: int) -> dict[str, bytes]:
    """The files that another machine restores."""
    build = stager._parent / f"{number}-{record.ref}"
    manifest = await stager.fetch(record, build, QUIET_MS)
    return {file.name: (build / file.name).read_bytes() for file in manifest.files}


async def check(stager: Stager, lives: Lives, etcd: Coordination, number: int, *, all_of: bool) -> None:
    records = [record for record in await records_of(etcd) if record.state is CommitState.COMMITTED]
    there = {record.ref.step for record in records}
    assert set(lives.committed) - lives.collecting <= there, "a committed checkpoint is lost"
    for record in records if all_of else records[-1:]:
        assert await restored(stager, record, number) == contents(record.ref), "what is restored is bad"


async def everything(store: HdfsStore, path: str) -> AsyncGenerator[str, None]:
    """Every file below a directory of HDFS, also those that the store does not list."""
    for entry in await store._client.list(path):
        if entry.is_dir:
            async with aclosing(everything(store, entry.path)) as below:
                async for name in below:
                    yield name
        else:
            yield entry.path.removeprefix(f"{store._root}/")


async def kill_again_and_again(
    hdfs: HdfsCluster, etcd_server: EtcdServer, tmp_path: Path, kills: int
) -> None:
    uri = hdfs.fresh_uri("kills")
    store = open_store(uri)
    assert isinstance(store, HdfsStore)
    await store.prepare()
    etcd = committing.connect(etcd_server.endpoint)
    await etcd.txn((), [Put(keys.switch(JOB), encode(JobSwitch(JOB, UUID, JobPhase.RUNNING, 1)))])
    (tmp_path / "node" / "g1").mkdir(parents=True)
    blocks = {"dfs.blocksize": str(committing.BLOCK_BYTES)}
    conf = conf_with(hdfs.conf_dir, tmp_path / "conf", blocks).directory()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", committing.__name__, etcd_server.endpoint, uri, str(tmp_path / "node")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"HADOOP_CONF_DIR": str(conf)},
    )
    lives, rng = Lives(process), random.Random(SEED)
    stager = Stager(store, tmp_path / "machine", BootClock())
    try:
        for number in range(kills):
            pid = await lives.begin()
            await lives.until("committed")
            await asyncio.sleep(rng.uniform(0.0, 0.6))
            await lives.kill(pid)
            await check(stager, lives, etcd, number, all_of=False)
        await lives.end()
        assert len(lives.committed) >= kills
        await check(stager, lives, etcd, kills, all_of=True)
        await check_leftovers(store, etcd)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await etcd.close()


async def check_leftovers(store: HdfsStore, etcd: Coordination) -> None:
    """After what the leader does in the next generation there is what records name, and nothing else."""
    await etcd.txn((), [Put(keys.switch(JOB), encode(JobSwitch(JOB, UUID, JobPhase.RUNNING, 2)))])
    await committing.collect_oldest(etcd, store)
    await committing.sweep(etcd, store)
    named = {
        f"{record.path}/{name}"
        for record in await records_of(etcd)
        for name in (*contents(record.ref), "manifest.json", "checkpoint")
    }
    found = {name async for name in everything(store, store._root)}
    assert found - {".tfsup-store"} == named


@pytest.fixture
def hadoop(hdfs: HdfsCluster, monkeypatch: pytest.MonkeyPatch) -> HdfsCluster:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf_dir))
    return hdfs


async def test_a_dozen_kills(hadoop: HdfsCluster, tmp_path: Path) -> None:
    with EtcdServer() as etcd_server:
        await kill_again_and_again(hadoop, etcd_server, tmp_path, 12)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_a_hundred_kills(hadoop: HdfsCluster, tmp_path: Path) -> None:
    with EtcdServer() as etcd_server:
        await kill_again_and_again(hadoop, etcd_server, tmp_path, 110)


async def test_what_was_just_closed_is_read_whole(hadoop: HdfsCluster) -> None:
    """Its last block may not be complete yet, and the client leaves such a block out."""
    store = open_store(hadoop.fresh_uri("whole"))
    await store.prepare()
    data = bytes(range(256)) * 1000

    async def write_and_read(number: int) -> bytes:
        await store.write_bytes(f"d/{number}", data)
        return await store.read_bytes(f"d/{number}", len(data))

    for begin in range(0, 80, 8):
        found = await asyncio.gather(*(write_and_read(begin + number) for number in range(8)))
        assert set(found) == {data}
