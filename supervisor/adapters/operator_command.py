"""Commands that operators configure: told on standard input, run without a shell, within a bounded time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from supervisor.adapters.children import bounded
from supervisor.adapters.children.bounded import Child, Ended
from supervisor.contract.errors import Refused, Unreachable

SYSTEM_PATH = "/usr/sbin:/sbin"
"""The directories of programs like `fence-agents`, which the PATH of users leaves out."""


def executable(command: str) -> str:
    """The path of a program. Raises Refused when there is none that may be executed."""
    found = shutil.which(command, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
    if found is None:
        what = "is not executable" if Path(command).exists() else "is not on this machine"
        raise Refused(f"{command} {what}")
    return found


async def run(command: Sequence[str], limit_s: float, told: bytes = b"", kept: int = 0) -> Ended:
    """Run a command with a text on its standard input. `kept`: bytes of the end of its standard output.

    Raises Refused when it cannot be run, Unreachable when it has not ended in time. Nothing that it started
    is left then, nor when the caller is cancelled or ends.
    """
    try:
        child = Child(
            command=(executable(command[0]), *command[1:]),
            told=os.fsdecode(told),
            env=dict(os.environ),
            cwd=str(Path.cwd()),
            limit_s=limit_s,
            kept=kept,
            # They may hold a secret, and would be in the journal.
            errors=False,
        )
        ended = await bounded.run(child)
    except (OSError, ValueError) as error:
        raise Refused(f"{command[0]} cannot be run: {error}") from error
    if ended.late:
        raise Unreachable(f"{command[0]} has not ended within {limit_s:g} s")
    return ended
