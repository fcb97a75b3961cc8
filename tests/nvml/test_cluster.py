"""Real daemons over scripted GPUs: tasks get them, leave them after a fault, and operators see it all."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.node_views import GpuView
from supervisor.contract.views import TaskView
from tests.nvml.fake import FakeNvml

pytestmark = pytest.mark.timeout(240)
DEADLINE_S = 90.0
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
checkpoint: {{uri: "file://{directory}/checkpoints-{name}"}}
"""


@dataclass
class Cluster:
    """Two nodes of two scripted GPUs each."""

    local: LocalCluster
    nvml: tuple[FakeNvml, ...]
    directory: Path

    def ask(self, *arguments: str) -> str:
        """`supervisorctl` on it."""
        command = [sys.executable, "-m", "supervisor.cli.main", "--state", str(self.local.layout.state)]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=60)
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

    async def _task(self, task: str) -> TaskView:
        async with self.local.client() as client:
            return (await client.status(task.partition("/")[0])).jobs[0].tasks[0]

    def scripted(self, uuid: str) -> tuple[FakeNvml, int]:
        """Where a GPU is."""
        return next((each, each.uuids.index(uuid)) for each in self.nvml if uuid in each.uuids)

    def until(self, what: str, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {self.ask('gpus')}{self.ask('status')}"
            time.sleep(0.1)

    def submit(self, name: str) -> str:
        """A job of one worker with a GPU; returns its task."""
        file = self.directory / f"{name}.yaml"
        file.write_text(JOB.format(name=name, directory=self.directory))
        self.ask("submit", str(file))
        return f"{name}/worker:0"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("gpus")
    (directory / "code").mkdir()
    (directory / "code" / "prog.py").write_text(PROGRAM)
    nvml = []
    with LocalCluster(directory / "state", nodes=2, supervisors=1) as local:
        for node in range(2):
            (directory / f"nvml-{node}").mkdir()
            nvml.append(FakeNvml(directory / f"nvml-{node}", 2, first=0x40 + 16 * node))
            local.stop_member(f"agent-{node}")
            config = local.layout.config(f"agent-{node}")
            known = json.loads(config.read_text().partition("\n")[2])
            known["gpus"] = {"library": str(nvml[-1].library)}
            config.write_text(json.dumps(known))
            local.start_member(f"agent-{node}")
        found = Cluster(local, tuple(nvml), directory)
        found.until("four GPUs", lambda: found.states() == ["ok"] * 4)
        yield found


def test_a_task_sees_the_gpu_that_it_was_given_and_leaves_it_after_a_fault(cluster: Cluster) -> None:
    task = cluster.submit("faulty")
    cluster.until("training", lambda: cluster.gpu_of(task))
    before = cluster.gpu_of(task)
    assert f"sees {before}" in cluster.ask("tail", task)
    nvml, index = cluster.scripted(before)
    nvml.event(index, 48)
    cluster.until("another GPU", lambda: cluster.gpu_of(task) not in {"", before})
    after = cluster.gpu_of(task)
    assert f"sees {after}" in cluster.ask("tail", task)
    told = {each.uuid: each for each in cluster.gpus()}
    assert (told[before].state, told[before].action) == ("quarantined", "reset_gpu")
    assert "XID 48" in told[before].reason
    assert told[after].state == "ok"
    assert "XID 48" in cluster.ask("explain", "faulty")
    shown = json.loads(cluster.ask("gpus", told[before].node, "--output", "json"))
    assert [each["state"] for each in shown["gpus"] if each["uuid"] == before] == ["quarantined"]
    # Whoever resets a GPU has to end all that has it open first, the agent too.
    agent = told[before].node.replace("node", "agent")
    cluster.local.stop_member(agent)
    cluster.local.start_member(agent)
    cluster.ask("uncordon", told[before].node, "--gpu", before)
    cluster.ask("stop", "faulty")
    cluster.until("all well", lambda: cluster.states() == ["ok"] * 4)


def test_what_operators_are_shown_when_nvml_is_silent(cluster: Cluster) -> None:
    cluster.nvml[0].rule("hang *")
    cluster.until("unknown", lambda: cluster.states("node-0") == ["unknown"] * 2)
    assert "node-0: NVML has not answered for" in cluster.ask("gpus")
    assert cluster.states("node-1") == ["ok"] * 2
    cluster.nvml[0].rule()
    cluster.until("known", lambda: cluster.states("node-0") == ["ok"] * 2)
