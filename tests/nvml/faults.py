"""Every class of fault, from the driver to what the leader reads in etcd, and how long that takes.

`python -m tests.nvml.faults` prints the table of docs/gpu.md.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from chaos.dockerd import Dockerd
from chaos.nvidia_docker import deny, runtime_settings
from chaos.nvml import FakeNvml
from supervisor.contract import codec, keys
from supervisor.contract.observed import AttemptReport, Gpu, GpuAction, GpuHealth, GpuReport
from tests.agent.cluster import Job, Node, is_alive
from tests.runtimes.docker_node import DockerNode
from tests.support.etcd_server import EtcdServer

OK, UNKNOWN, FAULTY = GpuHealth.OK, GpuHealth.UNKNOWN, GpuHealth.FAULTY
DEADLINE_S = 60.0
NVML = "libnvidia-ml"
ROUNDS = 5


@dataclass(frozen=True)
class Case:
    """A fault on GPU 1 of a node, and what is to be told of it."""

    name: str
    strike: Callable[[FakeNvml], None]
    action: GpuAction
    health: GpuHealth

    def told(self, gpu: Gpu) -> bool:
        """Whether the report says so."""
        raised = gpu.fault > 0 or self.health is UNKNOWN
        return raised and (gpu.health, gpu.action) == (self.health, self.action)


def xid(code: int) -> Callable[[FakeNvml], None]:
    return lambda nvml: nvml.event(1, code)


def fact(**facts: object) -> Callable[[FakeNvml], None]:
    return lambda nvml: nvml.set(1, **facts)


CASES = (
    Case("XID 31: page fault", xid(31), GpuAction.RESTART_TASK, OK),
    Case("XID 94: contained ECC error", xid(94), GpuAction.RESTART_TASK, OK),
    Case("XID 48: ECC error", xid(48), GpuAction.RESET_GPU, FAULTY),
    Case("XID 119: GSP timeout", xid(119), GpuAction.RESET_GPU, FAULTY),
    Case("XID 79: fallen off the bus", xid(79), GpuAction.DRAIN_NODE, FAULTY),
    Case("XID 54: no auxiliary power", xid(54), GpuAction.CONTACT, FAULTY),
    Case("ECC counter rises (polled)", fact(ecc_vol=1), GpuAction.RESTART_TASK, OK),
    Case("recovery action: GPU reset (polled)", fact(recovery=1), GpuAction.RESET_GPU, FAULTY),
    Case("recovery action: node reboot (polled)", fact(recovery=2), GpuAction.DRAIN_NODE, FAULTY),
    Case("rows cannot be remapped (polled)", fact(remap_failed=1), GpuAction.CONTACT, FAULTY),
    Case("GPU_IS_LOST (polled)", fact(error=15), GpuAction.DRAIN_NODE, FAULTY),
    Case("NVML hangs", lambda nvml: nvml.rule("hang *"), GpuAction.NONE, UNKNOWN),
)


async def measure(endpoint: str, case: Case, directory: Path) -> tuple[float, Gpu]:
    """Seconds from the fault to the report in etcd with the agent's defaults, and what it says of the GPU."""
    nvml = FakeNvml(directory)
    name = f"n{abs(hash(directory)) % 10**6}"
    node = Node(endpoint, name, more={"gpus": {"library": str(nvml.library)}})
    try:
        node.start()
        await _until(node, name, lambda report: [gpu.health for gpu in report.gpus] == [OK, OK])
        began = time.monotonic()
        case.strike(nvml)
        report = await _until(node, name, lambda report: len(report.gpus) == 2 and case.told(report.gpus[1]))
        return time.monotonic() - began, report.gpus[1]
    finally:
        await node.close()


