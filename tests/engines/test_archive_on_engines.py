"""Machines that have a Python and nothing else run a pool from an archive, on real engines."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos.slurm import RACKS, SlurmCluster
from chaos.yarn import AGENT_MIB, YarnCluster
from supervisor.cli.local.cluster import LocalCluster
from tests.cli.shell import ctl
from tests.engines.pool_shell import PoolShell, wait_long

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


@contextmanager
def shell_on(directory: Path, on: str, environment: dict[str, str]) -> Iterator[PoolShell]:
    cluster = LocalCluster(directory / "state", nodes=1, supervisors=1)
    with cluster, PoolShell(cluster, on, environment).alone() as found:
        yield found


def brings(shell: PoolShell, directory: Path, *options: str) -> None:
    """A pool from an archive runs a job with the packages of the archive."""
    assert subprocess.run([BARE, "-c", "import supervisor"], check=False, cwd="/").returncode == 1
    packed = str(
        json.loads(ctl(directory, "--output", "json", "pool", "pack", str(directory)).stdout)["path"]
    )
    up = ("pool", "up", "p", "--archive", packed, "--python", BARE, "--logs", str(directory), *options)
    shell(*up, "--agents", "2")
    shell("pool", "scale", "p", "3")
    wait_long(lambda: len(shell.ready()) == 3, "three agents join")

    (directory / "count.py").write_text(PROGRAM.format(at=str(directory / "ran")))
    (directory / "job.yaml").write_text(JOB)
    shell("submit", str(directory / "job.yaml"))
    wait_long((directory / "ran").exists, "the task runs")
    prefix, click = (directory / "ran").read_text().split()
    # The machines are one, and share a directory: it was unpacked once.
    installations = directory / "state" / "pool" / "installations" / socket.gethostname()
    assert {each.name for each in installations.iterdir()} == {"lock", Path(prefix).name}
    assert click.startswith(f"{installations}/{Path(prefix).name}/lib/")


def refuses(shell: PoolShell, directory: Path, *options: str) -> None:
    """Each machine says that its archive was cut off, and `pool status` shows it."""
    shell("stop", "count")
    shell("pool", "down", "p", "--within", "30")
    installations = directory / "state" / "pool" / "installations" / socket.gethostname()
    shutil.rmtree(installations)
    (packed,) = directory.glob("tfsup-*.tar.gz")
    packed.write_bytes(packed.read_bytes()[: packed.stat().st_size // 2])
    shell("pool", "up", "p", "--archive", str(packed), "--python", BARE, "--logs", str(directory), *options)
    wait_long(
        lambda: " is damaged: Compressed file ended before" in shell("pool", "status", "p").stdout,
        "the reason is shown",
    )
    assert [each.name for each in installations.iterdir()] == ["lock"]


def test_slurms_machines_get_it(tmp_path: Path, slurm_cluster: SlurmCluster) -> None:
    variables = {name: slurm_cluster.environment[name] for name in ("PATH", "SLURM_CONF")}
    with shell_on(tmp_path, "slurm", variables) as shell:
        brings(shell, tmp_path)
        nodes = {place: row["node"] for place, row in shell.agents().items()}
        racks = {place: node["labels"]["rack"] for place, node in nodes.items() if isinstance(node, dict)}
        assert racks == {node: rack for rack, nodes in RACKS.items() for node in nodes}
        refuses(shell, tmp_path)


def test_yarns_containers_get_it_from_yarn(tmp_path: Path, yarn_cluster: YarnCluster) -> None:
    """YARN brings the file itself: no directory is shared."""
    with shell_on(tmp_path, "yarn", yarn_cluster.variables) as shell:
        memory = ("--memory", f"{AGENT_MIB}MiB")
        brings(shell, tmp_path, *memory)
        refuses(shell, tmp_path, *memory)
