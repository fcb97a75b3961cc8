"""An embedded cluster over scripted GPUs, and how long it takes until a fault is acted on.

`python -m tests.nvml.cluster` prints the second table of docs/gpu.md.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chaos.nvml import FakeNvml
from supervisor.cli.local.cluster import LocalCluster
from supervisor.cli.local.layout import LocalDocker
from supervisor.contract.views.jobs import Explanation, JobView, TaskView
from supervisor.contract.views.nodes import GpuView
from tests.nvml.faults import is_looked_at

DEADLINE_S = 90.0
FIRST = 0x40
SETTLED_STEPS = 30
"""After so many steps of `PROGRAM` no fault is taken for one of the attempt before."""
PROGRAM = """
import os, time
print("sees", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
for step in range(100_000):
    print("step", step, flush=True)
    time.sleep(0.1)
"""
JOB = """\
name: {name}
command: [python, prog.py]
strategy: plain
preload: []
code: {{dir: code}}
roles:
  worker: {{count: 1, resources: {{gpus: 1}}}}
env: {{FAKE_NVML_VISIBLE: "{directory}/visible"}}
checkpoint: {{uri: "file://{directory}/checkpoints-{name}"}}
"""


@dataclass
class Cluster:
    """Nodes of two scripted GPUs each."""

    local: LocalCluster
    nvml: tuple[FakeNvml, ...]
    directory: Path

    def ask(self, *arguments: str) -> str:
        """`supervisorctl` on it."""
        command = [sys.executable, "-m", "supervisor.cli.main", "--state", str(self.local.layout.state)]
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def gpus(self, node: str = "") -> tuple[GpuView, ...]:
        return asyncio.run(self._gpus(node))

    async def _gpus(self, node: str) -> tuple[GpuView, ...]:
        async with self.local.client() as client:
            return (await client.gpus(node)).gpus

    def states(self, node: str = "") -> list[str]:
        return [each.state for each in self.gpus(node)]

    def gpu_of(self, task: str) -> str:
        """The UUID of the GPU that a task has, once it trains."""
        view = asyncio.run(self._task(task))
        uuids = [each.uuid for each in self.gpus() if task in each.tasks]
        return uuids[0] if view.state == "running" and view.step >= 0 and len(uuids) == 1 else ""

    def step_of(self, task: str) -> int:
        """The newest step that a task has made."""
        return asyncio.run(self._task(task)).step

    async def _task(self, task: str) -> TaskView:
        return (await self._job(task.partition("/")[0])).tasks[0]

    def job(self, job: str) -> JobView:
        """As `status` has it."""
        return asyncio.run(self._job(job))

    async def _job(self, job: str) -> JobView:
        async with self.local.client() as client:
            return (await client.status(job)).jobs[0]

    def node_state(self, node: str) -> str:
        """As `nodes` has it."""
        return asyncio.run(self._node_state(node))

    async def _node_state(self, node: str) -> str:
        async with self.local.client() as client:
            states = {each.node: each.state for each in (await client.nodes()).nodes}
            return states.get(node, "gone")

    def explain(self, job: str) -> Explanation:
        """The explanation of the job's failure."""
        return asyncio.run(self._explain(job))

    async def _explain(self, job: str) -> Explanation:
        async with self.local.client() as client:
            return await client.explain(job)

    def scripted(self, uuid: str) -> tuple[FakeNvml, int]:
        """The NVML that has this GPU, and the GPU's index in it."""
        return next((each, each.uuids.index(uuid)) for each in self.nvml if uuid in each.uuids)

    def until(self, what: str, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {self.ask('gpus')}{self.ask('status')}"
            time.sleep(0.02)

    def submit(self, name: str) -> str:
        """A job of one worker with a GPU; returns its task."""
        file = self.directory / f"{name}.yaml"
        file.write_text(JOB.format(name=name, directory=self.directory))
        self.ask("submit", str(file))
        return f"{name}/worker:0"

    def train(self, name: str) -> tuple[str, FakeNvml, int, GpuView]:
        """A job that trains, with its GPU looked at from inside: its task, and its GPU."""
        task = self.submit(name)
        self.until("training", lambda: self.find(self.gpu_of(task)))
        self.until("a look from inside", lambda: is_looked_at(asyncio.run(self._task(task)).pid))
        view = self.find(self.gpu_of(task))
        assert view is not None
        return task, *self.scripted(view.uuid), view

    def find(self, uuid: str) -> GpuView | None:
        """A GPU as it is listed; None while its node is not."""
        return next((each for each in self.gpus() if each.uuid == uuid), None)

    def show_all(self) -> None:
        """Tasks see all GPUs."""
        uuids = (uuid for each in self.nvml for uuid in each.uuids)
        (self.directory / "visible").write_text("\n".join(uuids))

    def repair(self, job: str, gpu: GpuView) -> None:
        """Stop the job, reset its GPU, let tasks come again. The agent has the GPU open: it ends first."""
        self.ask("stop", job)
        nvml, _ = self.scripted(gpu.uuid)
        nvml.rule()
        self.show_all()
        agent = gpu.node.replace("node", "agent")
        self.local.stop_member(agent)
        self.local.start_member(agent)
        self.until("the agent", lambda: self.node_state(gpu.node) not in {"suspected", "lost", "gone"})
        self.until("its GPU", lambda: self.find(gpu.uuid))
        if state_of(self, gpu) == "quarantined":
            self.ask("uncordon", gpu.node, "--gpu", gpu.uuid)
        if self.node_state(gpu.node) != "ready":
            self.ask("uncordon", gpu.node)
        self.until("all well", lambda: self.states() == ["ok"] * 2 * len(self.nvml))


@contextmanager
def gpu_cluster(
    directory: Path,
    nodes: int = 2,
    supervisors: int = 1,
    program: str = PROGRAM,
    docker: LocalDocker | None = None,
) -> Iterator[Cluster]:
    """Up, with both GPUs of each node known; nothing is left of it. `program`: what its jobs run.

    The GPUs of all nodes are numbered from `FIRST`. Containers outweigh the daemons on a small machine, which
    then have the durations of the default profile.
    """
    (directory / "code").mkdir()
    (directory / "code" / "prog.py").write_text(program)
    nvml = []
    profile = "fast" if docker is None else "default"
    with LocalCluster(
        directory / "state", nodes=nodes, supervisors=supervisors, profile=profile, docker=docker
    ) as local:
        for node in range(nodes):
            (directory / f"nvml-{node}").mkdir()
            nvml.append(FakeNvml(directory / f"nvml-{node}", 2, first=FIRST + 2 * node))
            local.stop_member(f"agent-{node}")
            config = local.layout.config(f"agent-{node}")
            known = json.loads(config.read_text().partition("\n")[2])
            known["gpus"] = {"library": str(nvml[-1].library)}
            config.write_text(json.dumps(known))
            local.start_member(f"agent-{node}")
        found = Cluster(local, tuple(nvml), directory)
        found.show_all()
        found.until("all GPUs", lambda: found.states() == ["ok"] * 2 * nodes)
        yield found


@dataclass(frozen=True)
class Deed:
    """A fault on the GPU of a training task, and what the leader does about it."""

    name: str
    strike: Callable[[Cluster, FakeNvml, int], None]
    done: Callable[[Cluster, str, GpuView], bool]
    what: str


def state_of(cluster: Cluster, gpu: GpuView) -> str:
    found = cluster.find(gpu.uuid)
    return found.state if found is not None else ""


def quarantined(cluster: Cluster, job: str, gpu: GpuView) -> bool:
    return state_of(cluster, gpu) == "quarantined" and restarted(cluster, job, gpu)


def restarted(cluster: Cluster, job: str, gpu: GpuView) -> bool:
    return any(each.cause == "gpu" for each in cluster.explain(job).incidents)


def charged(cluster: Cluster, job: str, gpu: GpuView) -> bool:
    """Whether its program, which goes on, is restarted and charged as one that has crashed."""
    restarted_for = {each.cause for each in cluster.explain(job).incidents}
    return "program_signal" in restarted_for and cluster.job(job).restarts_program == 1


def drained(cluster: Cluster, job: str, gpu: GpuView) -> bool:
    return cluster.node_state(gpu.node) in {"draining", "drained"} and quarantined(cluster, job, gpu)


def unknown(cluster: Cluster, job: str, gpu: GpuView) -> bool:
    return state_of(cluster, gpu) == "unknown"


def xid(code: int) -> Callable[[Cluster, FakeNvml, int], None]:
    return lambda _, nvml, index: nvml.event(index, code)


DEEDS = (
    Deed("XID 31", xid(31), charged, "its task restarts, once the program has had 5 s to end by itself"),
    Deed("XID 94", xid(94), restarted, "its task restarts"),
    Deed("XID 48", xid(48), quarantined, "the GPU is quarantined, its task moves"),
    Deed("XID 54", xid(54), quarantined, "the GPU is quarantined, its task moves"),
    Deed("XID 79", xid(79), drained, "the same, and the node is drained"),
    Deed(
        "NVML hangs", lambda _cluster, nvml, _index: nvml.rule("hang *"), unknown, "no new task gets the GPU"
    ),
    Deed(
        "GPU vanishes inside the task alone",
        lambda cluster, _nvml, _index: void((cluster.directory / "visible").write_text("none")),
        restarted,
        "its task is ended, and restarts",
    ),
)


def void(written: int) -> None:
    """Drop the result of a write, so that a lambda can be a strike."""


def measure(cluster: Cluster, deed: Deed, job: str) -> float:
    """Seconds from the fault to the leader's records of what it does; all is well again afterwards."""
    task, nvml, index, gpu = cluster.train(job)
    cluster.until("a fault that is its own", lambda: cluster.step_of(task) >= SETTLED_STEPS)
    began = time.monotonic()
    deed.strike(cluster, nvml, index)
    cluster.until(deed.name, lambda: deed.done(cluster, job, gpu))
    took = time.monotonic() - began
    cluster.repair(job, gpu)
    return took


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="gpus-") as root, gpu_cluster(Path(root)) as cluster:
        sys.stdout.write("| fault | what is done | median | slowest |\n|---|---|---|---|\n")
        for number, deed in enumerate(DEEDS):
            times = sorted(measure(cluster, deed, f"job-{number}-{each}") for each in range(3))
            sys.stdout.write(f"| {deed.name} | {deed.what} | {times[1]:.2f} s | {times[2]:.2f} s |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
