"""A YARN of the demonstration's own, and a pool of agents on it (docs/yarn.md)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos.yarn import AGENT_MIB, PLACES, YarnCluster
from supervisor.api.client import ControlClient
from supervisor.contract.errors import Refused

NAME = "demo"
NODES = frozenset(f"{NAME}.{place}" for place in PLACES)
COMMAND_S = 120.0
JOIN_LOOKS, LOOK_S = 600, 0.2


class Pool:
    """Agents in containers of YARN, for an embedded cluster in `state`; an async context manager."""

    def __init__(self, state: Path, say: Callable[[str], None]) -> None:
        self._state = state
        self._say = say
        self._yarn = YarnCluster()

    async def __aenter__(self) -> Self:
        self._say("start a YARN: one ResourceManager, three NodeManagers, and an HDFS for it")
        await asyncio.to_thread(self._yarn.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await asyncio.to_thread(self._pool, "down", "--now", NAME)
        finally:
            await asyncio.to_thread(self._yarn.__exit__, None, None, None)
        self._say("YARN has had its containers back, and is down")

    async def up(self, client: ControlClient) -> None:
        """Queue the agents, wait until they have joined, and leave all training to them."""
        await client.cordon("node-0", "training is for the pool")
        options = ("--agents", str(len(NODES)), "--cpus", "2", "--memory", f"{AGENT_MIB}MiB")
        await asyncio.to_thread(self._pool, "up", *options, "--logs", str(self._state), NAME)
        ready: set[str] = set()
        for _ in range(JOIN_LOOKS):
            ready = {each.node for each in (await client.nodes()).nodes if each.state == "ready"}
            if ready >= NODES:
                self._say(f"the agents have joined: {', '.join(sorted(NODES))}")
                return
            await asyncio.sleep(LOOK_S)
        raise Refused(f"the agents have not joined: only {', '.join(sorted(ready))} are ready")

    def kill(self, node: str) -> str:
        """Have YARN kill the container of a node's agent, and return its id."""
        container = self._yarn.container_at(node.removeprefix(f"{NAME}."))
        self._yarn.yarn("container", "-signal", container, "FORCEFUL_SHUTDOWN")
        return container

    def _pool(self, verb: str, *arguments: str) -> None:
        words = ("pool", verb, "--on", "yarn", *arguments)
        self._say(f"supervisorctl {' '.join(words)}")
        done = subprocess.run(
            [sys.executable, "-m", "supervisor.cli.main", "--state", str(self._state), *words],
            env=os.environ | self._yarn.variables,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        if done.returncode != 0:
            raise Refused(f"supervisorctl pool {verb}: {done.stderr.strip()}")
