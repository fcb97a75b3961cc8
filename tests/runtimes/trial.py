"""An embedded cluster with either runtime, and a job that starts as fast as Python does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from chaos.container_image import IMAGE, USER_ID
from chaos.dockerd import Dockerd
from examples.demo.steplog import StepLog
from supervisor.adapters.files.code_archive import pack
from supervisor.adapters.files.jobfile import load_job_file
from supervisor.api.upload import upload_code
from supervisor.cli.local.cluster import LocalCluster
from supervisor.cli.local.layout import Layout, LocalDocker, LocalMount, LocalSettings
from supervisor.contract.incident import Cause, Outcome
from supervisor.contract.views.jobs import IncidentView, JobView, SubmitRequest
from supervisor.contract.views.nodes import NodeView

# Every role steps. It tells of its steps as the digits example does.
PROGRAM = """
import json, os, pathlib, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
path = pathlib.Path(os.environ["STEP_LOG"], f"{task['type']}-{task['index']}.{time.monotonic_ns()}")
log = path.open("a", buffering=1)
step = 0
while True:
    step += 1
    log.write(f"{time.monotonic_ns()} {step}\\n")
    print("step", step, flush=True)
    time.sleep(0.02)
"""
JOB = """
name: steps
command: [python3, steps.py]
strategy: async
roles:
  chief: {count: 1}
  ps: {count: 1}
  worker: {count: 2}
  evaluator: {count: 1}
preload: []
code: {dir: .}
env: {STEP_LOG: %s}
"""
TASKS = ("chief:0", "ps:0", "worker:0", "worker:1", "evaluator:0")
D = "30s"
"""A busy machine takes 10 s to load an agent."""
DEADLINE_S = 120.0


class PatientLayout(Layout):
    """One whose daemons all have this D: an agent that is killed may take as long to be back."""

    def write(self, settings: LocalSettings) -> None:
        super().write(settings)
        for member in (*self.agents(settings), *self.supervisors(settings)):
            file = self.config(member)
            comment, _, body = file.read_text().partition("\n")
            file.write_text(f"{comment}\n{json.dumps(json.loads(body) | {'control_plane_grace': D})}\n")


class Trial:
    """One embedded cluster, and its job. `dockerd`: of its containers; None with plain processes."""

    def __init__(self, directory: Path, cluster: LocalCluster, dockerd: Dockerd | None) -> None:
        self.cluster = cluster
        self.dockerd = dockerd
        self.log = StepLog(directory / "outputs")
        file = directory / "work" / "job.yaml"
        file.write_text(JOB % self.log.directory)
        job = load_job_file(file, checkpoint_base=cluster.layout.checkpoint_base)
        assert job.code is not None
        self._code = pack(job.code)
        self._spec = replace(job.spec, code=self._code.ref)

    def submit(self) -> None:
        """Every task makes its first steps."""

        async def send() -> None:
            async with self.cluster.client() as client:
                await upload_code(client, self._code)
                await client.submit(SubmitRequest(self._spec))

        asyncio.run(send())
        self.all_step("the first steps")
        self.pids()

    def view(self) -> JobView:
        """As `status` has it."""

        async def ask() -> JobView:
            async with self.cluster.client() as client:
                (job,) = (await client.status("steps")).jobs
                return job

        return asyncio.run(ask())

    def nodes(self) -> Mapping[str, NodeView]:
        """As `nodes` has them."""

        async def ask() -> Mapping[str, NodeView]:
            async with self.cluster.client() as client:
                return {each.node: each for each in (await client.nodes()).nodes}

        return asyncio.run(ask())

    def keep_away(self, node: str, *, drain: bool) -> None:
        """`drain`, or `uncordon`."""

        async def ask() -> None:
            async with self.cluster.client() as client:
                await (client.cordon(node, drain=True) if drain else client.uncordon(node))

        asyncio.run(ask())

    def places(self) -> dict[str, str]:
        """The node of each task."""
        return {f"{task.role}:{task.index}": task.node for task in self.view().tasks}

    def pids(self) -> dict[str, int]:
        """The tasks' processes, as this machine numbers them, once all are reported."""
        found: dict[str, int] = {}

        def known() -> bool:
            found.update({f"{task.role}:{task.index}": task.pid for task in self.view().tasks})
            return all(found.values())

        # One that is not is 0, which kill(2) takes for all of us here.
        self.until(known, "the pids of all tasks")
        return found

    def incidents(self) -> tuple[IncidentView, ...]:
        """All but the beginning and what somebody has asked for."""
        wanted = {Cause.SUBMITTED.value, Cause.OPERATOR.value}

        async def ask() -> tuple[IncidentView, ...]:
            async with self.cluster.client() as client:
                found = (await client.explain("steps")).incidents
                return tuple(each for each in found if each.cause not in wanted)

        return asyncio.run(ask())

    def containers(self, node: str = "") -> list[str]:
        """The ids of those that run, on one node or on all; none with plain processes."""
        if self.dockerd is None:
            return []
        only = ("--filter", f"label=tfsup.node={node}") if node else ()
        return sorted(self.dockerd.cli("ps", "--no-trunc", "--quiet", *only).split())

    def all_step(self, what: str) -> None:
        """Every task makes a step after this moment."""
        since_ns = time.monotonic_ns()

        def stepped() -> bool:
            self.log.read()
            return all(self.log.first_after(since_ns, task) for task in TASKS)

        self.until(stepped, what)

    def kill(self, task: str) -> IncidentView:
        """SIGKILL of one task, which steps again in a new process, as all do; the incident of it."""
        self.log.read()
        known, before = len(self.incidents()), self.log.processes(task)
        os.kill(self.pids()[task], signal.SIGKILL)

        def again() -> bool:
            self.log.read()
            return bool(self.log.processes(task) - before)

        self.until(again, f"a new process of {task}")
        self.all_step(f"steps after the kill of {task}")

        def recorded() -> bool:
            found = self.incidents()
            return len(found) == known + 1 and all(each.outcome is not Outcome.OPEN for each in found)

        self.until(recorded, "the incident's record")
        return max(self.incidents(), key=lambda each: each.wall_ms)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for it."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                told = "\n".join(map(str, (*self.incidents(), *self.view().tasks)))
                raise AssertionError(f"not seen within {DEADLINE_S:g} s: {what}\n{told}")
            time.sleep(0.05)


@contextmanager
def trial_of(directory: Path, nodes: int, dockerd: Dockerd | None) -> Iterator[Trial]:
    """A cluster of this many nodes in an empty directory; no container is left of it."""
    outputs, work, state = (directory / name for name in ("outputs", "work", "state"))
    outputs.mkdir()
    work.mkdir()
    (work / "steps.py").write_text(PROGRAM)
    docker = None
    if dockerd is not None:
        os.chown(outputs, USER_ID, USER_ID)
        mounts = (LocalMount(str(outputs), read_only=False),)
        docker = LocalDocker(str(dockerd.socket), IMAGE, mounts)
    cluster = LocalCluster(state, nodes=nodes, supervisors=1, profile="default", docker=docker)
    cluster.layout = PatientLayout(cluster.layout.state)
    with cluster:
        yield Trial(directory, cluster, dockerd)
    if dockerd is not None:
        assert dockerd.cli("ps", "--all", "--quiet", "--filter", "label=tfsup.node") == ""
