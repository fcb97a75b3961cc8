"""Digits on a pool of a real Slurm: whatever ends, training goes on, and all is given back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from chaos.programs import STEPS, job_file
from chaos.slurm import SlurmCluster
from supervisor.cli.local.cluster import LocalCluster
from tests.cli.saving import SavingShell
from tests.engines.pool_shell import JOB, PoolShell, ours, wait_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def shell(tmp_path: Path, slurm_cluster: SlurmCluster) -> Iterator[PoolShell]:
    cluster = LocalCluster(tmp_path / "state", nodes=1, supervisors=2)
    with cluster, PoolShell(cluster, "slurm", slurm_cluster.variables).alone() as found:
        yield found


def test_training_survives_whatever_slurm_does(
    shell: PoolShell, tmp_path: Path, slurm_cluster: SlurmCluster
) -> None:
    shell("pool", "up", "p", "--agents", "3", "--notice", "40", "--logs", str(tmp_path))
    wait_long(lambda: shell.ready() == {"n1", "n2", "n3"}, "three agents join")
    (tmp_path / "job.yaml").write_text(JOB)
    shell("submit", str(tmp_path / "job.yaml"))
    shell.trains_on("the beginning")

    for task in ("worker:0", "ps:0"):
        shell.survives(task, psutil.Process(int(str(shell.tasks()[task]["pid"]))).kill)

    # scancel of a step, without a word: its node is lost (rule 3), and its tasks go on elsewhere.
    place = str(shell.tasks()["ps:0"]["node"]).removeprefix("p.")
    slurm_cluster.run("scancel", "--batch", "--signal=KILL", shell.ident(place))
    wait_long(lambda: place not in shell.agents(), "the job of the step has ended")
    wait_long(lambda: shell.tasks()["ps:0"]["node"] != f"p.{place}", "the parameter server has moved")
    shell.trains_on("step")
    shell("pool", "scale", "p", "3")
    wait_long(lambda: len(shell.ready()) == 3, "another agent has come")

    # scancel as usual: the keeper ends its node itself, and D is not waited for.
    place = str(shell.tasks()["ps:0"]["node"]).removeprefix("p.")
    slurm_cluster.run("scancel", shell.ident(place))
    wait_long(lambda: shell.tasks()["ps:0"]["node"] != f"p.{place}", "the parameter server has moved")
    shell.trains_on("scancel")
    shell("pool", "scale", "p", "3")
    wait_long(lambda: len(shell.ready()) == 3, "another agent has come")

    # A slurmd dies: what it started lives on until Slurm takes the node for lost and the daemon is back.
    slurm_cluster.kill(place)
    wait_long(lambda: place not in shell.ready(), "Slurm takes its node for lost")
    slurm_cluster.start(place)
    wait_long(lambda: len(shell.ready()) == 3, "Slurm has given the agent a machine again")
    shell.trains_on("slurmd")

    shell("pool", "down", "p", "--within", "20")
    assert slurm_cluster.run("squeue", "--noheader").strip() == ""
    wait_long(lambda: ours(tmp_path) == [], "no process is left")


def test_a_cancellation_while_a_node_is_fenced_leaves_no_process(
    shell: PoolShell, tmp_path: Path, slurm_cluster: SlurmCluster
) -> None:
    """Its launchers have no parent any more, so that Slurm's signal reaches the fence and not them."""
    shell("pool", "up", "p", "--agents", "1", "--notice", "20", "--logs", str(tmp_path))
    wait_long(lambda: len(shell.ready()) == 1, "an agent joins")
    (tmp_path / "job.yaml").write_text(json.dumps(job_file(STEPS, "digits", {})))
    shell("submit", str(tmp_path / "job.yaml"))
    shell.trains_on("the beginning")
    (place,) = shell.agents()
    ident = shell.ident(place)
    slurm_cluster.run("scancel", "--batch", "--signal=USR2", ident)
    wait_long(lambda: any(line.endswith("--fence") for line in ours(tmp_path)), "its node is fenced")
    slurm_cluster.run("scancel", ident)
    wait_long(lambda: slurm_cluster.run("squeue", "--noheader").strip() == "", "its job has ended")
    assert ours(tmp_path) == []


def test_a_time_limit_has_the_program_save_and_the_next_allocation_goes_on_from_there(
    shell: PoolShell, tmp_path: Path, slurm_cluster: SlurmCluster
) -> None:
    """No other node has room: it saves when the notice comes, and again before its node ends.

    It saves only when it is asked. It is asked twice in the beginning, which shows that a save takes too long
    to be asked for again within the limit.
    """
    saving = SavingShell(shell.cluster, tmp_path)
    saving.save_when_asked()
    program = tmp_path / "count.py"
    program.write_text(program.read_text().replace("prefix = ", "time.sleep(0.1); prefix = "))
    saving.job.write_text(saving.job.read_text().replace("keep: 3", "keep: 5, max_overhead: 0.01"))
    limited = ("--time", "3:00", "--notice", "40", "--requeue")
    shell("pool", "up", "p", *limited, "--logs", str(tmp_path))
    wait_long(lambda: len(shell.ready()) == 1, "an agent joins")
    (ident,) = map(shell.ident, shell.agents())
    shell("submit", str(saving.job))
    wait_long(lambda: len(saving.list()) == 2, "it is known what a save takes")

    before = 0

    def nears() -> bool:
        nonlocal before
        step = shell.view("count").step
        if "its time limit nears" in logs(tmp_path):
            return True
        before = step
        return False

    wait_long(nears, "Slurm gives notice")
    wait_long(lambda: "running scontrol requeue" in logs(tmp_path), "the agent is queued again")
    saved = sorted(each.ref.step for each in saving.list())
    assert len(saved) == 4
    assert saved[1] < before <= saved[2] < saved[3]

    wait_long(lambda: len(shell.ready()) == 1, "it has come back")
    assert "Restarts=1 " in slurm_cluster.run("scontrol", "show", "job", ident)
    wait_long(lambda: shell.runs("count") and shell.view("count").base is not None, "it goes on")
    base = shell.view("count").base
    assert base is not None
    assert base.step == saved[3]
    step = shell.view("count").step
    wait_long(lambda: shell.view("count").step > step + 20, "it makes new steps")


def test_a_client_that_is_killed_leaves_a_whole_pool_or_none(
    shell: PoolShell, tmp_path: Path, slurm_cluster: SlurmCluster
) -> None:
    argv = [*shell.argv, "pool", "up", "p", "--agents", "2", "--logs", str(tmp_path)]
    for after_s in (0.3, 0.8, 1.3, 1.8):
        client = subprocess.Popen(argv, env=shell.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            client.wait(after_s)
        except subprocess.TimeoutExpired:
            client.kill()
            client.wait()
        there = slurm_cluster.run("squeue", "--noheader", "--array").splitlines()
        assert len(there) in (0, 2)
        if there:
            shell("pool", "down", "p", "--now")
            assert slurm_cluster.run("squeue", "--noheader").strip() == ""


def logs(directory: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in directory.glob("*.log"))