async def measure_inside(endpoint: str, directory: Path) -> tuple[float, float, AttemptReport]:
    """The same for a GPU that vanishes inside a task alone: to its program's death, and to its report."""
    nvml, visible = FakeNvml(directory), directory / "visible"
    visible.write_text("\n".join(nvml.uuids))
    name = f"n{abs(hash(directory)) % 10**6}"
    node = Node(endpoint, name, more={"gpus": {"library": str(nvml.library)}})
    try:
        node.start()
        job = Job(node, await node.until_joined(), f"job-{name}")
        env = {"FAKE_NVML_VISIBLE": str(visible)}
        job.assignment = replace(job.assignment, gpus=nvml.uuids, env=env)
        running = await job.run()
        await node.until(lambda: _looked_at(running), DEADLINE_S)
        began = time.monotonic()
        visible.write_text(nvml.uuids[0])
        await node.until(lambda: _dead(running), DEADLINE_S)
        killed_s = time.monotonic() - began
        ended = await job.exited()
        return killed_s, time.monotonic() - began, ended
    finally:
        await node.close()


async def measure_denied(node: DockerNode, uuid: str) -> tuple[float, float, AttemptReport]:
    """The same for a container that may not open its devices any more, while NVML finds them well."""
    job = node.job(await node.until_joined())
    job.assignment = replace(job.assignment, gpus=(uuid,))
    running = await job.run()
    await node.until(lambda: _looked_at(running), DEADLINE_S)
    began = time.monotonic()
    deny(running.pid)
    await node.until(lambda: _dead(running), DEADLINE_S)
    killed_s = time.monotonic() - began
    ended = await job.exited()
    return killed_s, time.monotonic() - began, ended


async def _dead(running: AttemptReport) -> bool | None:
    return not is_alive(running) or None


async def _looked_at(running: AttemptReport) -> bool | None:
    return is_looked_at(running.pid) or None


def is_looked_at(pid: int) -> bool:
    """Whether the process that looks at a task's devices has done so once; until then it may be starting."""
    launcher = psutil.Process(pid).parent() if pid else None
    for child in launcher.children() if launcher is not None else ():
        # One may have ended since it was listed.
        with suppress(psutil.NoSuchProcess):
            if "--devices" in child.cmdline():
                return any(Path(each.path).name.startswith(NVML) for each in child.memory_maps())
    return False


async def _until(node: Node, name: str, condition: Callable[[GpuReport], bool]) -> GpuReport:
    async def look() -> GpuReport | None:
        found = await node.coordination.get(keys.gpus(name))
        report = codec.decode(GpuReport, found.value) if found is not None else None
        return report if report is not None and condition(report) else None

    return await node.until(look, DEADLINE_S)


async def _table(endpoint: str, root: Path) -> None:
    say("| fault | health | asks for | median | slowest |", "|---|---|---|---|---|")
    for number, case in enumerate(CASES):
        times = [(await measure(endpoint, case, _fresh(root, number, each)))[0] for each in range(ROUNDS)]
        asks = case.action.value.replace("_", " ")
        say(f"| {case.name} | {case.health.value} | {asks} | {_took(times)} |")
    inside = [await measure_inside(endpoint, _fresh(root, len(CASES), each)) for each in range(ROUNDS)]
    _inside("GPU vanishes inside a task alone", inside)
    directory = _fresh(root, len(CASES) + 1, 0)
    nvml = FakeNvml(directory)
    denied = []
    with Dockerd(settings=runtime_settings(nvml)) as dockerd:
        for each in range(ROUNDS):
            node = DockerNode(endpoint, dockerd)
            try:
                node.start()
                denied.append(await measure_denied(node, nvml.uuids[each % 2]))
            finally:
                await node.close()
    _inside("a container may not open its devices any more", denied)


def _inside(fault: str, found: list[tuple[float, float, AttemptReport]]) -> None:
    say(f"| {fault} | ok | the task is killed | {_took([killed for killed, _, _ in found])} |")
    say(f"| the same | ok | that is told | {_took([told for _, told, _ in found])} |")


def _fresh(root: Path, number: int, each: int) -> Path:
    directory = root / f"gpu-{number}-{each}"
    directory.mkdir()
    return directory


def _took(times: list[float]) -> str:
    return f"{sorted(times)[ROUNDS // 2]:.2f} s | {max(times):.2f} s"


def say(*lines: str) -> None:
    """At once, as a round takes its time."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def main() -> None:
    """Print the table."""
    with EtcdServer() as etcd, tempfile.TemporaryDirectory(prefix="gpu-") as root:
        asyncio.run(_table(etcd.endpoint, Path(root)))


if __name__ == "__main__":
    main()
