"""Two jobs share eight scripted GPUs on four nodes while their tasks and agents are killed and GPUs fail.

The witness is the kernel: each task locks a file for each GPU that CUDA lets it see, and the kernel lets go
of it when the process is dead, not earlier.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from chaos.container_image import IMAGE, USER_ID
from chaos.dockerd import Dockerd
from chaos.nvidia_docker import runtime_settings
from chaos.nvml import FakeNvml
from supervisor.cli.local.layout import LocalDocker, LocalMount
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.views.jobs import JobView
from tests.nvml.cluster import FIRST, Cluster, gpu_cluster

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]
NODES, KILLS = 4, 30
PROGRAM = """
import fcntl, os, pathlib, sys, time
here = pathlib.Path(os.environ["WITNESS"])
held = []
for uuid in os.environ["CUDA_VISIBLE_DEVICES"].split(","):
    held.append(open(here / uuid, "a"))
    try:
        fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        (here / f"clash-{os.environ['TFSUP_TASK'].replace('/', '-')}").write_text(uuid)
(here / f"ran-{time.monotonic_ns()}").touch()
for step in range(1_000_000):
    print("step", step, flush=True)
    time.sleep(0.05)
"""
JOB = """\
name: {name}
command: [python, prog.py]
strategy: plain
preload: []
code: {{dir: code}}
env: {{WITNESS: {witness}}}
restart: {{backoff: 10ms, backoff_max: 50ms, max: 1000, max_in_window: 1000}}
roles:
  worker: {{count: 2, resources: {{gpus: {gpus}}}}}
checkpoint: {{uri: "file://{directory}/checkpoints-{name}"}}
"""


@pytest.fixture(params=["process", "docker"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    witness = tmp_path / "witness"
    witness.mkdir()
    os.chown(witness, USER_ID, USER_ID)
    if request.param == "process":
        with gpu_cluster(tmp_path, NODES, supervisors=2, program=PROGRAM) as found:
            yield found
        return
    # One dockerd for all nodes: its runtime knows the GPUs of each.
    (tmp_path / "all").mkdir()
    all_gpus = FakeNvml(tmp_path / "all", 2 * NODES, first=FIRST)
    with Dockerd(settings=runtime_settings(all_gpus)) as dockerd:
        docker = LocalDocker(str(dockerd.socket), IMAGE, (LocalMount(str(witness), read_only=False),))
        with gpu_cluster(tmp_path, NODES, supervisors=2, program=PROGRAM, docker=docker) as found:
            yield found


def jobs(cluster: Cluster) -> list[JobView]:
    async def ask() -> list[JobView]:
        async with cluster.local.client() as client:
            return list((await client.status()).jobs)

    return asyncio.run(ask())


def healthy(cluster: Cluster) -> bool:
    with suppress(TfSupervisorError):
        return all(task.state == "running" and task.step >= 0 for job in jobs(cluster) for task in job.tasks)
    return False


def test_no_gpu_is_in_two_tasks_while_everything_is_killed(cluster: Cluster) -> None:
    rng, witness = random.Random(6), cluster.directory / "witness"
    for name, gpus in (("one", 1), ("two", 2)):
        file = cluster.directory / f"{name}.yaml"
        file.write_text(JOB.format(name=name, gpus=gpus, witness=witness, directory=cluster.directory))
        cluster.ask("submit", str(file))
    cluster.until("both jobs train", lambda: healthy(cluster))
    for kill in range(KILLS):
        victims = [task.pid for job in jobs(cluster) for task in job.tasks if task.pid]
        if kill % 5 == 4:
            node = rng.randrange(NODES)
            cluster.local.stop_member(f"agent-{node}")
            cluster.local.start_member(f"agent-{node}")
        elif kill % 5 == 2:
            cluster.nvml[rng.randrange(NODES)].event(rng.randrange(2), rng.choice((13, 48)))
        elif victims:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(victims), signal.SIGKILL)
        time.sleep(rng.uniform(0.0, 1.0))
        for gpu in cluster.gpus():
            if gpu.state == "quarantined" and rng.random() < 0.5:
                cluster.ask("uncordon", gpu.node, "--gpu", gpu.uuid)
    for gpu in cluster.gpus():
        if gpu.state == "quarantined":
            cluster.ask("uncordon", gpu.node, "--gpu", gpu.uuid)
    cluster.until("both jobs train again", lambda: healthy(cluster))
    assert not list(witness.glob("clash-*"))
    assert len(list(witness.glob("ran-*"))) >= KILLS // 2, "it bit"
