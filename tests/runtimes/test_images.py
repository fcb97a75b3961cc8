"""Images: the parts that come with one, and its way to a node from a registry on loopback."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from agent.host.task_users import OneUser
from agent.runtimes import docker_images, docker_node
from agent.runtimes.docker_engine import Engine
from agent.runtimes.docker_images import Images
from chaos.container_image import rootfs
from chaos.little_images import layer, registry
from supervisor.contract.errors import Unreachable
from supervisor.contract.job.spec import ContainerSpec, Pull
from tests.runtimes.docker_node import DockerNode
from tests.support.sinks import ListSink

LOOK = """
import os, time
for line in open("/proc/mounts"):
    device, where, kind, options = line.split()[:4]
    if where.startswith(("/home", "/srv", "/tmp")):
        print("mount", where, kind)
for path in ("/home/trainer", "/srv", "/srv/kept"):
    open(path + "/probe", "w").close()
print("done", flush=True)
time.sleep(60)
"""


@pytest.fixture
async def image(node: DockerNode) -> AsyncIterator[str]:
    """A name for an image, which is removed with its containers gone."""
    name = f"tfsup-test-{os.urandom(3).hex()}:1"
    yield name
    await node.remove_containers()
    await asyncio.to_thread(node.dockerd.attempt, "image", "rm", "-f", name)


async def _import(node: DockerNode, name: str, *changes: str) -> None:
    options = [word for change in changes for word in ("--change", change)]
    await node.cli("import", *options, str(rootfs()), name)


async def test_volumes_of_an_image_are_no_disk_of_the_job_s(node: DockerNode, image: str) -> None:
    """A volume would be writable, without a limit, on docker's own disk."""
    await _import(node, image, "VOLUME /home/trainer", "VOLUME /srv", "VOLUME /tmp", "VOLUME /srv/kept")
    node.program(LOOK)
    node.start()
    job = node.job(await node.until_joined(), ContainerSpec(image=image, pull=Pull.NEVER))
    await job.run()
    said = (await node.until_printed("done")).splitlines()
    mounts = {line for line in said if line.startswith("mount") and str(node.root) not in line}
    assert mounts == {f"mount {each} tmpfs" for each in ("/home/trainer", "/srv", "/srv/kept", "/tmp")}
    await node.remove_containers()
    assert await node.cli("volume", "ls", "--quiet") == ""


async def test_no_volume_of_an_image_is_made_in_a_directory_of_this_machine(
    node: DockerNode, image: str
) -> None:
    await _import(node, image, f"VOLUME {node.root}/work/made")
    node.start()
    prepared = await node.job(
        await node.until_joined(), ContainerSpec(image=image, pull=Pull.NEVER)
    ).prepare()
    assert f"the image has a volume at {node.root}/work/made" in prepared.failure
    assert not (node.root / "work" / "made").exists()


def _fetches(node: DockerNode) -> int:
    return sum("fetching an image" in line for line in node.log.splitlines())


async def test_an_image_is_fetched_and_its_first_step_is_made(node: DockerNode) -> None:
    """It is fetched where it is missing, or each time if the job says so; `explain` shows the progress."""
    hurry = threading.Event()
    content = await asyncio.to_thread(rootfs().read_bytes)
    with registry(content, packed=False, hurry=hurry) as name:
        try:
            node.start()
            me = await node.until_joined()
            job = node.job(me, ContainerSpec(image=name))
            await job.write()

            assert f"image {name} is being fetched: " in await node.until(job.delay, 60)
            hurry.set()
            prepared = await node.until(job.prepared, 120)
            assert not prepared.failure, prepared.failure
            await job.stage()
            await job.flip(prepared.address)
            await job.running()
            await node.until_printed("step 1")
            fetched = _fetches(node)
            assert fetched == 1, "who asks again joins the same one"
            assert not (await node.job(me, ContainerSpec(image=name)).prepare()).failure
            assert _fetches(node) == fetched
            assert not (await node.job(me, ContainerSpec(image=name, pull=Pull.ALWAYS)).prepare()).failure
            assert _fetches(node) > fetched
        finally:
            await node.remove_containers()
            await asyncio.to_thread(node.dockerd.attempt, "image", "rm", "-f", name)


