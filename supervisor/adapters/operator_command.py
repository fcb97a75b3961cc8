"""Commands that operators configure: told on standard input, run without a shell, killed when given up."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from supervisor.adapters.failpoints import effect
from supervisor.contract.errors import Refused

SYSTEM_PATH = "/usr/sbin:/sbin"
"""The directories of programs like `fence-agents`, which the PATH of users leaves out."""
GONE_S = 1.0


def executable(command: str) -> str:
    """The path of a program. Raises Refused when there is none that may be executed."""
    found = shutil.which(command, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
    if found is None:
        what = "is not executable" if Path(command).exists() else "is not on this machine"
        raise Refused(f"{command} {what}")
    return found


async def run(command: Sequence[str], told: bytes) -> int:
    """Run a command with a text on its standard input; its exit code. Raises Refused when it cannot be run.

    All that is left in its session is killed when it has ended, and when the caller is cancelled.
    """
    try:
        with effect("command.run"):
            process = await asyncio.create_subprocess_exec(
                executable(command[0]),
                *command[1:],
                stdin=asyncio.subprocess.PIPE,
                # Both may hold a secret, and would be in the journal.
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
    except (OSError, ValueError) as error:
        raise Refused(f"{command[0]} cannot be run: {error}") from error
    try:
        await process.communicate(told)
        return await process.wait()
    finally:
        # It may run as another user, be gone, or hang in the kernel.
        with suppress(OSError), effect("command.kill"):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(GONE_S):
                await process.wait()
