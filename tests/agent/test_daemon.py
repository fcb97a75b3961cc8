"""The agent on real parts: etcd, launchers, and a program that prints steps."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agent.inside import clock, protocol
from agent.inside.processes import fence
from supervisor.contract import keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.desired import LAST_LOOK, JobPhase, LostMark
from supervisor.contract.errors import CoordinationUnreachable
from supervisor.contract.observed import Appeal, AttemptReport, ExitReason
from supervisor.contract.timing import DEFAULT, FAST
from tests.agent.cluster import Job, Node, is_alive
from tests.support.etcd_server import EtcdServer
from tests.support.steady import Watch

NUMBERS = itertools.count(1)


@pytest.fixture
async def node(etcd: EtcdServer) -> AsyncIterator[Node]:
    node = Node(etcd.endpoint, name=f"n{next(NUMBERS)}")
    yield node
    await node.close()


async def test_prepare_flip_run_kill_report(node: Node) -> None:
    node.start()
    me = await node.until_joined()
    job = Job(node, me, name=f"job-{node.name}")
    running = await job.run()
    assert is_alive(running)
    await node.until_printed("step")
    os.kill(running.pid, signal.SIGKILL)
    ended = await job.exited()
    assert ended.exit is not None
    assert (ended.exit.reason, ended.exit.signal, ended.exit.code) == (ExitReason.EXIT, signal.SIGKILL, None)
    assert ended.last_step >= 0
    assert "step" in ended.exit.tail


async def test_an_in_place_restart_keeps_the_port_and_the_launcher(node: Node) -> None:
    node.start()
    job = Job(node, await node.until_joined(), name=f"job-{node.name}")
    first = await job.run()
    os.kill(first.pid, signal.SIGKILL)
    await job.exited()
    job.assignment = replace(job.assignment, attempt=2)
    await job.write()
    second = await job.running()
    assert (second.number, second.address) == (2, first.address)
    assert parent_of(second.pid) == parent_of_any(node)


async def test_a_flip_kills_the_old_attempt_and_starts_the_new_on_a_fresh_port(node: Node) -> None:
    node.start()
    job = Job(node, await node.until_joined(), name=f"job-{node.name}")
    old = await job.run()
    before = job.assignment
    job.next_generation()
    new = await job.run()
    assert new.address != old.address
    assert is_alive(new)
    told = await node.until(lambda: ended(node, keys.attempt(before.attempt_id)))
    assert not is_alive(old)
    assert told.exit is not None
    assert told.exit.reason is ExitReason.KILLED
    await node.do(Delete(keys.assignment(node.name, job.task, before.plan_id)))


async def test_a_killed_agent_is_succeeded_and_its_tasks_keep_their_pids(node: Node) -> None:
    # On a busy machine a successor may need longer to start than the fast profile gives it.
    node.profile = "default"
    node.start()
    first = await node.until_joined()
    job = Job(node, first, name=f"job-{node.name}")
    running = await job.run()
    node.kill()
    node.start()
    second = await node.until_joined(other_than=first.incarnation)
    assert second.succeeds == (first.incarnation,)
    await beats_for(node, DEFAULT.d_ms + 500)
    assert is_alive(running)
    os.kill(running.pid, signal.SIGKILL)
    ended = await job.exited()
    assert ended.incarnation == second.incarnation


async def test_a_task_that_ends_while_the_agent_is_away_is_reported_by_its_successor(node: Node) -> None:
    node.start()
    job = Job(node, await node.until_joined(), name=f"job-{node.name}")
    running = await job.run()
    node.kill()
    os.kill(running.pid, signal.SIGKILL)
    node.start()
    ended = await job.exited()
    assert ended.exit is not None
    assert ended.exit.signal == signal.SIGKILL


async def test_a_launcher_that_dies_with_the_agent_away_is_told_and_fenced(node: Node) -> None:
    node.start()
    job = Job(node, await node.until_joined(), name=f"job-{node.name}")
    running = await job.run()
    launcher = parent_of(running.pid)
    node.kill()
    os.kill(launcher, signal.SIGKILL)
    node.start()
    ended = await job.exited()
    assert ended.exit is not None
    assert ended.exit.reason is ExitReason.LAUNCHER_LOST


async def test_a_frozen_agent_loses_its_tasks_before_d(node: Node) -> None:
    node.start()
    job = Job(node, await node.until_joined(), name=f"job-{node.name}")
    running = await job.run()
    await beats_for(node, 600)
    began_ms = clock.now_ms()
    node.signal(signal.SIGSTOP)
    try:
        with Watch() as watch:
            died_ms = await node.until(lambda: death_ms(node))
        # The launcher dates it. A machine that stands still for a while kills so much later.
        assert died_ms - began_ms < FAST.d_ms + watch.lost_ms
        assert not is_alive(running)
    finally:
        node.signal(signal.SIGCONT)
    ended = await job.exited()
    assert ended.exit is not None
    assert ended.exit.reason is ExitReason.DEADLINE


async def test_a_second_agent_on_the_same_state_directory_is_refused(node: Node) -> None:
    node.start()
    await node.until_joined()
    result = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "agent.main", "--config", str(node.config())],
        capture_output=True,
        text=True,
        timeout=45,
    )
    assert result.returncode == 4
    assert "another agent is running" in result.stderr


async def test_stopping_kills_and_the_exit_is_drained(node: Node) -> None:
    node.start()
    job = Job(node, await node.until_joined(), name=f"job-{node.name}")
    job.saves = True
    running = await job.run()
    job.switch = replace(job.switch, phase=JobPhase.STOPPING, look=LAST_LOOK)
    await job.write()
    ended = await node.until(lambda: drained(job))
    assert not is_alive(running)
    assert ended.exit is not None
    assert ended.exit.reason is ExitReason.KILLED
    job.switch = replace(job.switch, phase=JobPhase.STOPPED)
    await job.write()
    await node.until(lambda: no_launchers(node))
    await node.until(lambda: absent(node.root / "ckpt" / job.uuid))


async def test_a_command_that_does_not_exist_is_reported(node: Node) -> None:
    node.start()
    job = Job(node, await node.until_joined(), name=f"job-{node.name}", argv=("/no/such/command",))
    prepared = await job.prepare()
    assert not prepared.failure
    await job.stage()
    await job.flip(prepared.address)
    ended = await job.exited()
    assert ended.exit is not None
    assert ended.exit.reason is ExitReason.START_FAILED
    assert "No such file" in ended.exit.detail


async def test_a_marked_agent_appeals_and_goes_on_when_the_mark_is_withdrawn(node: Node) -> None:
    node.start()
    me = await node.until_joined()
    job = Job(node, me, name=f"job-{node.name}")
    running = await job.run()
    mark = keys.lost(node.name, me.incarnation)
    await node.put(mark, LostMark(node.name, me.incarnation, "test"))
    appeal = keys.appeal(node.name, me.incarnation)
    await node.until(lambda: node.read(Appeal, appeal))
    await node.do(Delete(mark), Delete(appeal))
    await beats_for(node, FAST.d_ms + 500)
    assert is_alive(running)


async def test_a_final_mark_kills_everything_and_the_node_joins_anew(node: Node) -> None:
    node.start()
    me = await node.until_joined()
    job = Job(node, me, name=f"job-{node.name}")
    running = await job.run()
    await node.put(
        keys.lost(node.name, me.incarnation), LostMark(node.name, me.incarnation, "test", final=True)
    )
    again = await node.until_joined(other_than=me.incarnation)
    assert not again.succeeds
    assert not is_alive(running)


async def test_a_restarted_agent_that_was_replaced_adopts_nothing(node: Node) -> None:
    node.start()
    me = await node.until_joined()
    job = Job(node, me, name=f"job-{node.name}")
    running = await job.run()
    node.kill()
    await node.put(
        keys.lost(node.name, me.incarnation), LostMark(node.name, me.incarnation, "test", final=True)
    )
    node.start()
    again = await node.until_joined(other_than=me.incarnation)
    assert not again.succeeds
    assert not is_alive(running)


async def test_another_agent_on_this_node_id_is_refused_after_its_lease(node: Node, etcd: EtcdServer) -> None:
    node.start()
    await node.until_joined()
    other = Node(etcd.endpoint, node.name)
    try:
        other.start()
        assert other.process is not None
        assert await asyncio.to_thread(other.process.wait, 45) == 4
        assert "in use by another agent" in other.log
    finally:
        await other.close()


async def beats_for(node: Node, ms: int) -> None:
    """Wait while the agent keeps its key: time that a promise is made of has to pass for real."""
    end = clock.now_ms() + ms
    while clock.now_ms() < end:
        with suppress(CoordinationUnreachable):  # that etcd does not answer for a moment is no loss
            assert await node.incarnation() is not None
        await asyncio.sleep(0.05)


async def death_ms(node: Node) -> int | None:
    """The time at which the one ended attempt died, as its launcher keeps it until an agent has heard."""
    for path in (node.root / node.name / "launchers").glob("*/exits/*.json"):
        return protocol.from_plain(protocol.Exited, json.loads(path.read_bytes())).at_ms
    return None


async def ended(node: Node, key: str) -> AttemptReport | None:
    found = await node.read(AttemptReport, key)
    return found if found is not None and found.exit is not None else None


async def absent(path: Path) -> bool | None:
    return None if path.exists() else True


async def drained(job: Job) -> AttemptReport | None:
    found = await job.report("exited")
    return found if found is not None and found.drained else None


async def no_launchers(node: Node) -> bool | None:
    return None if launcher_pids(node) else True


def launcher_pids(node: Node) -> list[int]:
    homes = (node.root / node.name / "launchers").glob("*")
    return [each.pid for home in homes for each in fence.survivors(f"{home.name}#")]


def parent_of(pid: int) -> int:
    found = fence.read_process(pid)
    assert found is not None
    return found.parent


def parent_of_any(node: Node) -> int:
    """The one launcher of this node."""
    parents = {pid for pid in launcher_pids(node) if parent_of(pid) not in launcher_pids(node)}
    (launcher,) = parents
    return launcher
