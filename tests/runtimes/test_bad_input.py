"""Images and containers that a node cannot use, or has lost: told at once, and until the cause is gone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from agent.runtimes.docker_node import container_name
from chaos.container_image import IMAGE
from chaos.dockerd import Dockerd
from chaos.little_images import load
from supervisor.contract.job.spec import ContainerSpec, Pull, Resources
from tests.runtimes.docker_node import DockerNode

ROOM = 256 << 20


@pytest.mark.parametrize(
    ("architecture", "said"),
    [("arm64", "is for arm64, this node is amd64"), ("amd64", "cannot run python3, which tasks need")],
)
async def test_an_image_that_cannot_run_here(
    node: DockerNode, tmp_path: Path, architecture: str, said: str
) -> None:
    name = f"little-{architecture}:1"
    await asyncio.to_thread(load, node.dockerd, tmp_path, name, architecture=architecture)
    node.start()
    job = node.job(await node.until_joined(), ContainerSpec(image=name, pull=Pull.NEVER))
    prepared = await job.prepare()
    assert f"image {name} {said}" in prepared.failure


async def test_less_memory_than_docker_gives_anybody(node: DockerNode) -> None:
    node.start()
    job = node.job(await node.until_joined())
    job.assignment = replace(job.assignment, resources=Resources(memory_bytes=1 << 20))
    assert "memory limit" in (await job.prepare()).failure


async def test_a_container_that_somebody_removes_is_made_again(node: DockerNode) -> None:
    node.start()
    job = node.job(await node.until_joined())
    await job.run()
    container = await node.container()
    await node.cli("rm", "--force", container)
    ended = await job.exited()
    assert ended.exit is not None
    assert ended.exit.confirmed_dead
    assert "its container was removed by somebody else" in ended.exit.detail
    job.next_generation()
    assert not (await job.prepare()).failure
    assert await node.container() != container


async def test_a_name_that_somebody_has_taken_is_said_and_left_alone(node: DockerNode) -> None:
    """The next container has another name."""
    node.start()
    me = await node.until_joined()
    taken = container_name(node.name, f"{me.incarnation}-1")
    other = await node.cli("create", "--name", taken, "--network=none", IMAGE, "sleep", "1")
    try:
        job = node.job(me)
        said = (await job.prepare()).failure
        assert taken in said
        assert "is already in use" in said
        job.next_generation()
        assert not (await job.prepare()).failure
        assert await node.cli("inspect", "--format={{.Name}}", other) == f"/{taken}"
    finally:
        await node.cli("rm", "--force", other)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as stream:
        while True:
            stream.write(b"x" * (1 << 20))


async def test_a_full_disk_under_docker_is_said_and_forgotten(endpoint: str) -> None:
    with Dockerd(room_bytes=ROOM) as dockerd:
        node = DockerNode(endpoint, dockerd)
        try:
            node.start()
            job = node.job(await node.until_joined())
            filler = dockerd.data / "filler"
            with pytest.raises(OSError, match="No space left"):
                await asyncio.to_thread(_fill, filler)
            prepared = await job.prepare()
            assert "no space left on device" in prepared.failure
            filler.unlink()
            job.next_generation()
            assert not (await job.prepare()).failure
        finally:
            await node.close()