async def test_always_is_once_for_each_plan(node: DockerNode, tmp_path: Path) -> None:
    """Also where a plan that asked before has not come back to be told the outcome."""
    socket_path, sink, hurry = str(node.dockerd.socket), ListSink(), threading.Event()
    home = (tmp_path,) * 5
    images = Images(
        docker_node.DockerNode("c", "n", socket_path, "", OneUser(1, 1), *home), Engine(socket_path), sink
    )

    async def begun() -> bool | None:
        return bool(sink.lines) or None

    async def fetched() -> bool | None:
        # The image is there a little before dockerd says so: who asks in between joins the same fetch.
        return name not in images._fetches or images._fetches[name].task.done() or None

    with registry(layer({"bin/large": os.urandom(1 << 20).hex()}), hurry=hurry) as name:
        always = ContainerSpec(image=name, pull=Pull.ALWAYS)
        try:
            asking = asyncio.create_task(images.bring_in(always, "plan-1"))
            await node.until(begun)
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled()
            hurry.set()
            await node.until(fetched)
            await images.bring_in(always, "plan-2")
            assert [event for _, event, _ in sink.lines] == ["fetching an image"] * 2
        finally:
            await images.close()
            await asyncio.to_thread(node.dockerd.attempt, "image", "rm", "-f", name)


async def test_how_far_a_fetch_is_costs_few_writes(
    node: DockerNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text changes when its time is over, not each time that somebody asks."""
    monkeypatch.setattr(docker_images, "TOLD_EVERY_S", 0.05)
    hurry, socket_path = threading.Event(), str(node.dockerd.socket)
    where = docker_node.DockerNode("c", "n", socket_path, "", OneUser(1, 1), *(tmp_path,) * 5)
    images = Images(where, Engine(socket_path), ListSink())
    said: list[str] = []

    async def asked(another: Callable[[], bool]) -> bool | None:
        with pytest.raises(Unreachable) as refused:
            await images.bring_in(spec, "plan")
        said.append(str(refused.value))
        return another() or None

    with registry(os.urandom(64 << 20), packed=False, hurry=hurry) as name:
        spec = ContainerSpec(image=name)
        try:
            await node.until(lambda: asked(lambda: "MiB so far" in said[-1]), 60)
            began = len(said)
            await node.until(lambda: asked(lambda: len(said) == began + 40), 60)
            assert len(set(said[began - 1 :])) == 1
            monkeypatch.setattr(docker_images, "SAID_S", 0.0)
            fetch = images._fetches[name]
            fetch.moved.due_s = 0.0
            now = said[-1]
            await node.until(lambda: asked(lambda: said[-1] != now), 60)
        finally:
            await images.close()
            hurry.set()


async def test_a_registry_that_is_not_there_is_said_at_once(node: DockerNode) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    node.start()
    prepared = await node.job(
        await node.until_joined(), ContainerSpec(image=f"127.0.0.1:{port}/a:1")
    ).prepare()
    assert f"image 127.0.0.1:{port}/a:1 is not on node {node.name} and cannot be pulled" in prepared.failure
    assert "connection refused" in prepared.failure


async def test_a_registry_that_takes_too_long_is_given_up(node: DockerNode) -> None:
    node.docker["pull_timeout"] = "1s"
    with registry(layer({"bin/large": os.urandom(1 << 20).hex()}), hurry=threading.Event()) as name:
        node.start()
        job = node.job(await node.until_joined(), ContainerSpec(image=name))
        await job.write()
        assert "was not pulled within 1 s" in await node.until(job.delay, 60)
