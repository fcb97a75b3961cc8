"""The duration of kills on this node, rehearsed at intervals (decision 0046)."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import NoReturn

import psutil

from agent.boundaries import Post
from agent.core.events import KillRehearsed
from agent.inside import rehearsal
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Logger
from supervisor.contract.errors import Refused

FIRST_S = 10.0
"""Seconds before the first rehearsal: a restarted agent has to adopt its tasks first."""
AGAIN_S = 600.0
MIB, LITTLE_MIB = 128, 16
"""Memory of the rehearsing task in MiB, and its memory if little is free."""
ROOT = Path(__file__).resolve().parents[2]


class RehearsedKills:
    """`KillTimes` by a child process (`agent.inside.rehearsal`).

    `nice`: the nice value of tasks that train. `user`: (uid, gid) of launchers of another user.
    """

    def __init__(self, nice: int, user: tuple[int, int] | None, sink: Logger) -> None:
        self._nice, self._user, self._sink = nice, user, sink

    async def run(self, post: Post) -> NoReturn:
        """Post KillRehearsed at intervals. Agents of one machine that start together are spread by chance."""
        told = ""
        await asyncio.sleep(FIRST_S * random.uniform(1, 2))
        while True:
            try:
                post(KillRehearsed(await rehearse(self._nice, self._user)))
                told = ""
            except Refused as error:
                if str(error) != told:
                    told = str(error)
                    self._sink.warning("cannot measure how long a kill takes here; trying again", reason=told)
            await asyncio.sleep(AGAIN_S)


async def rehearse(nice: int, user: tuple[int, int] | None) -> int:
    """The longest of a few kills, in milliseconds. Raises Refused if none can be made."""
    uid, gid = user or (-1, -1)
    mib = MIB if psutil.virtual_memory().available > 8 * MIB << 20 else LITTLE_MIB
    try:
        with effect("agent.rehearse"):
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "agent.inside.rehearsal",
                *map(str, (os.getpid(), nice, uid, gid, mib)),
                cwd=ROOT,
                start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
    except OSError as error:
        raise Refused(f"cannot start the measurement: {error}") from error
    try:
        async with asyncio.timeout(2 * rehearsal.LONGEST_S):
            said, problem = await child.communicate()
    except TimeoutError:
        raise Refused(f"no answer within {2 * rehearsal.LONGEST_S} s") from None
    finally:
        if child.returncode is None:
            child.kill()
    if child.returncode != 0 or not said.strip().isdigit():
        last = problem.decode(errors="replace").strip().splitlines()[-1:]
        raise Refused(f"a rehearsal ended with code {child.returncode}: {''.join(last)}")
    return int(said)
