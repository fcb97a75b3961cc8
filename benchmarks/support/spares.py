"""Waiting until the launchers of a cluster have imported what they preload."""

from __future__ import annotations

import asyncio
import time

from benchmarks.support.nodes import agent_of
from examples.demo import kernel
from examples.demo.kernel import ProcessRef
from examples.demo.watch import Watch
from supervisor.cli.local.cluster import LocalCluster

IDLE_S = 1.0
IDLE_TICKS = 8


async def spares_warm(cluster: LocalCluster, watch: Watch, wait_s: float) -> None:
    """Every launcher that is not training has imported what it preloads: it uses no processor time. A node
    without a task has one.

    Kills that follow one another faster than spares are made are not what is measured.
    """
    agents = sorted({agent_of(node) for node in watch.nodes})
    ticks: dict[ProcessRef, int] = {}

    def idle() -> bool:
        busy, training = False, set(watch.pids.values())
        with_tasks = {task.node.replace("node-", "agent-") for task in watch.tasks.values()}
        for agent in agents:
            launchers = kernel.using(cluster.layout.state / agent / "launchers")
            busy |= not launchers and agent not in with_tasks
            for ref in launchers:
                used = ref.cpu_ticks
                moved = used - ticks.get(ref, -IDLE_TICKS - 1) > IDLE_TICKS
                busy |= moved and ref.pid not in training
                ticks[ref] = used
        return not busy

    deadline = time.monotonic() + wait_s
    while True:
        if idle() or time.monotonic() > deadline:
            return
        await asyncio.sleep(IDLE_S)
