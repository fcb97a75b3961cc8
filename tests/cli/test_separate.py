"""`local up --separate`, and jobs that fill its nodes: what operators see of both."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.cli.local.cluster import LocalCluster
from supervisor.cli.local.layout import LocalDocker, LocalSettings
from supervisor.contract.errors import UserError
from tests.cli.saving import SavingShell
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
WRITES = """
import os, pathlib, time
here = pathlib.Path(os.environ["CHECKPOINT_DIR"])
(here / f"of-{os.environ['TASK']}").write_text(str(here))
while True:
    time.sleep(0.1)
"""
JOB = """
name: {name}
strategy: plain
command: ["{python}", writes.py]
preload: []
env: {{TASK: "{{task_index}}"}}
roles: {{worker: {{count: 2, resources: {{cpus: {cpus}}}}}}}
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SavingShell]:
    directory = tmp_path_factory.mktemp("separate")
    with LocalCluster(directory / "state", nodes=2, supervisors=1, separate=True) as cluster:
        (directory / "writes.py").write_text(WRITES)
        yield SavingShell(cluster, directory)


def submit(shell: SavingShell, name: str, cpus: int) -> None:
    """One task on each node, that asks for so much of it."""
    job = shell.directory / f"{name}.yaml"
    job.write_text(JOB.format(name=name, python=sys.executable, cpus=cpus))
    shell("submit", str(job))


def files(shell: SavingShell, job: str, above: int = 0) -> dict[str, str]:
    """The files of its tasks by agent, from a generation in force above the given one."""
    (found,) = _jobs(shell, job)
    below = shell.cluster.layout.state / "separate"
    written = below.glob(f"*/{found['uuid']}/g{found['generation']}/of-*")
    if int(str(found["generation"])) <= above:
        return {}
    return {path.relative_to(below).parts[0]: path.read_text() for path in written}


def node(shell: SavingShell, name: str) -> dict[str, object]:
    """A node as `nodes` lists it."""
    nodes = shell.json("nodes")["nodes"]
    assert isinstance(nodes, list)
    (found,) = [each for each in nodes if each["node"] == name]
    assert isinstance(found, dict)
    return found


def _jobs(shell: SavingShell, job: str) -> list[dict[str, object]]:
    jobs = shell.json("status", job)["jobs"]
    assert isinstance(jobs, list)
    return jobs


def test_each_node_has_a_directory_of_its_own_at_the_same_path(shell: SavingShell) -> None:
    submit(shell, "apart", os.cpu_count() or 1)
    shell("wait", "apart", "--for", "running", "--timeout", "60")
    wait_until(lambda: len(files(shell, "apart")) == 2, "the files of both tasks")
    (shown,) = set(files(shell, "apart").values())
    assert shown.startswith(str(shell.cluster.layout.tasks))
    assert not list(shell.cluster.layout.tasks.iterdir()), "nobody outside sees what is there"
    # An agent that is started again finds its node's directory.
    life = node(shell, "node-0")["incarnation"]
    shell.cluster.kill_member("agent-0")
    wait_until(lambda: node(shell, "node-0")["incarnation"] not in ("", life), "its restart")
    shell("restart", "apart")
    wait_until(lambda: len(files(shell, "apart", above=1)) == 2, "the files of a later generation")
    shell("stop", "apart")
    shell("wait", "apart", "--for", "ended", "--timeout", "60")


def test_of_two_jobs_that_wait_for_all_cpus_one_starts_when_there_is_room(shell: SavingShell) -> None:
    """Before, both were placed in one look, and each node ran twice what it has."""
    all_cpus = os.cpu_count() or 1
    submit(shell, "fills", all_cpus)
    shell("wait", "fills", "--for", "running", "--timeout", "60")
    for job in ("first", "second"):
        submit(shell, job, all_cpus)
    assert [_jobs(shell, job)[0]["phase"] for job in ("first", "second")] == ["waiting", "waiting"]
    shell("stop", "fills")
    shell("wait", "first", "--for", "running", "--timeout", "60")
    (second,) = _jobs(shell, "second")
    assert (second["phase"], second["generation"]) == ("waiting", 0)
    assert "0 free" in str(second["waiting_for"])
    shell("stop", "first")
    shell("wait", "second", "--for", "running", "--timeout", "60")


def test_containers_are_refused() -> None:
    settings = LocalSettings(
        cluster="c",
        nodes=1,
        supervisors=1,
        profile="fast",
        docker=LocalDocker("/var/run/docker.sock"),
        separate=True,
    )
    with pytest.raises(UserError, match="--separate is for --runtime process"):
        settings.check()


@pytest.mark.slow
def test_a_job_whose_servers_write_their_own_shards_is_refused_at_its_first_save(tmp_path: Path) -> None:
    example = ROOT / "examples" / "digits_shards"
    job = (example / "job.yaml").read_text().replace("mode: mounted", "mode: staged")
    job = job.replace("command: [python,", f'command: ["{sys.executable}",')
    (tmp_path / "train.py").write_text((example / "train.py").read_text())
    (tmp_path / "shards.yaml").write_text(job)
    with LocalCluster(tmp_path / "state", nodes=3, supervisors=1, separate=True) as cluster:
        shell = SavingShell(cluster, tmp_path)
        shell("submit", str(tmp_path / "shards.yaml"))
        ended = subprocess.run(
            [*shell.argv, "wait", "digits_shards", "--for", "ended", "--timeout", "240"],
            env=shell.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "failed" in ended.stdout + ended.stderr
        (found,) = _jobs(shell, "digits_shards")
        assert found["phase"] == "failed"
        assert "checkpoint: {mode: mounted}" in str(found["reason"])
        incidents = shell.json("explain", "digits_shards")["incidents"]
        assert isinstance(incidents, list)
        assert [each["cause"] for each in incidents] == ["submitted", "user_error"], "it was not tried again"
        assert "checkpoint: {mode: mounted}" in shell("explain", "digits_shards").stdout
