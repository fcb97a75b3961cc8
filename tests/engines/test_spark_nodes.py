"""The nodes of a pool as its driver looks after them, in a real embedded cluster without Spark."""

from __future__ import annotations

import asyncio
from pathlib import Path

from supervisor.cli.local.cluster import LocalCluster
from supervisor.cli.options import Globals
from supervisor.cli.target import find_target
from supervisor.engines.spark.nodes import PoolNodes
from tests.cli.saving import SavingShell
from tests.support.waiting import wait_until


async def drain(nodes: PoolNodes) -> None:
    """Drain all nodes, for 2 s at most."""
    await nodes.drain((await nodes.by_agent()).values(), "it ends", 2)


def test_tasks_that_find_no_room_save_again_before_their_agents_end(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "state", nodes=1, supervisors=1) as cluster:
        shell = SavingShell(cluster, tmp_path)
        shell.save_when_asked()
        shell("submit", str(shell.job))
        shell("wait", "count", "--for", "running", "--timeout", "60")
        wait_until(lambda: shell.step() > 20, "it makes steps")
        before = shell.step()
        asyncio.run(drain(PoolNodes(find_target(Globals(state=tmp_path / "state")).client, "p", [""])))
        first, last = sorted(each.ref.step for each in shell.list())
        assert before <= first < last
        assert shell.nodes() == {"node-0"}
