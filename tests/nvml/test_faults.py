"""A node's agent tells the leader of each class of fault; who succeeds it knows what it knew."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.nvml import FakeNvml
from supervisor.contract import keys
from supervisor.contract.observed import ExitReason, GpuHealth, GpuReport
from tests.agent.cluster import Node
from tests.nvml.faults import CASES, DEADLINE_S, Case, measure, measure_inside
from tests.support.etcd_server import EtcdServer


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


@pytest.mark.parametrize("case", [CASES[2], CASES[10], CASES[11]], ids=lambda case: case.name)
async def test_fault(etcd: EtcdServer, case: Case, tmp_path: Path) -> None:
    _, gpu = await measure(etcd.endpoint, case, tmp_path)
    assert gpu.index == 1
    assert gpu.reason


async def test_a_gpu_that_vanishes_inside_alone(etcd: EtcdServer, tmp_path: Path) -> None:
    _, _, ended = await measure_inside(etcd.endpoint, tmp_path)
    assert ended.exit is not None
    assert ended.exit.reason is ExitReason.DEVICES_LOST
    assert "is not there" in ended.exit.detail


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_every_fault(etcd: EtcdServer, case: Case, tmp_path: Path) -> None:
    _, gpu = await measure(etcd.endpoint, case, tmp_path)
    assert gpu.reason


async def test_an_agent_s_successor_goes_on_with_its_serials(etcd: EtcdServer, tmp_path: Path) -> None:
    nvml = FakeNvml(tmp_path)
    node = Node(etcd.endpoint, "heir", more={"gpus": {"library": str(nvml.library)}})

    async def report() -> GpuReport | None:
        return await node.read(GpuReport, keys.gpus("heir"))

    async def faulty() -> GpuReport | None:
        found = await report()
        return found if found and any(gpu.health is GpuHealth.FAULTY for gpu in found.gpus) else None

    try:
        node.start()
        first = await node.until_joined()
        await node.until(report, DEADLINE_S)
        nvml.event(0, 79)
        assert (await node.until(faulty, DEADLINE_S)).incarnation == first.incarnation
        node.signal(signal.SIGKILL)
        node.kill()
        node.start()

        async def told_anew() -> GpuReport | None:
            found = await report()
            return found if found and found.incarnation != first.incarnation and found.gpus else None

        gpus = (await node.until(told_anew, DEADLINE_S)).gpus
        assert [(gpu.health, gpu.fault) for gpu in gpus] == [(GpuHealth.OK, 1), (GpuHealth.OK, 0)]
    finally:
        await node.close()


async def test_a_node_without_gpus_says_why(etcd: EtcdServer, tmp_path: Path) -> None:
    node = Node(etcd.endpoint, "bare", more={"gpus": {"library": str(tmp_path / "libnvidia-ml.so.1")}})
    try:
        node.start()

        async def report() -> GpuReport | None:
            found = await node.read(GpuReport, keys.gpus("bare"))
            return found if found and "Not Found" in found.problem else None

        assert (await node.until(report, DEADLINE_S)).gpus == ()
    finally:
        await node.close()
