"""One agent whose launchers are containers of a dockerd under test."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

from chaos.container_image import IMAGE
from chaos.dockerd import Dockerd
from supervisor.contract.job.spec import ContainerSpec
from supervisor.contract.observed import Incarnation
from tests.agent.cluster import Job, Node


class DockerNode(Node):
    """`work/` is what its jobs may mount, and where their programs are."""

    def __init__(self, endpoint: str, dockerd: Dockerd, root: Path | None = None) -> None:
        super().__init__(endpoint, f"n{os.urandom(3).hex()}", root)
        self.dockerd = dockerd
        self.profile = "default"  # a busy machine keeps its durations
        mounts: list[dict[str, object]] = [{"source": str(self.root / "work")}]
        self.docker: dict[str, object] = {"socket": str(dockerd.socket), "image": IMAGE, "mounts": mounts}
        self.more = {key: value for key, value in self.more.items() if key != "task_user"}
        self.more |= {"runtime": "docker", "docker": self.docker}
        (self.root / "prog.py").rename(self.root / "work" / "prog.py")

    def program(self, source: str) -> None:
        """Write the program of the jobs."""
        (self.root / "work" / "prog.py").write_text(source)

    def job(self, me: Incarnation, container: ContainerSpec | None = None) -> Job:
        """A job of one worker that runs `prog.py`."""
        job = Job(self, me, f"job-{os.urandom(3).hex()}", ("python3", "prog.py"))
        plan_id = f"p{os.urandom(3).hex()}"
        job.assignment = replace(job.assignment, container=container, plan_id=plan_id)
        return job

    async def containers(self) -> list[str]:
        """Ids of this node's containers, in any state."""
        label = f"label=tfsup.node={self.name}"
        return (await self.cli("ps", "-aq", "--no-trunc", "--filter", label)).split()

    async def container(self) -> str:
        """The one container that there is."""
        (found,) = await self.containers()
        return found

    async def inspect(self, container: str) -> dict[str, object]:
        """The record of a container in docker."""
        found = json.loads(await self.cli("inspect", container))[0]
        assert isinstance(found, dict)
        return found

    async def labels(self, container: str) -> dict[str, str]:
        """The labels of a container."""
        config = (await self.inspect(container))["Config"]
        assert isinstance(config, dict)
        labels = config["Labels"]
        assert isinstance(labels, dict)
        return labels

    async def cli(self, *arguments: str) -> str:
        return await asyncio.to_thread(self.dockerd.cli, *arguments)

    async def until_stopped(self, container: str, timeout_s: float = 30.0) -> None:
        """Until it is removed."""

        async def gone() -> bool | None:
            return container not in await self.containers() or None

        await self.until(gone, timeout_s)

    async def close(self) -> None:
        await self.remove_containers()
        await super().close()

    async def remove_containers(self) -> None:
        """With the agent, which would make others."""
        self.kill()
        for container in await self.containers():
            # The agent may have asked for its removal, and a second one is refused.
            await asyncio.to_thread(self.dockerd.attempt, "rm", "-f", "-v", container)
            await self.until_stopped(container)
