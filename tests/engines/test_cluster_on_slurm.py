"""Etcd and supervisors are a job of Slurm, as agents are: training goes on wherever that job comes back."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from chaos.slurm import SlurmCluster
from supervisor.cli.local.cluster import LocalCluster
from tests.cli.shell import ROOT
from tests.engines.pool_shell import JOB, PoolShell, wait_long

SCRIPT = ROOT / "deploy" / "slurm" / "cluster.sh"
NAME = "tfsup-cluster"


class Site:
    """A user of Slurm with a home directory and nothing else."""

    def __init__(self, slurm: SlurmCluster, home: Path) -> None:
        self.slurm = slurm
        self.home = home
        self.state = home / "tfsup"
        script = SCRIPT.read_text()
        # One machine is all nodes here. Each start of the job has another address.
        address = '"127.0.$BEGUN.$((2 + ${SLURM_RESTART_COUNT:-0}))"'
        for old, new in (('"$SLURMD_NODENAME"', address), ("--scratch /tmp", f"--scratch {home}")):
            assert old in script
            script = script.replace(old, new)
        self.script = home / "cluster.sh"
        self.script.write_text(script)
        self.shell = PoolShell(LocalCluster(self.state, nodes=0), "slurm", slurm.variables)

    def submit(self, begun: int) -> None:
        """Submit the cluster. The nodes of this Slurm are small."""
        small = ("--cpus-per-task=1", "--mem=500", f"--chdir={self.home}")
        variables = f"--export=ALL,TFSUP_STATE={self.state},BEGUN={begun}"
        self.slurm.run("sbatch", *small, variables, str(self.script))

    def wait_up(self, address: str) -> None:
        """Wait until the cluster runs at an address, and both agents have found it."""
        config = self.state / "config" / "client.yaml"
        wait_long(lambda: config.exists() and f'"{address}:' in config.read_text(), f"it is at {address}")
        wait_long(lambda: self.shell.works("nodes"), f"a supervisor leads at {address}")

    def job_of_slurm(self) -> str:
        return self.slurm.run("squeue", "--noheader", f"--name={NAME}", "--format=%i %T").strip()

    def trained(self) -> int:
        """The newest step that has a checkpoint."""
        commit = self.shell.job()["newest_commit"]
        assert isinstance(commit, dict)
        return int(commit["step"])

    def left(self) -> list[str]:
        """The processes of the cluster and of its agents."""
        lines = (" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))
        return [line for line in lines if str(self.home) in line]


@pytest.fixture
def site(slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    # The job finds `supervisorctl` and etcd on PATH.
    bin_dir = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{bin_dir}:{os.environ['PATH']}")
    with ExitStack() as stack:
        # Paths of sockets are short.
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfsup-h-")))
        found = Site(slurm_cluster, home)
        stack.callback(wait_long, lambda: found.left() == [], "nothing of it is left")
        stack.callback(slurm_cluster.run, "scancel", "--user=root")
        yield found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_training_goes_on_where_the_job_of_the_cluster_comes_back(site: Site) -> None:
    site.submit(0)
    site.wait_up("127.0.0.2")
    shell = site.shell
    shell("pool", "up", "p", "--agents", "2", "--logs", str(site.home))
    wait_long(lambda: len(shell.ready()) == 2, "two agents join")
    (site.home / "job.yaml").write_text(JOB)
    shell("submit", str(site.home / "job.yaml"))
    shell.trains_on("the beginning")
    wait_long(lambda: shell.job()["newest_commit"] is not None, "a checkpoint is committed")
    before, agents = site.trained(), sorted(shell.agents())

    # Slurm ends the job, and starts it again two minutes later, at another address.
    ident = site.job_of_slurm().split()[0]
    site.slurm.run("scontrol", "requeue", ident)
    wait_long(lambda: not shell.works("nodes"), "it is gone")
    site.wait_up("127.0.0.3")
    wait_long(lambda: len(shell.ready()) == 2, "the agents have followed")
    shell.trains_on("the requeue")
    assert site.trained() >= before
    assert sorted(shell.agents()) == agents

    # Its user cancels it, and submits it again.
    before = site.trained()
    site.slurm.run("scancel", ident)
    wait_long(lambda: site.job_of_slurm() == "", "it has ended")
    site.submit(1)
    site.wait_up("127.0.1.2")
    wait_long(lambda: len(shell.ready()) == 2, "the agents have followed")
    shell.trains_on("another job")
    assert site.trained() >= before

    shell("pool", "down", "p", "--within", "20")
    site.slurm.run("scancel", f"--name={NAME}")
    wait_long(lambda: site.slurm.run("squeue", "--noheader").strip() == "", "Slurm has everything back")
    wait_long(lambda: site.left() == [], "no process is left")
