"""A process that runs many scripted nodes: `python -m benchmarks.support.generator SETTINGS`.

`SETTINGS` is JSON. Each line on standard input is a request, a JSON object, and has one answer in the same
form, in the same order. It ends when standard input does.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import sys
from collections import Counter
from collections.abc import Sequence

from benchmarks.support.figures import figures
from benchmarks.support.scripted_node import Cluster, ScriptedNode, by_name
from supervisor.contract.boundaries import Logger
from supervisor.contract.timing import PROFILES

LAG_S = 0.05
START_EVERY_S = 0.02
"""Interval between two agents that start: each takes as long to connect."""


class Counts(Logger):
    """Counts what agents log as a warning or an error."""

    def __init__(self) -> None:
        self.lines: Counter[str] = Counter()

    def debug(self, event: str, **fields: object) -> object:
        """Drop it."""
        return None

    def info(self, event: str, **fields: object) -> object:
        """Drop it."""
        return None

    def warning(self, event: str, **fields: object) -> object:
        """Count it."""
        self.lines[f"{event}: {fields['reason']}" if "reason" in fields else event] += 1
        return None

    def error(self, event: str, **fields: object) -> object:
        """Count it."""
        return self.warning(event, **fields)


class Generator:
    """Its nodes, and what it knows of its own pace."""

    def __init__(self, settings: dict[str, str | int | float | list[str]]) -> None:
        self._log = Counts()
        endpoints, supervisors = settings["endpoints"], settings["supervisors"]
        assert isinstance(endpoints, list)
        assert isinstance(supervisors, list)
        self._cluster = Cluster(
            str(settings["cluster"]),
            tuple(endpoints),
            tuple(supervisors),
            PROFILES[str(settings["profile"])],
            float(str(settings["cpus"])),
            int(str(settings["memory_bytes"])),
        )
        first, count, stride = (int(str(settings[name])) for name in ("first", "count", "stride"))
        indices = range(first, count, stride)
        self._nodes = by_name([ScriptedNode(each, self._cluster, self._log) for each in indices])
        self._lags_ms: list[float] = []

    async def run(self) -> None:
        """Start all nodes one after the other, and answer until nobody asks any more."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        work = asyncio.gather(self._start(), self._measure())
        while line := await reader.readline():
            print(json.dumps(await self._answer(json.loads(line))), flush=True)
        work.cancel()

    async def _start(self) -> None:
        for node in self._nodes.values():
            node.start()
            await asyncio.sleep(START_EVERY_S)
        gc.collect()
        gc.freeze()

    async def _measure(self) -> None:
        """The lateness of this process: by so much it comes later to anything than asked for."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LAG_S
            await asyncio.sleep(LAG_S)
            self._lags_ms.append((loop.time() - due_s) * 1000)

    async def _answer(self, request: dict[str, str]) -> dict[str, object]:
        node = self._nodes.get(request.get("node", ""))
        match request["do"]:
            case "kill" if node is not None:
                return {"killed": node.kill(request["attempt"])}
            case "lose" if node is not None:
                await node.lose()
                return {"lost": node.name}
            case "look":
                return self._look()
            case _:
                return {"error": f"no such request or node: {request}"}

    def _look(self) -> dict[str, object]:
        """Since the last look: the loop's lag, beats sent, and what agents have complained of."""
        lags, self._lags_ms = self._lags_ms, []
        lag = figures(lags)
        failed = [f"{name}: {error!r}" for name, each in self._nodes.items() if (error := each.failure())]
        logged, self._log.lines = self._log.lines, Counter()
        return {
            "lag_p50_ms": round(lag.p50, 1) if lag is not None else -1,
            "lag_p99_ms": round(lag.p99, 1) if lag is not None else -1,
            "beats": sum(each.links.sent for each in self._nodes.values()),
            "failed": failed,
            "warnings": dict(logged.most_common(10)),
        }


def main(arguments: Sequence[str]) -> None:
    """Run the nodes."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    asyncio.run(Generator(json.loads(arguments[0])).run())


if __name__ == "__main__":
    main(sys.argv[1:])
