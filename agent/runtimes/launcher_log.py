"""The end of a launcher, and of its log, in words, for the agent's log and for operators.

A launcher runs modules of its job, which may write anything, or put anything in the place of its log.
"""

from __future__ import annotations

import os
from pathlib import Path

from agent.host.regular_files import read_end
from recovery.policy.causes import signal_name
from supervisor.adapters.neutral import neutralise

LOG = "launcher.log"
_READ_BYTES = 4096
_MOST = 400
_BETWEEN = " | "


def how_it_ended(code: int) -> str:
    """The words for a return code of `subprocess`."""
    return f"exit code {code}" if code >= 0 else f"killed by {signal_name(-code)}"


def said_in(home: Path) -> str:
    """The words for the log in a launcher's directory; empty if that directory is gone. Blocks."""
    try:
        raw = read_end(home / LOG, _READ_BYTES)
        if not raw.strip() and not os.statvfs(home).f_bavail:
            return f"it could write nothing, as the disk of {home} is full"
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"what it wrote cannot be read: {error.strerror}"
    return words(raw)


def words(raw: bytes) -> str:
    """The last lines of a text on one line, harmless and short. Of a long line the beginning is told."""
    lines = [" ".join(each.split()) for each in neutralise(raw).splitlines()]
    told = ""
    for line in filter(None, reversed(lines)):
        more = f"{line}{_BETWEEN}{told}" if told else line[:_MOST]
        if len(more) > _MOST:
            break
        told = more
    return f"it wrote: {told}" if told else "it wrote nothing"
