"""Etcd loses all its data beneath agents that run, for real, and an operator follows docs/checkpoints.md."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from supervisor.cli.local.cluster import LocalCluster
from tests.cli.saving import SavingShell
from tests.support.waiting import wait_until

AGENTS, SUPERVISORS = ("agent-0", "agent-1"), ("supervisor-0", "supervisor-1")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[SavingShell]:
    """A job that runs and has saved."""
    with LocalCluster(tmp_path / "state", nodes=len(AGENTS), supervisors=len(SUPERVISORS)) as cluster:
        made = SavingShell(cluster, tmp_path)
        made("submit", str(made.job))
        made.run_until_saved(2)
        yield made


def task_pid(shell: SavingShell) -> int:
    """Of the job's only task."""
    jobs = shell.json("status", "count")["jobs"]
    assert isinstance(jobs, list)
    (task,) = jobs[0]["tasks"]
    return int(task["pid"])


def nodes(shell: SavingShell) -> int:
    """The number of nodes."""
    found = shell.json("nodes")["nodes"]
    assert isinstance(found, list)
    return len(found)


def data_of(cluster: LocalCluster) -> Path:
    """The data directory of etcd."""
    return cluster.layout.state / "etcd" / "data"


def change_data(cluster: LocalCluster, backup: Path | None = None) -> None:
    """Supervisors are stopped before another etcd is started, an empty one or a copy; agents stay."""
    for name in (*SUPERVISORS, "etcd"):
        cluster.stop_member(name)
    shutil.rmtree(data_of(cluster))
    if backup is not None:
        shutil.copytree(backup, data_of(cluster))
    for name in ("etcd", *SUPERVISORS):
        cluster.start_member(name)


def take_up(shell: SavingShell) -> str:
    """Follow docs/checkpoints.md after the loss of etcd; return the newest checkpoint."""
    wait_until(partial(shell.works, "nodes"), "a leader")
    wait_until(lambda: nodes(shell) == len(AGENTS), "the nodes to be back")
    shell("submit", "--resume", str(shell.job))
    shell("checkpoints", "count", "rebuild")
    newest = str(shell.list()[0].ref)
    shell("start", "count")
    shell("wait", "count", "--for", "running", "--timeout", "60")
    return newest


def refused(cluster: LocalCluster, member: str) -> bool:
    """Whether it has ended rather than work on what etcd holds."""
    why = "A snapshot was restored, which knows nothing of what was committed since"
    return why in said_by(cluster, member)


def said_by(cluster: LocalCluster, member: str) -> str:
    """All that it has logged."""
    logs = (cluster.layout.state / "logs").glob(f"{member}*")
    return "".join(path.read_text() for path in logs)


def is_gone(pid: int) -> bool:
    """Its parent may not have waited for it yet."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_what_ran_is_ended_by_agents_that_stay_and_the_job_goes_on(shell: SavingShell) -> None:
    cluster, pid = shell.cluster, task_pid(shell)
    agents = {name: cluster.member(name).pid for name in AGENTS}
    change_data(cluster)
    wait_until(lambda: is_gone(pid), "what ran under the lost etcd to end")
    newest = take_up(shell)
    assert {name: cluster.member(name).pid for name in AGENTS} == agents
    assert 1 in {each.ref.generation for each in shell.list()}, "what was committed is recorded again"
    assert shell.base() == newest
    assert not is_gone(task_pid(shell))
    assert "etcd was begun anew: this is another cluster" in said_by(cluster, "agent-")


def test_an_old_snapshot_is_refused_until_an_empty_etcd_takes_its_place(
    shell: SavingShell, tmp_path: Path
) -> None:
    cluster, backup = shell.cluster, tmp_path / "backup"
    cluster.stop_member("etcd")
    shutil.copytree(data_of(cluster), backup)
    cluster.start_member("etcd")
    wait_until(partial(shell.works, "restart", "count"), "etcd to be back")
    wait_until(
        lambda: max(each.ref.generation for each in shell.list()) > 1, "what the copy knows nothing of"
    )
    pid = task_pid(shell)
    change_data(cluster, backup)
    wait_until(lambda: all(map(partial(refused, cluster), SUPERVISORS)), "both supervisors to refuse")
    wait_until(lambda: is_gone(pid), "what ran under the lost etcd to end")
    assert "etcd lacks what it had" in said_by(cluster, "agent-")
    assert "no leading supervisor answered" in shell("status", code=5).stderr
    change_data(cluster)
    newest = take_up(shell)
    assert not newest.startswith("g1-"), "what was committed since the copy is not lost"
    assert shell.base() == newest
