"""Training does not notice what happens to HDFS: its step rate is unchanged, and commits go on afterwards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.hdfs import HdfsCluster
from examples.demo.steplog import StepLog
from tests.examples.harness import Cluster
from tests.hdfs.training import assert_unbroken, assert_unhurt, control, digits, heavy

pytestmark = pytest.mark.timeout(600)


@contextlib.contextmanager
def cluster_for(hdfs: HdfsCluster, root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """An embedded cluster that knows this HDFS."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf_dir))
    # Of its durations a machine that stands still for a while makes no lost node.
    with Cluster(root / "state", nodes=2, options=("--profile", "default")) as found:
        yield found


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[StepLog]:
    """The log of a process that shows what else the machine has to do."""
    with control(tmp_path / "control") as found:
        yield found


@pytest.fixture
def cluster(hdfs: HdfsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """An embedded cluster that knows the shared HDFS."""
    with cluster_for(hdfs, tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
def cluster_ha(hdfs_ha: HdfsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """An embedded cluster that knows an HDFS with two NameNodes."""
    with cluster_for(hdfs_ha, tmp_path, monkeypatch) as found:
        yield found


def test_a_namenode_that_freezes_holds_up_no_training(
    hdfs: HdfsCluster, cluster: Cluster, beside: StepLog, tmp_path: Path
) -> None:
    """It makes many steps meanwhile, and saves; how quick they are is measured where there is time to."""
    training = digits(cluster, hdfs, beside, tmp_path)
    pids = training.pids()
    try:
        training.blocked(5.0, hdfs.namenode().freeze)
    finally:
        hdfs.namenode().thaw()
    training.wait_commit(training.step())
    assert_unbroken(training, pids)


@pytest.mark.slow
def test_a_namenode_that_is_frozen_for_20_s(
    hdfs: HdfsCluster, cluster: Cluster, beside: StepLog, tmp_path: Path
) -> None:
    training = digits(cluster, hdfs, beside, tmp_path)
    pids = training.pids()
    before = training.window(20.0)
    try:
        during = training.blocked(20.0, hdfs.namenode().freeze)
    finally:
        hdfs.namenode().thaw()
    training.wait_commit(training.step())
    assert_unhurt(training, pids, before, during)


@pytest.mark.slow
def test_a_namenode_that_is_dead_for_20_s(
    hdfs: HdfsCluster, cluster: Cluster, beside: StepLog, tmp_path: Path
) -> None:
    training = digits(cluster, hdfs, beside, tmp_path)
    pids = training.pids()
    before = training.window(20.0)
    try:
        during = training.blocked(20.0, hdfs.namenode().kill)
        training.until(lambda view: "HDFS" in view.commit_trouble)
    finally:
        hdfs.namenode().restart()
        hdfs.wait_ready()
    training.wait_commit(training.step())
    training.until(lambda view: not view.commit_trouble)
    assert_unhurt(training, pids, before, during)


@pytest.mark.slow
def test_a_datanode_that_dies_in_a_commit(
    hdfs_of_my_own: HdfsCluster, beside: StepLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster_for(hdfs_of_my_own, tmp_path, monkeypatch) as cluster:
        training = heavy(cluster, hdfs_of_my_own, beside, tmp_path, megabytes=96, save_secs=6.0)
        pids = training.pids()
        before = training.window(20.0)
        victim = _next_that_is_written_to(hdfs_of_my_own)
        committed = training.committed()
        during = training.window(20.0, hdfs_of_my_own.datanode(victim).kill)
        training.wait_commit(max(committed, training.step()))
        assert_unhurt(training, pids, before, during)


def _next_that_is_written_to(hdfs: HdfsCluster) -> int:
    """Wait until some DataNode has a part of a block that is being written, and at least 4 MiB of it."""
    deadline = time.monotonic() + 60
    while True:
        for path in (hdfs.directory / "data").glob("datanode*/current/*/current/rbw/blk_*"):
            try:
                if path.stat().st_size > 4 << 20:
                    return int(path.relative_to(hdfs.directory / "data").parts[0].removeprefix("datanode"))
            except FileNotFoundError:
                continue  # it was finished between the two looks
        assert time.monotonic() < deadline, "no commit is under way"
        time.sleep(0.005)


@pytest.mark.slow
def test_the_active_namenode_is_lost(
    hdfs_ha: HdfsCluster, cluster_ha: Cluster, beside: StepLog, tmp_path: Path
) -> None:
    training = digits(cluster_ha, hdfs_ha, beside, tmp_path)
    pids = training.pids()
    before = training.window(20.0)

    def lose_it() -> None:
        hdfs_ha.namenode(0).kill()
        assert hdfs_ha.failover() == 1

    during = training.window(20.0, lose_it)
    training.wait_commit(training.step())
    assert_unhurt(training, pids, before, during)
