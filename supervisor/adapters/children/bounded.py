"""Running a program to its end, within bounds, by a guard that takes all of it along (`guard`)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from supervisor.adapters.children.guard import GONE_S, LATE, MEMORY
from supervisor.adapters.failpoints import effect

_GUARD = (sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")))
_ENVIRONMENT = {"LANG": "C.UTF-8"}
"""The guard's own. What is secret in the program's is in nobody else's."""
_SLACK_S = 10.0
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A program and its bounds.

    Attributes:
        command: the program's path, and its arguments.
        told: its standard input.
        user: (uid, gid) that it runs as, without other groups; None: as this process.
        limit_s: it is killed after this time.
        memory: the most bytes of memory of the program and all that it started; 0 for no bound.
        kept: so many bytes of the end of its output are kept; 0 for none.
        errors: its standard error is a part of the output; else it goes nowhere.
        umask: None: that of this process.
        nice, oom_score_adj: as for processes.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    limit_s: float
    told: str = ""
    user: tuple[int, int] | None = None
    umask: int | None = None
    memory: int = 0
    kept: int = 0
    errors: bool = True
    nice: int = 0
    oom_score_adj: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a program: its exit code, or minus the signal that ended it, and the end of its output.

    `late` and `over_memory`: it was killed for that.
    """

    code: int
    output: bytes = b""
    late: bool = False
    over_memory: bool = False


async def run(child: Child) -> Ended:
    """Run a program. All that it started is dead when this returns, is cancelled, or its process ends.

    Raises OSError if it cannot be started.
    """
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        with theirs, effect("child.start"):
            guard = await asyncio.create_subprocess_exec(
                *_GUARD, stdin=theirs.fileno(), cwd="/", env=_ENVIRONMENT, start_new_session=True
            )
        try:
            async with asyncio.timeout(child.limit_s + GONE_S + _SLACK_S):
                answer = await _ask(ours, child)
        except TimeoutError:
            # The program can hold up a guard of its own user.
            return Ended(-9, late=True)
        finally:
            ours.close()
            with suppress(ProcessLookupError):
                guard.send_signal(signal.SIGCONT)  # it ends all, also if the program has stopped it
            with suppress(TimeoutError):
                async with asyncio.timeout(GONE_S):
                    await guard.wait()
    head, _, said = answer.partition(b"\n")
    if not head:
        return Ended(-9)  # the guard was killed, and the program with it
    told = json.loads(head)
    if "errno" in told:
        raise OSError(told["errno"], os.strerror(told["errno"]), child.command[0])
    return Ended(told["code"], said, told["end"] == LATE, told["end"] == MEMORY)


async def _ask(sock: socket.socket, child: Child) -> bytes:
    loop, answer = asyncio.get_running_loop(), b""
    asked = asdict(replace(child, env=dict(child.env), command=list(child.command)))
    # A guard that was killed is told of by an empty answer.
    with suppress(ConnectionError):
        await loop.sock_sendall(sock, json.dumps(asked).encode() + b"\n")
        while piece := await loop.sock_recv(sock, _PIECE):
            answer += piece
    return answer
