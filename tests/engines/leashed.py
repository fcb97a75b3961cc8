"""A keeper on a leash whose agent is `sleep`: `leashed.py DIRECTORY`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from supervisor.engines import keeper


async def start(module: str, *arguments: str, deaf: bool = False) -> asyncio.subprocess.Process:
    """As the keeper starts programs."""
    if module == "agent.main" and "--fence" in arguments:
        return await asyncio.create_subprocess_exec("sh", "-c", "echo fenced; echo fenced >&2")
    return await asyncio.create_subprocess_exec("sleep", "600", stdin=asyncio.subprocess.DEVNULL)


def main() -> None:
    """Keep it."""
    directory = Path(sys.argv[1])
    keeper._start = start
    order = keeper.Order(pool="p", place="n1", id="1", file=directory, client=(), leash=True)
    keeper.say("it keeps")
    sys.exit(asyncio.run(keeper.Keeper(order, "p.n1", directory / "agent.yaml").run()))


if __name__ == "__main__":
    main()
