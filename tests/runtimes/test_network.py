"""Jobs on a docker network: the addresses are their containers', and end with them (decision 0025)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from agent.host.host_pids import pids_of
from chaos.dockerd import Dockerd
from supervisor.contract.ids import TaskId
from supervisor.contract.job.spec import ContainerSpec
from supervisor.contract.observed import AttemptReport, ExitReason, Prepared
from tests.agent.cluster import is_alive
from tests.runtimes.docker_node import DockerNode

# Listens at its own address as TensorFlow does, on all of them, beside the holder; then asks the other one.
PEERS = """
import json, os, socket, threading, time
config = json.loads(os.environ["TF_CONFIG"])
mine, other = (config["cluster"]["worker"][index] for index in (0, 1))
if config["task"]["index"]:
    mine, other = other, mine
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("0.0.0.0", int(mine.rpartition(":")[2])))
listener.listen()
def answer():
    while True:
        with listener.accept()[0] as connection:
            connection.sendall(mine.encode())
threading.Thread(target=answer, daemon=True).start()
print("step 1", mine, other, flush=True)
host, _, port = other.rpartition(":")
met = ""
while met != other:
    try:
        with socket.create_connection((host, int(port)), 5) as connection:
            met = connection.recv(64).decode()
    except OSError:
        time.sleep(0.05)
print("met", met, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def apart() -> Iterator[Dockerd]:
    with Dockerd(apart=True) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def network(apart: Dockerd) -> str:
    return apart.network()


def joined(endpoint: str, dockerd: Dockerd, *networks: str) -> DockerNode:
    node = DockerNode(endpoint, dockerd)
    node.docker["networks"] = list(networks)
    return node


@pytest.fixture
async def nodes(endpoint: str, apart: Dockerd, network: str) -> AsyncIterator[tuple[DockerNode, DockerNode]]:
    found = joined(endpoint, apart, network), joined(endpoint, apart, network)
    yield found
    for node in found:
        await node.close()


async def made_at(node: DockerNode, container: str) -> str:
    """The address that docker has given a container."""
    settings = (await node.inspect(container))["NetworkSettings"]
    assert isinstance(settings, dict)
    (each,) = settings["Networks"].values()
    return str(each["IPAddress"])


async def test_tasks_of_two_agents_meet_at_their_containers_addresses(
    nodes: tuple[DockerNode, DockerNode], network: str
) -> None:
    jobs = []
    for index, node in enumerate(nodes):
        node.start()
        me = await node.until_joined()
        assert me.resources.networks == (network,)
        node.program(PEERS)
        job = node.job(me, ContainerSpec(network=network))
        job.task = TaskId(job.name, "worker", index)
        job.assignment = replace(job.assignment, index=index)
        jobs.append(job)
    prepared = [await job.prepare() for job in jobs]
    assert not any(each.failure for each in prepared), prepared
    for node, each in zip(nodes, prepared, strict=True):
        assert each.address.partition(":")[0] == await made_at(node, await node.container())
    assert prepared[0].segment == prepared[1].segment != ""
    assert prepared[0].address != prepared[1].address
    addresses = tuple(each.address for each in prepared)
    for job in jobs:
        assert (await job.stage()).failure is None
    for job in jobs:
        await job.flip(*addresses)
    for node, other in zip(nodes, reversed(addresses), strict=True):
        await node.until_printed(f"met {other}")
    report = await jobs[0].running()
    assert report.address == addresses[0]
    # Its port is held by itself alone: no lock of the machine's says so.
    assert not list((nodes[0].root / "locks").iterdir())

    # In place: the same container, the same address.
    os.kill(report.pid, signal.SIGKILL)
    await jobs[0].exited()
    jobs[0].assignment = replace(jobs[0].assignment, attempt=2)
    await jobs[0].write()
    second = await jobs[0].running()
    assert second.address == addresses[0]

    # An agent that dies leaves the address to the next one.
    first = await nodes[1].until_joined()
    nodes[1].kill()
    nodes[1].start()
    await nodes[1].until_joined(other_than=first.incarnation)
    running = await jobs[1].running()
    os.kill(running.pid, signal.SIGKILL)
    await jobs[1].exited()
    jobs[1].assignment = replace(jobs[1].assignment, attempt=2)
    await jobs[1].write()
    assert (await jobs[1].running()).address == addresses[1]


async def test_an_address_ends_with_its_container(nodes: tuple[DockerNode, DockerNode], network: str) -> None:
    node, _ = nodes
    node.start()
    job = node.job(await node.until_joined(), ContainerSpec(network=network))
    running = await job.run()
    container = await node.container()
    await node.cli("kill", container)
    ended = await job.exited()
    assert ended.exit is not None
    assert ended.exit.reason is ExitReason.LAUNCHER_LOST
    assert ended.exit.address_lost
    # Nor does an attempt start elsewhere that others look for at the old address.
    job.assignment = replace(job.assignment, attempt=2)
    await job.write()
    second = await job.exited()
    assert second.exit is not None
    assert second.pid == 0
    assert second.exit.address_lost
    assert "others know it by an address that is gone" in second.exit.detail
    # The next generation gets what was made meanwhile.
    job.next_generation()
    fresh = await job.prepare()
    assert not fresh.failure
    assert fresh.address != running.address
    assert fresh.address.partition(":")[0] == await made_at(node, await node.container())


async def test_a_container_that_ends_before_its_generation_is_prepared_anew(
    nodes: tuple[DockerNode, DockerNode], network: str
) -> None:
    node, _ = nodes
    node.start()
    job = node.job(await node.until_joined(), ContainerSpec(network=network))
    prepared = await job.prepare()
    key = f"{prepared.address}"
    await node.cli("kill", await node.container())

    async def anew() -> Prepared | None:
        found = await job.prepare()
        return found if found.address != key else None

    again = await node.until(anew)
    assert again.address.partition(":")[0] == await made_at(node, await node.container())
    await job.stage()
    await job.flip(again.address)
    report: AttemptReport = await job.running()
    assert is_alive(report)
    assert len(pids_of(report.pid)) == 2


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ("elsewhere", "docker network elsewhere is not in `docker.networks` of node"),
        ("missing", "has no network missing: make it there with `docker network create`"),
    ],
)
async def test_a_network_that_cannot_be_joined_is_said_at_once(
    endpoint: str, apart: Dockerd, network: str, said: str
) -> None:
    node = joined(endpoint, apart, "missing")
    try:
        node.start()
        prepared = await node.job(await node.until_joined(), ContainerSpec(network=network)).prepare()
        assert said in prepared.failure
        assert prepared.no_code, "nobody's failed start"
        assert not await node.containers()
    finally:
        await node.close()


async def test_the_bridges_are_none_of_this_machines(apart: Dockerd, network: str) -> None:
    here = await asyncio.to_thread(os.listdir, "/sys/class/net")
    assert network not in here
    assert apart.name not in "".join(here)
