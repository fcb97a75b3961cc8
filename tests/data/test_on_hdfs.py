"""A job reads a directory of a real HDFS, which then goes away for a while."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.data.mounts import CALL_MS, DATA
from chaos.dockerd import Dockerd
from chaos.hdfs import HdfsCluster
from recovery.mount.backends.backend import write_small
from recovery.mount.open import open_backend
from recovery.mount.points import mount_points
from recovery.mount.record import MountFiles
from recovery.policy.hangs import WAITS
from recovery.stores.open import Stores
from supervisor.adapters.files.hadoop import HadoopSettings
from supervisor.contract.views.jobs import JobView
from tests.examples.harness import Cluster, Job, in_containers
from tests.mount.sharing import shared

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WITHIN_S = 120.0
FILES = 20
PROGRAM = """
import os, sys, time
top = os.environ["TFSUP_DATA_TRAIN"]
assert sys.argv[1] == top, sys.argv
attempts = [lambda: open(f"{top}/new", "w"), lambda: os.rename(f"{top}/0", f"{top}/new")]
plain = os.environ.get("TFSUP_DATA_PLAIN")
if plain:
    assert open(f"{plain}/a").read() == "plain"
    attempts.append(lambda: open(f"{plain}/b", "w"))
for attempt in attempts:
    try:
        attempt()
    except OSError as error:
        print("refused", error.errno, flush=True)
step = 0
while True:
    with open(f"{top}/{step % 20}", "rb") as file:
        assert file.read() == b"%d" % (step % 20) * 1000
    step += 1
    print("step", step, flush=True)
    time.sleep(0.05)
"""


async def fill(hdfs: HdfsCluster, name: str) -> str:
    uri, stores = hdfs.fresh_uri(name), Stores(HadoopSettings(conf_dir=str(hdfs.conf_dir)))
    backend = open_backend(uri, stores)
    await backend.mkdirs("")
    for number in range(FILES):
        await write_small(backend, str(number), b"%d" % number * 1000)
    await stores.close()
    return uri


def submit(cluster: Cluster, root: Path, uri: str, **fields: object) -> Job:
    directory = root / "program"
    directory.mkdir(exist_ok=True)
    (directory / "read.py").write_text(PROGRAM)
    document = {
        "name": "reader",
        "strategy": "plain",
        "command": ["python", "read.py", "{data.train}"],
        "preload": [],
        "data": {"train": uri},
        "roles": {"worker": {"count": 1}},
    }
    (directory / "job.yaml").write_text(json.dumps(document | fields))
    return cluster.submit(directory / "job.yaml")


def until(job: Job, holds: Callable[[JobView], bool], within_s: float = WITHIN_S) -> JobView:
    deadline = time.monotonic() + within_s
    while not holds(view := job.view()):
        assert time.monotonic() < deadline, job.story()
        time.sleep(0.1)
    return view


def mounts_of(root: Path) -> set[str]:
    return {each for each in mount_points() if each.startswith(f"{root}/") and f"/{DATA}/" in each}


def test_a_namenode_that_is_away_is_the_cause_and_no_hang(
    hdfs: HdfsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf_dir))
    uri = asyncio.run(fill(hdfs, "data"))
    with Cluster(tmp_path / "state", nodes=2, options=("--profile", "default")) as cluster:
        job = submit(cluster, tmp_path, uri, restart={"max": 0, "scope": {"worker": "all"}})
        job.wait_step(20)
        assert len(mounts_of(tmp_path)) == 1
        assert re.findall(r"refused (\d+)", job.output("worker", 0)) == ["30", "30"]
        hdfs.namenode().freeze()
        try:
            began = time.monotonic()
            until(job, lambda _: bool(job.incidents()))
            took_s = time.monotonic() - began
            (incident,) = job.incidents()
            view = until(job, lambda view: "data.train" in str(view))
        finally:
            hdfs.namenode().thaw()
        assert incident.cause == "store_lost"
        assert CALL_MS / 1000 - 5 < took_s < CALL_MS / 1000 + 30
        assert uri in str(incident)
        before = view.generation
        until(job, lambda view: view.generation >= before and view.tasks[0].state == "running")
        job.wait_step(20)
        view = job.view()
        assert view.restarts_program == 0
        job.stop()
        until(job, lambda _: not mounts_of(tmp_path))


def test_a_task_that_hangs_as_it_waits_for_its_data_is_restarted_for_its_store(
    hdfs: HdfsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's bound ends it while its call waits, before that fails."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf_dir))
    uri = asyncio.run(fill(hdfs, "slow"))
    with Cluster(tmp_path / "state", nodes=1, options=("--profile", "default")) as cluster:
        job = submit(cluster, tmp_path, uri, progress={"act_after": "8s"}, restart={"max": 0})
        job.wait_step(20)
        hdfs.namenode().freeze()
        try:
            until(job, lambda _: bool(job.incidents()))
        finally:
            hdfs.namenode().thaw()
        (incident,) = job.incidents()
        assert incident.cause == "store_lost"
        assert WAITS in incident.detail
        assert 8_000 <= incident.phases_ms["detected"] < CALL_MS
        view = until(job, lambda view: view.generation > 1 and view.tasks[0].state == "running")
        assert view.restarts_program == 0
        job.stop()


def test_data_that_is_not_there_is_told_with_its_path(
    hdfs: HdfsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf_dir))
    uri = hdfs.fresh_uri("absent")
    with Cluster(tmp_path / "state", nodes=1) as cluster:
        job = submit(cluster, tmp_path, uri)
        view = until(job, lambda view: uri in str(view))
        assert "does not exist" in str(view)
        job.stop()


def test_containers_read_the_same_and_cannot_write(
    hdfs: HdfsCluster, dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf_dir))
    uri, state, plain = asyncio.run(fill(hdfs, "contained")), tmp_path / "state", tmp_path / "plain"
    plain.mkdir()
    (plain / "a").write_text("plain")
    with shared(state), in_containers(state, dockerd) as cluster:
        job = submit(cluster, tmp_path, uri, data={"train": uri, "plain": str(plain)})
        job.wait_step(20)
        assert re.findall(r"refused (\d+)", job.output("worker", 0)) == ["30", "30", "30"]
        # A mount that dies is replaced where containers see it, too.
        (point,) = mounts_of(tmp_path)
        beat = MountFiles(Path(point).parent, 0).read_beat()
        assert beat is not None
        os.kill(beat.pid, signal.SIGKILL)
        until(job, lambda view: bool(job.incidents()) and view.tasks[0].state == "running")
        (incident,) = job.incidents()
        assert incident.cause == "store_lost"
        job.wait_step(20)
        job.stop()
