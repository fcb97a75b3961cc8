"""The embedded cluster, for real: it comes up, keeps its members, excludes a second one, leaves nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from supervisor.cli.local import keeper, processes
from supervisor.cli.local.cluster import LocalCluster, LocalStatus, MemberView
from supervisor.cli.local.layout import Layout, LocalSettings
from supervisor.contract.errors import Conflict, NotFound, Unreachable
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("local") / "state", nodes=2) as found:
        yield found


def test_everything_is_up_and_private(cluster: LocalCluster) -> None:
    members = {member.member: member for member in cluster.status().members}
    assert set(members) == {"etcd", "supervisor-0", "supervisor-1", "agent-0", "agent-1"}
    assert all(member.state == "running" and member.pid for member in members.values())
    for directory in (cluster.layout.state, cluster.layout.run):
        assert directory.stat().st_mode & 0o777 == 0o700

    async def ask() -> list[str]:
        async with cluster.client() as client:
            return [node.state for node in (await client.nodes()).nodes]

    assert asyncio.run(ask()) == ["ready", "ready"]


def test_a_second_cluster_in_the_same_directory_is_a_conflict(cluster: LocalCluster) -> None:
    with pytest.raises(Conflict, match=r"a cluster runs in .* already; use it, stop it with"):
        LocalCluster(cluster.layout.state).up()
    assert cluster.status().running


@pytest.mark.parametrize("name", ["supervisor-0", "etcd"])
def test_a_member_that_dies_is_started_again(cluster: LocalCluster, name: str) -> None:
    before = cluster.member(name)
    cluster.kill_member(name)
    wait_until(lambda: cluster.member(name).pid not in (0, before.pid))
    after = cluster.member(name)
    assert after.restarts == before.restarts + 1
    assert after.last_exit == "signal 9"


def test_a_member_that_was_stopped_stays_stopped_until_it_is_started(cluster: LocalCluster) -> None:
    stopped = cluster.stop_member("agent-1", signal.SIGKILL)
    assert (stopped.state, stopped.pid) == ("stopped", 0)
    assert cluster.member("agent-1").state == "stopped"
    assert cluster.start_member("agent-1").state == "running"
    with pytest.raises(NotFound, match="no member 'x'; members: etcd, supervisor-0"):
        cluster.stop_member("x")


def test_nothing_outlives_a_keeper_that_is_killed_and_the_directory_can_be_used_again(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "state", nodes=1, supervisors=1)
    status = cluster.up()
    pids = [member.pid for member in status.members]
    os.kill(status.keeper_pid, signal.SIGKILL)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert not cluster.status().running
    again = cluster.up()
    assert all(member.pid not in pids for member in again.members)
    left = [again.keeper_pid, *processes.descendants(again.keeper_pid)]
    assert cluster.down()
    assert not any(Path(f"/proc/{pid}").exists() for pid in left)
    assert cluster.down() == []


def test_a_long_path_gets_its_sockets_elsewhere(tmp_path: Path) -> None:
    layout = Layout.of(tmp_path / ("x" * 90))
    assert not layout.run.is_relative_to(layout.state)
    layout.make()
    layout.write(LocalSettings(cluster="local", nodes=1, supervisors=1, profile="fast").check())
    assert layout.run.stat().st_mode & 0o777 == 0o700
    assert layout.read() == LocalSettings(cluster="local", nodes=1, supervisors=1, profile="fast")


def test_a_member_is_started_again_although_no_line_can_be_written_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = LocalSettings(cluster="c", nodes=1, supervisors=1, profile="fast")
    full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
    monkeypatch.setattr(processes, "reap", lambda: [(4711, 1)])

    async def lose_one() -> None:
        kept = keeper.Keeper(Layout.of(tmp_path), settings, 0, 0.0)
        (etcd, *_) = kept._members.values()
        etcd.pid = 4711
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", full)
            kept._children_ended()
        assert etcd.timer is not None, "a disk that is full, which etcd died of, holds the keeper's log, too"
        etcd.timer.cancel()

    asyncio.run(lose_one())
    with suppress(OSError):
        full.close()


def test_a_full_disk_that_keeps_a_member_from_starting_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster(tmp_path / "state")
    cluster.layout.log("etcd").parent.mkdir(parents=True)
    said = '{"error":"write /st/etcd/db: no space left on device","stacktrace":"raft.go:513"}\npanic\n'
    cluster.layout.log("etcd").write_text(said)
    etcd = MemberView("etcd", "restarting", 0, 0, 4, 0, "exit code 2")
    with pytest.raises(Unreachable) as failed:
        cluster._check_members(LocalStatus("st", running=True, keeper_pid=1, members=(etcd,)))
    why = "write /st/etcd/db: no space left on device; make room on that disk"
    assert str(failed.value) == f"etcd does not start (exit code 2): {why}"
