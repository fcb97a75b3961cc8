"""Commands that are told of events: the message on standard input, within a bounded time, without a shell."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from supervisor.contract.errors import Refused, Unreachable

COMMAND_S = 10.0


class NotifyCommand:
    """Runs one command for each message. It has taken the message if it ends with code 0."""

    def __init__(self, command: Sequence[str]) -> None:
        """Raises Refused when there is no such program that may be executed."""
        self._command = (program(command[0]), *command[1:])

    async def send(self, message: bytes, identity: str) -> None:
        """Run it. Raises Refused for another code, or where it cannot be run, Unreachable when it is late."""
        del identity  # it is in the message
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                # Its output may hold a secret, and would be in the journal.
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise Refused(f"{self._command[0]} cannot be run ({type(error).__name__})") from error
        try:
            async with asyncio.timeout(COMMAND_S):
                await process.communicate(message + b"\n")
        except TimeoutError as error:
            raise Unreachable(f"{self._command[0]} has not ended within {COMMAND_S:g} s") from error
        finally:
            # Also what it has left behind in its session.
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.returncode is None:
                await process.wait()
        if process.returncode != 0:
            raise Refused(f"{self._command[0]} has ended with code {process.returncode}")


def program(command: str) -> str:
    """The path of a program. Raises Refused when there is none that may be executed."""
    found = shutil.which(command)
    if found is None:
        what = "is not executable" if Path(command).exists() else "is not on this machine"
        raise Refused(f"{command} {what}")
    return found
