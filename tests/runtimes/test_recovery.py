"""Recovery under both runtimes, in embedded clusters: the same kills, the same end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaos.container_image import IMAGE, USER_ID
from chaos.dockerd import Dockerd
from examples.demo.steplog import StepLog
from supervisor.adapters.jobfile import load_job
from supervisor.cli.local.cluster import LocalCluster
from supervisor.cli.local.layout import LocalDocker, LocalMount
from supervisor.contract.incident import Cause
from supervisor.contract.views import JobView, SubmitRequest

# As fast to start as Python is; it tells of its steps as the digits example does.
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
preload: []
env: {STEP_LOG: %s}
"""
WORKERS = ("worker:0", "worker:1")
DEADLINE_S = 120.0


class Trial:
    """One embedded cluster with one node, and its job of two workers."""

    def __init__(self, directory: Path, cluster: LocalCluster, dockerd: Dockerd | None) -> None:
        self.cluster = cluster
        self.dockerd = dockerd
        self.log = StepLog(directory / "outputs")
        file = directory / "work" / "job.yaml"
        file.write_text(JOB % self.log.directory)
        self._spec = load_job(file, checkpoint_base=cluster.layout.checkpoint_base)

    def submit(self) -> None:
        async def send() -> None:
            async with self.cluster.client() as client:
                await client.submit(SubmitRequest(self._spec))

        asyncio.run(send())
        self.all_step("the first steps")
        self.until(lambda: all(self.pids().values()), "the pids of all tasks")

    def view(self) -> JobView:
        async def ask() -> JobView:
            async with self.cluster.client() as client:
                (job,) = (await client.status("steps")).jobs
                return job

        return asyncio.run(ask())

    def pids(self) -> dict[str, int]:
        """The workers' processes, as this machine numbers them."""
        return {f"{task.role}:{task.index}": task.pid for task in self.view().tasks}

    def failures(self) -> list[str]:
        """The causes of all incidents but the beginning."""

        async def ask() -> list[str]:
            async with self.cluster.client() as client:
                found = (await client.explain("steps")).incidents
                return [each.cause for each in found if each.cause != Cause.SUBMITTED.value]

        return asyncio.run(ask())

    def containers(self) -> list[str]:
        """The ids of those that run; none with plain processes."""
        if self.dockerd is None:
            return []
        return sorted(self.dockerd.cli("ps", "--no-trunc", "--quiet").split())

    def all_step(self, what: str) -> None:
        """Every worker makes a step after this moment."""
        since_ns = time.monotonic_ns()

        def stepped() -> bool:
            self.log.read()
            return all(self.log.first_after(since_ns, worker) for worker in WORKERS)

        self.until(stepped, what)

    def kill(self, worker: str) -> None:
        """SIGKILL of one worker, which steps again in a new process; the other one is left alone."""
        self.log.read()
        (other,) = (each for each in WORKERS if each != worker)
        known, before, beside = len(self.failures()), self.log.processes(worker), self.log.processes(other)
        pid = 0
        # Until it is reported it is 0, which kill(2) takes for all of us here.
        while pid == 0:
            self.until(lambda: self.pids()[worker] > 0, f"the pid of {worker}")
            pid = self.pids()[worker]
        os.kill(pid, signal.SIGKILL)

        def again() -> bool:
            self.log.read()
            return bool(self.log.processes(worker) - before)

        self.until(again, f"a new process of {worker}")
        self.all_step(f"steps after the kill of {worker}")
        assert self.log.processes(other) == beside
        self.until(lambda: len(self.failures()) == known + 1, "the incident's record")
        assert self.failures()[known] == Cause.KILLED.value

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"not seen within {DEADLINE_S:g} s: {what}; {self.view()}"
            time.sleep(0.05)


@pytest.fixture(params=["process", "docker"])
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trial]:
    outputs, work = tmp_path / "outputs", tmp_path / "work"
    outputs.mkdir()
    work.mkdir()
    (work / "steps.py").write_text(PROGRAM)
    if request.param == "process":
        with LocalCluster(tmp_path / "state", nodes=1, supervisors=1, profile="default") as cluster:
            yield Trial(tmp_path, cluster, None)
        return
    os.chown(outputs, USER_ID, USER_ID)
    dockerd: Dockerd = request.getfixturevalue("dockerd_of_my_own")
    mounts = (LocalMount(str(work)), LocalMount(str(outputs), read_only=False))
    docker = LocalDocker(str(dockerd.socket), IMAGE, mounts)
    state = tmp_path / "state"
    with LocalCluster(state, nodes=1, supervisors=1, profile="default", docker=docker) as cluster:
        yield Trial(tmp_path, cluster, dockerd)
    assert dockerd.cli("ps", "--all", "--quiet") == ""


@pytest.mark.timeout(600)
def test_a_worker_its_agent_and_dockerd_are_killed(trial: Trial) -> None:
    trial.submit()
    trial.kill("worker:1")

    # The agent: its successor adopts the same processes in the same containers, and nothing is restarted.
    pids, containers, processes = trial.pids(), trial.containers(), trial.log.processes()
    agent = trial.cluster.member("agent-0").pid
    trial.cluster.kill_member("agent-0")
    trial.until(lambda: trial.cluster.member("agent-0").pid not in (0, agent), "the agent's successor")
    trial.all_step("steps after the agent's death")
    trial.kill("worker:0")
    assert trial.pids()["worker:1"] == pids["worker:1"]
    assert trial.containers() == containers
    assert len(trial.log.processes() - processes) == 1

    if trial.dockerd is None:
        return
    # dockerd: no task notices, and one that dies meanwhile is restarted without it.
    processes = trial.log.processes()
    trial.dockerd.kill()
    trial.all_step("steps without dockerd")
    assert trial.log.processes() == processes
    trial.kill("worker:1")
    processes = trial.log.processes()
    trial.dockerd.restart()
    trial.all_step("steps after dockerd's restart")
    assert trial.log.processes() == processes
    assert trial.containers() == containers
    assert len(trial.failures()) == 3
