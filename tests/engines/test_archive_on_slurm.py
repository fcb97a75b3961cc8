"""Machines that have a Python and nothing else run a pool from an archive, on a real Slurm."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.slurm import RACKS, SlurmCluster
from supervisor.cli.local.cluster import LocalCluster
from tests.cli.shell import Shell
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
BARE = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
JOB = """
name: count
strategy: plain
command: [python, count.py]
preload: []
roles: {worker: {count: 1}}
"""
PROGRAM = """
import click, pathlib, sys, time
pathlib.Path({at!r}).write_text(sys.prefix + " " + click.__file__)
time.sleep(600)
"""


@pytest.fixture
def shell(tmp_path: Path, slurm_cluster: SlurmCluster) -> Iterator[Shell]:
    with LocalCluster(tmp_path / "state", nodes=1, supervisors=1) as cluster:
        found = Shell(cluster)
        found.env |= {name: slurm_cluster.environment[name] for name in ("PATH", "SLURM_CONF")}
        found("cordon", "node-0", "--reason", "the job is for the pool")
        yield found
        found.works("pool", "down", "p", "--now")


def racks(shell: Shell) -> dict[str, str]:
    """What the cluster knows of where each node is, by its place."""
    rows = shell.json("pool", "status", "p")["agents"]
    assert isinstance(rows, list)
    return {row["agent"]["place"]: row["node"]["labels"]["rack"] for row in rows}


def agents(shell: Shell) -> list[tuple[str, str]]:
    """The state of each agent in the engine, and of its node in the cluster."""
    rows = shell.json("pool", "status", "p")["agents"]
    assert isinstance(rows, list)
    return [(row["agent"]["state"], row["node"]["state"] if row["node"] else "") for row in rows]


def test_machines_that_have_a_python_alone_run_agents_and_jobs(shell: Shell, tmp_path: Path) -> None:
    """The machine's own Python cannot import the program, and the job's `python` has what was packed."""
    assert subprocess.run([BARE, "-c", "import supervisor"], check=False, cwd="/").returncode == 1
    packed = shell.json("pool", "pack", str(tmp_path))
    archive = Path(str(packed["path"]))
    up = ("pool", "up", "p", "--archive", str(archive), "--python", BARE, "--logs", str(tmp_path))
    shell(*up, "--agents", "2")
    shell("pool", "scale", "p", "3")
    wait_until(lambda: agents(shell) == [("running", "ready")] * 3, "three agents join")
    assert racks(shell) == {node: rack for rack, nodes in RACKS.items() for node in nodes}
    told = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert told.count("tfsup-bootstrap: unpacked ") == 1

    (tmp_path / "count.py").write_text(PROGRAM.format(at=str(tmp_path / "ran")))
    (tmp_path / "job.yaml").write_text(JOB)
    shell("submit", str(tmp_path / "job.yaml"))
    wait_until((tmp_path / "ran").exists, "the task runs")
    prefix, click = (tmp_path / "ran").read_text().split()
    installations = tmp_path / "state" / "pool" / "installations" / socket.gethostname()
    assert Path(prefix).parent == installations
    assert click.startswith(f"{prefix}/lib/")
    shell("stop", "count")
    shell("pool", "down", "p", "--within", "30")

    # An archive that was cut off: each machine says so, and `pool status` shows it.
    shutil.rmtree(installations)
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    shell(*up)
    wait_until(lambda: {state for state, _ in agents(shell)} == {"ended"}, "the agent gives up")
    assert f"{archive} is damaged: Compressed file ended before" in shell("pool", "status", "p").stdout
    assert [each.name for each in installations.iterdir()] == ["lock"]
