"""An attempt waits until the dead have left the memory of its GPUs: not for ever, and for nobody else."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from agent.core.gpus.health import GpuBook, GpuSight, Sight, fold
from agent.core.gpus.report import MEMORY_WAIT_MS, beats, memory_free
from agent.core.instructions import LookAtGpus, Note
from agent.core.saved.record import End
from agent.core.state import AgentState, Attempt
from agent.core.step_context import Work
from chaos.nvml import FakeNvml
from supervisor.contract import keys
from supervisor.contract.desired import Assignment
from supervisor.contract.observed import AttemptReport, ExitReason, GpuReport
from tests.agent.cluster import Job, Node
from tests.agent.core import SETTINGS
from tests.nvml.faults import DEADLINE_S
from tests.support.etcd_server import EtcdServer

ORDER = Assignment("job", "u", "worker", 0, 1, "p1", "n1", "life1", 2, ("x",), "/", gpus=("GPU-a",))
KILLED = End(ExitReason.EXIT, None, 9, 0, True)


def state(*processes: tuple[int, int], end: End | None = KILLED) -> AgentState:
    """Attempt 1 had pid 17; these are on its GPU."""
    first = replace(ORDER, attempt=1).attempt_id
    attempt = Attempt(first, "u", "p1", "launcher", 1, "h:1", False, pid=17, end=end)
    sight = Sight("570", gpus=(GpuSight("GPU-a", 0, processes=processes),))
    return AgentState(
        SETTINGS, "life1", "boot", 4_000, attempts={first: attempt}, gpus=fold(GpuBook(), sight, 0)
    )


def test_it_waits_for_the_dead_and_looks_meanwhile() -> None:
    work = Work(state((17, 4096)), 1_000)
    assert not memory_free(work, ORDER)
    assert work.out == [LookAtGpus()]
    later = Work(replace(work.state, gpus=state().gpus), 1_100)
    assert memory_free(later, ORDER)
    assert not later.out
    assert not later.state.gpus_awaited


def test_what_a_program_has_started_is_its_own() -> None:
    """NVML names the process that computes, which a wrapper's child may be."""
    sight = GpuSight("GPU-a", 0, processes=((17, 4096), (17, 5), (99, 5)))
    running = state(end=None)
    (load,) = beats(replace(running, gpus=fold(running.gpus, Sight("570", gpus=(sight,)), 1)))
    assert (load.ours, load.others) == (2, 1)


def test_it_waits_for_nobody_else() -> None:
    assert memory_free(Work(state((99, 4096)), 1_000), ORDER)
    assert memory_free(Work(state((17, 4096), end=None), 1_000), ORDER)
    assert memory_free(Work(state((17, 4096)), 1_000), replace(ORDER, gpus=()))
    assert memory_free(Work(state((17, 4096)), 1_000), replace(ORDER, gpus=("GPU-unseen",)))


def test_it_does_not_wait_for_ever() -> None:
    work = Work(state((17, 4096)), 1_000)
    assert not memory_free(work, ORDER)
    later = Work(work.state, 1_000 + MEMORY_WAIT_MS)
    assert memory_free(later, ORDER)
    (note,) = later.out
    assert isinstance(note, Note)
    assert (note.event, note.fields["processes"]) == (
        "dead processes still hold a GPU's memory; the attempt starts all the same",
        "17",
    )


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


async def test_a_task_is_started_when_its_gpu_is_free(etcd: EtcdServer, tmp_path: Path) -> None:
    """The agent asks for a look: at its own leisure it would take one in a minute."""
    nvml = FakeNvml(tmp_path)
    node = Node(etcd.endpoint, "memory", more={"gpus": {"library": str(nvml.library), "poll": "60s"}})
    try:
        node.start()
        job = Job(node, await node.until_joined())
        # Events of before the watch began reach nobody, as with the real library.
        await node.until(partial(node.read, GpuReport, keys.gpus("memory")), DEADLINE_S)
        job.assignment = replace(job.assignment, gpus=(nvml.uuids[0],))
        first = await job.run()
        nvml.set(0, procs=f"{first.pid}:4096")
        # An event makes the watch look, so that it knows of the process.
        nvml.event(1, 79)
        await node.until(lambda: _in_log(node, "a GPU has a fault"), DEADLINE_S)
        os.kill(first.pid, signal.SIGKILL)
        await job.exited()
        job.assignment = replace(job.assignment, attempt=2)
        await job.write()
        await asyncio.to_thread(nvml.set, 0, procs="")

        async def running() -> AttemptReport | None:
            return await job.report("running")

        assert (await node.until(running, DEADLINE_S)).number == 2
        assert "dead processes still hold a GPU's memory; the attempt starts all the same" not in node.log
    finally:
        await node.close()


async def _in_log(node: Node, text: str) -> bool | None:
    return text in node.log or None
