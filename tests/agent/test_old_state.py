"""A state file that went back in time: what it does not know is found, and nothing in it believed."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.boundaries import Process
from agent.core.instructions import Recipe
from agent.core.saved import adopt
from agent.core.saved.record import AgentRecord, AttemptRecord, End, LauncherRecord
from agent.inside.processes import fence
from agent.state_file_check import to_kill
from supervisor.contract.observed import AttemptReport, ExitReason
from tests.agent.cluster import Job, Node, is_alive
from tests.support.etcd_server import EtcdServer

SAID = "the state file is not the newest"


@pytest.fixture
async def nodes(etcd: EtcdServer, request: pytest.FixtureRequest) -> AsyncIterator[list[Node]]:
    """Two nodes of one machine. A busy machine may need longer than the fast profile gives them."""
    name = f"n{abs(hash(request.node.name)) % 10**6}"
    made = [Node(etcd.endpoint, name=each, profile="default") for each in (name, f"{name}-other")]
    yield made
    for node in made:
        await node.close()


def state_of(node: Node) -> Path:
    return node.root / node.name / "agent.json"


async def running(node: Node) -> tuple[Job, AttemptReport]:
    node.start()
    job = Job(node, await node.until_joined(), name=f"job-{node.name}")
    return job, await job.run()


def parent_of(report: AttemptReport) -> int:
    """Its launcher."""
    process = fence.read_process(report.pid)
    assert process is not None
    return process.parent


async def moved_on(node: Node, job: Job, first: AttemptReport) -> AttemptReport:
    """The task runs on a launcher of its own again, after the one that the state file now holds."""
    os.kill(parent_of(first), signal.SIGKILL)
    await job.exited()
    job.assignment = replace(job.assignment, attempt=2)
    await job.write()
    return await job.running()


async def again_in_place(node: Node, job: Job, first: AttemptReport) -> AttemptReport:
    """The task has died and runs once more, on the launcher that the state file has known all the time."""
    os.kill(first.pid, signal.SIGKILL)
    await job.exited()
    job.assignment = replace(job.assignment, attempt=2)
    await job.write()
    return await job.running()


async def test_an_older_state_file_that_knows_every_launcher_is_not_believed(nodes: list[Node]) -> None:
    node, _ = nodes
    job, first = await running(node)
    old, life = state_of(node).read_bytes(), await node.until_joined()
    launcher = parent_of(first)
    second = await again_in_place(node, job, first)
    assert parent_of(second) == launcher
    node.kill()
    state_of(node).write_bytes(old)
    node.start()
    successor = await node.until_joined(other_than=life.incarnation)
    assert not is_alive(second)
    assert successor.succeeds == ()
    assert SAID in node.log


async def test_an_agent_that_dies_and_finds_its_file_as_it_was_takes_over(nodes: list[Node]) -> None:
    node, _ = nodes
    job, first = await running(node)
    life = await node.until_joined()
    second = await again_in_place(node, job, first)
    node.kill()
    node.start()
    successor = await node.until_joined(other_than=life.incarnation)
    assert successor.succeeds == (life.incarnation,)
    assert is_alive(second)
    assert SAID not in node.log


@pytest.mark.parametrize("back", ["older", pytest.param("none", marks=pytest.mark.slow)])
async def test_what_a_state_file_does_not_know_dies_before_the_node_joins_anew(
    nodes: list[Node], back: str
) -> None:
    node, other = nodes
    job, first = await running(node)
    _, neighbour = await running(other)
    old, life = state_of(node).read_bytes(), await node.until_joined()
    second = await moved_on(node, job, first)
    assert is_alive(second)
    node.kill()
    if back == "older":
        state_of(node).write_bytes(old)
    else:
        state_of(node).unlink()
    node.start()
    successor = await node.until_joined(other_than=life.incarnation)
    assert not is_alive(second)
    assert successor.succeeds == ()
    assert SAID in node.log
    assert is_alive(neighbour), "an agent of the same user on the same machine keeps what it has"
    assert SAID not in other.log
    # It works as a fresh node does.
    job.assignment = replace(job.assignment, incarnation=successor.incarnation)
    job.next_generation()
    assert is_alive(await job.run())


RECORD = AgentRecord(
    "n1", "boot", "life2", ("life1",), 7, (LauncherRecord("life1-3", Recipe("job", "u", "/", "python")),)
)


def test_who_is_known_to_be_dead_is_not_killed_by_a_pid_that_is_another_boots() -> None:
    """A file of this boot, in which the ends of the one before are still to be told."""
    rebooted = End(ExitReason.LAUNCHER_LOST, None, None, 5, confirmed_dead=True, rebooted=True)
    unconfirmed = replace(rebooted, confirmed_dead=False, rebooted=False)
    attempts = tuple(
        AttemptRecord(
            *("job", "worker", index, 1, 1, "u", "p", f"life1-{index}", 1, "h:1"),
            warm=True,
            pid=100 + index,
            end=end,
        )
        for index, end in enumerate((None, rebooted, unconfirmed))
    )
    record = replace(RECORD, attempts=attempts)
    assert to_kill(record, {"life1-7": (Process(7, 1),)}) == {
        "life1-7": [Process(7, 1)],
        "life1-3": [],
        "life1-0": [Process(100, 0)],
        "life1-2": [Process(102, 0)],
    }


@pytest.mark.parametrize(
    ("living", "unknown"),
    [
        ({"life1-3"}, ()),
        ({"life2-8"}, ("life2-8",)),
        ({"life3-1", "life1-3"}, ("life3-1",)),
        # Given up while docker was slow with them: the file has known them.
        ({"life2-7", "life1-2"}, ()),
    ],
)
def test_the_intent_is_on_disk_before_a_spawn(living: set[str], unknown: tuple[str, ...]) -> None:
    assert adopt.unknown(RECORD, living) == unknown
    assert adopt.unknown(None, living) == tuple(sorted(living))
