"""TensorFlow between containers on a docker network: in place, and all anew when a container is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.container_image import IMAGE, USER_ID, site_packages
from chaos.dockerd import Dockerd
from examples.demo.job import PROGRAM, Training, digits_job
from supervisor.cli.local.cluster import LocalCluster
from supervisor.cli.local.layout import LocalDocker, LocalMount
from supervisor.contract.job.spec import ContainerSpec
from supervisor.contract.views.jobs import IncidentView, JobView, SubmitRequest, TaskView

DEADLINE_S = 240.0


class Trial:
    """One embedded cluster of two nodes on one network, and the digits job."""

    def __init__(self, cluster: LocalCluster, dockerd: Dockerd, network: str, outputs: Path) -> None:
        self.cluster, self.dockerd = cluster, dockerd
        spec = digits_job(Training(10_000_000, 10, 50, outputs), cluster.layout.checkpoint_base)
        env = {**spec.env, "PYTHONPATH": str(site_packages())}
        self.spec = replace(spec, env=env, container=ContainerSpec(network=network))

    def submit(self) -> None:
        async def send() -> None:
            async with self.cluster.client() as client:
                await client.submit(SubmitRequest(self.spec))

        asyncio.run(send())

    def view(self) -> JobView:
        async def ask() -> JobView:
            async with self.cluster.client() as client:
                (job,) = (await client.status(self.spec.name)).jobs
                return job

        return asyncio.run(ask())

    def task(self, name: str) -> TaskView:
        return next(each for each in self.view().tasks if f"{each.role}:{each.index}" == name)

    def last_incident(self) -> IncidentView:
        async def ask() -> IncidentView:
            async with self.cluster.client() as client:
                return (await client.explain(self.spec.name)).incidents[-1]

        return asyncio.run(ask())

    def steps_after(self, generation: int, pid: int = 0) -> JobView:
        """Every task runs in this generation, worker 1 in another process than `pid`, and has made steps."""

        def stepping() -> JobView | None:
            job = self.view()
            workers = [each for each in job.tasks if each.role in ("chief", "worker")]
            new = all(each.pid and each.pid != pid for each in workers)
            if job.generation == generation and new and all(each.step > 0 for each in workers):
                return job
            return None

        return self.until(stepping, f"steps of generation {generation}")

    def until(self, condition: Callable[[], JobView | None], what: str) -> JobView:
        deadline = time.monotonic() + DEADLINE_S
        while (found := condition()) is None:
            assert time.monotonic() < deadline, f"not seen within {DEADLINE_S:g} s: {what}; {self.view()}"
            time.sleep(0.2)
        return found

    def container_of(self, task: TaskView) -> str:
        """The one that has its address."""
        form = "{{.ID}}"
        for ident in self.dockerd.cli("ps", "--no-trunc", "--format", form).split():
            each = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
            if self.dockerd.cli("inspect", "--format", each, ident) == task.address.partition(":")[0]:
                return ident
        raise AssertionError(f"no container has {task.address}")


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    os.chown(outputs, USER_ID, USER_ID)
    with Dockerd(apart=True) as dockerd:
        network = dockerd.network()
        mounts = (
            LocalMount(str(site_packages())),
            LocalMount(str(PROGRAM.parent)),
            LocalMount(str(outputs), read_only=False),
        )
        docker = LocalDocker(str(dockerd.socket), IMAGE, mounts, (network,))
        state = tmp_path / "state"
        with LocalCluster(state, nodes=2, supervisors=1, profile="default", docker=docker) as cluster:
            yield Trial(cluster, dockerd, network, outputs)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tensorflow_trains_between_containers_of_two_nodes(trial: Trial) -> None:
    trial.submit()
    first = trial.steps_after(1)
    assert len({each.node for each in first.tasks}) == 2
    hosts = [each.address.partition(":")[0] for each in first.tasks]
    assert len(set(hosts)) == len(hosts), "each has a network of its own"
    worker = trial.task("worker:1")
    assert trial.container_of(worker)

    os.kill(worker.pid, signal.SIGKILL)
    second = trial.steps_after(1, worker.pid)
    again = next(each for each in second.tasks if (each.role, each.index) == ("worker", 1))
    assert again.address == worker.address, "its container has lived on"

    trial.dockerd.cli("kill", trial.container_of(again))
    third = trial.steps_after(2)
    assert (
        next(each for each in third.tasks if (each.role, each.index) == ("worker", 1)).address
        != worker.address
    )
    assert "but its address is gone" in trial.last_incident().rule
