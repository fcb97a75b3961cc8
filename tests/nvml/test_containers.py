"""A task in a container has its GPUs by nvidia-docker; if it loses them inside, it gets another container."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from chaos.dockerd import Dockerd
from chaos.nvidia_docker import hook_env, runtime_settings, see
from chaos.nvml import FakeNvml
from supervisor.contract.observed import AttemptReport, ExitReason
from tests.nvml.faults import measure_denied
from tests.runtimes.docker_node import DockerNode
from tests.support.etcd_server import EtcdServer

PROGRAM = """
import os, time
print("sees", os.environ["CUDA_VISIBLE_DEVICES"], os.path.exists("/run/fake-nvml"), flush=True)
for step in range(100_000):
    print("step", step, flush=True)
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    return FakeNvml(tmp_path_factory.mktemp("nvml"), 2)


@pytest.fixture(scope="module", params=["runtime", "hook"])
def nvidia_docker(request: pytest.FixtureRequest, nvml: FakeNvml) -> Iterator[Dockerd]:
    path = f"/usr/sbin:/usr/bin:/sbin:/bin:{os.environ['PATH']}"
    settings = runtime_settings(nvml) if request.param == "runtime" else None
    with Dockerd(settings=settings, env=hook_env(nvml, path) if settings is None else None) as daemon:
        yield daemon


@pytest.fixture
async def node(nvidia_docker: Dockerd) -> AsyncIterator[DockerNode]:
    with EtcdServer() as etcd:
        node = DockerNode(etcd.endpoint, nvidia_docker)
        node.program(PROGRAM)
        yield node
        await node.close()


async def test_the_gpu_that_is_lost_inside(node: DockerNode, nvml: FakeNvml) -> None:
    node.start()
    job = node.job(await node.until_joined())
    job.assignment = replace(job.assignment, gpus=(nvml.uuids[1],))
    prepared = await job.prepare()
    assert not prepared.failure, prepared.failure + node.log
    await job.run()
    await node.until_printed(f"sees {nvml.uuids[1]} True")
    container = await node.container()
    see(nvml, container)

    async def reported() -> AttemptReport | None:
        return await job.report("running") or await job.report("exited")

    ended = await job.exited()
    assert ended.exit is not None
    assert ended.exit.reason is ExitReason.DEVICES_LOST
    assert nvml.uuids[1] in ended.exit.detail
    for number in (2, 3, 4):
        job.assignment = replace(job.assignment, attempt=number)
        await job.write()
        found = await node.until(reported, 60)
        if found.exit is None:
            break
        # Between two launchers nobody holds the port, and other tests may take it.
        assert "no port" in found.exit.detail, found.exit
    assert await node.container() != container


async def test_the_devices_that_the_kernel_denies_inside(node: DockerNode, nvml: FakeNvml) -> None:
    """While NVML finds them well, inside and outside, and the program runs on."""
    node.start()
    _, _, ended = await measure_denied(node, nvml.uuids[0])
    assert ended.exit is not None
    assert ended.exit.reason is ExitReason.DEVICES_LOST
    assert "/dev/nvidiactl cannot be opened" in ended.exit.detail


async def test_a_task_without_gpus_sees_none(node: DockerNode) -> None:
    node.start()
    job = node.job(await node.until_joined())
    await job.run()
    await node.until_printed("sees -1 False")
