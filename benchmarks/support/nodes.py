"""Nodes of an embedded cluster that are lost, as machines that are switched off, and that come back."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress

from benchmarks.support.subjects import until
from examples.demo import kernel
from examples.demo.watch import Watch
from supervisor.cli.local.cluster import LocalCluster


def agent_of(node: str) -> str:
    """The member of the cluster that is a node's agent."""
    return node.replace("node-", "agent-")


def kill_on(cluster: LocalCluster, node: str) -> int:
    """Kill the launchers and the tasks of a node. Returns when, on CLOCK_MONOTONIC."""
    doomed = kernel.using(cluster.layout.state / agent_of(node))
    killed_ns = time.monotonic_ns()
    for ref in doomed:
        with suppress(ProcessLookupError):
            os.kill(ref.pid, signal.SIGKILL)
    return killed_ns


async def lose_node(cluster: LocalCluster, node: str) -> int:
    """Kill a node's agent, its launchers and its tasks together. Returns when, on CLOCK_MONOTONIC."""
    killed_ns = kill_on(cluster, node)
    await asyncio.to_thread(cluster.stop_member, agent_of(node), int(signal.SIGKILL))
    return killed_ns


async def node_back(cluster: LocalCluster, watch: Watch, node: str, wait_s: float) -> None:
    """Start the agent of a lost node again, and wait until it takes tasks.

    The machine has not really been off: its boot is the same one, which disproves its fence device.
    """

    def state() -> str:
        view = watch.nodes.get(node)
        return view.state if view is not None else ""

    await asyncio.to_thread(cluster.start_member, agent_of(node))
    await until(watch.step_log, lambda: state() in ("ready", "cordoned"), f"{node} again", wait_s)
    if state() == "cordoned":
        await watch.client.uncordon(node)
    await until(watch.step_log, lambda: state() == "ready", f"{node} ready again", wait_s)
