"""Etcd loses all its data beneath agents that run, for real, and an operator follows docs/checkpoints.md."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.cli.local.cluster import LocalCluster
from tests.cli.counting import Shell, until

AGENTS, SUPERVISORS = ("agent-0", "agent-1"), ("supervisor-0", "supervisor-1")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A job that runs and has saved."""
    with LocalCluster(tmp_path / "state", nodes=len(AGENTS), supervisors=len(SUPERVISORS)) as cluster:
        made = Shell(cluster, tmp_path)
        made("submit", str(made.job))
        made.run_until_saved(2)
        yield made


def task_pid(shell: Shell) -> int:
    """Of the job's only task."""
    jobs = shell.json("status", "count")["jobs"]
    assert isinstance(jobs, list)
    (task,) = jobs[0]["tasks"]
    return int(task["pid"])


def nodes(shell: Shell) -> int:
    """How many are there."""
    found = shell.json("nodes")["nodes"]
    assert isinstance(found, list)
    return len(found)


def lose_data(cluster: LocalCluster) -> None:
    """Supervisors are stopped before an empty etcd is started; agents stay."""
    for name in (*SUPERVISORS, "etcd"):
        cluster.stop_member(name)
    shutil.rmtree(cluster.layout.state / "etcd" / "data")
    for name in ("etcd", *SUPERVISORS):
        cluster.start_member(name)


def is_gone(pid: int) -> bool:
    """Its parent may not have waited for it yet."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_what_ran_is_ended_by_agents_that_stay_and_the_job_goes_on(shell: Shell) -> None:
    cluster, pid = shell.cluster, task_pid(shell)
    agents = {name: cluster.member(name).pid for name in AGENTS}
    kept = max(each.ref for each in shell.list())
    lose_data(cluster)
    until(lambda: is_gone(pid), "what ran under the lost etcd to end")
    # Both have joined what is another cluster now.
    until(lambda: nodes(shell) == len(AGENTS), "the nodes to be back")
    assert {name: cluster.member(name).pid for name in AGENTS} == agents
    shell("submit", "--resume", str(shell.job))
    shell("checkpoints", "count", "rebuild")
    newest = shell.list()[0].ref
    assert newest >= kept, "nothing that was committed is missing"
    shell("start", "count")
    shell("wait", "count", "--for", "running", "--timeout", "60")
    assert shell.base() == str(newest)
    assert not is_gone(task_pid(shell))
    logs = cluster.layout.state / "logs"
    said = "".join(path.read_text() for path in logs.glob("agent-*"))
    assert "etcd was begun anew: this is another cluster" in said
