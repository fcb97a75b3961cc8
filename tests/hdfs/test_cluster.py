"""The HDFS of the tests itself: its faults bite, and it leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hdfs_native import Client, WriteOptions

from chaos.hdfs import HdfsCluster


def _client(cluster: HdfsCluster) -> Client:
    return Client(cluster.uri, config_dir=str(cluster.conf_dir))


def _write(client: Client, path: str, data: bytes) -> None:
    with client.create(path, WriteOptions(overwrite=True)) as out:
        out.write(data)
    # The client leaves a last block out that a DataNode has not reported yet.
    deadline = time.monotonic() + 10
    while len(client.read(path)) < len(data):
        assert time.monotonic() < deadline, f"{path} stays short"


@pytest.mark.slow
def test_every_daemon_is_a_process_that_can_be_killed_and_comes_back(hdfs_of_my_own: HdfsCluster) -> None:
    cluster = hdfs_of_my_own
    client = _client(cluster)
    _write(client, "/a/file", b"x" * 100_000)

    cluster.wait_replicated("/a/file", 2)
    assert cluster.flip_byte("/a/file", offset=3, replicas=1) == 1
    assert client.read("/a/file").read() == b"x" * 100_000, "the good replica"
    holders = cluster.holders("/a/file")
    assert len(holders) == 2
    assert cluster.flip_byte("/a/file", offset=50_000) == 2
    with pytest.raises((OSError, RuntimeError)):
        client.read("/a/file").read()

    node = cluster.datanode(holders[0])
    pid = node.pid
    node.kill()
    assert not node.alive
    node.restart()
    cluster.wait_ready()
    assert node.pid != pid

    with cluster.namenode().frozen():
        assert cluster.active() is None
    cluster.namenode().kill()
    with pytest.raises((OSError, RuntimeError)):
        client.get_file_info("/a/file")
    cluster.namenode().restart()
    cluster.wait_ready()
    assert client.get_file_info("/a/file").length == 100_000

    cluster.safemode("enter")
    with pytest.raises(RuntimeError, match="SafeModeException"):
        client.mkdirs("/b")
    cluster.safemode("leave")
    client.mkdirs("/b")
    cluster.set_quota("/b", 1000)
    with pytest.raises((OSError, RuntimeError), match="QuotaExceeded"):
        _write(client, "/b/file", b"x")
    cluster.set_quota("/b", None)
    _write(client, "/b/file", b"x")


@pytest.mark.slow
def test_the_other_namenode_takes_over(hdfs_ha: HdfsCluster) -> None:
    cluster = hdfs_ha
    client = _client(cluster)
    _write(client, "/file", b"one")
    assert cluster.active() == 0
    assert cluster.failover() == 1
    assert cluster.active() == 1
    assert client.read("/file").read() == b"one"
    cluster.namenode(1).kill()
    assert cluster.failover() == 0
    cluster.wait_ready()
    assert client.read("/file").read() == b"one"
    cluster.namenode(1).restart()
    cluster.journalnode(2).kill()
    _write(client, "/file", b"two")
    assert client.read("/file").read() == b"two"


PROGRAM = """
from chaos.hdfs import HdfsCluster
cluster = HdfsCluster()
cluster.start()
print(cluster.directory, *(daemon.pid for daemon in cluster.daemons), flush=True)
input()
"""


def test_a_cluster_ends_with_the_process_that_started_it() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        directory, *pids = holder.stdout.readline().split()
        assert len(pids) == 4
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    deadline = time.monotonic() + 30
    while Path(directory).exists() or any(_runs(int(pid)) for pid in pids):
        assert time.monotonic() < deadline, f"left behind: {directory}, {pids}"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return b"hadoop" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
