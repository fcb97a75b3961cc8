"""The exception that ended an attempt's main thread: by its own note (`agent.inside.child.raised`) or by its
output.

The note is the program's own to write: its size and every value in it are bounded here.
"""

from __future__ import annotations

import json
from pathlib import Path

from agent.host.regular_files import read_start
from agent.inside.child.raised import FILE, MOST_ERRORS, MOST_FRAMES, MOST_TEXT
from recovery.policy.logs import SYSTEM_EXIT, raised
from supervisor.contract.incident import Raised

_MOST_BYTES = 512 * 1024
_LONGEST = 300


def read_raised(directory: Path, output: str, *, aborted: bool = False) -> tuple[Raised, ...]:
    """The exception, then those that it came from.

    `output`: the end of the output, safe to print. `aborted`: a signal ended a program that notes what ends
    its main thread, so that exceptions without a note have been handled.
    """
    try:
        noted = parse(read_start(directory / FILE, _MOST_BYTES))
    except OSError:
        noted = ()  # it was started cold, or nothing ended its main thread, or its disk is full
    if noted and noted[0].name != SYSTEM_EXIT:
        return noted
    return () if aborted else raised(output) or noted


def parse(raw: bytes) -> tuple[Raised, ...]:
    """The exceptions in the file, without entries that no launcher would write."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        return ()
    told = body[:MOST_ERRORS] if isinstance(body, list) else []
    return tuple(found for each in told if (found := _error(each)) is not None)


def _error(told: object) -> Raised | None:
    if not isinstance(told, dict):
        return None
    name, text, frames = told.get("name"), told.get("text"), told.get("frames")
    if not _is_short(name) or not isinstance(text, str) or len(text) > 2 * MOST_TEXT + 1:
        return None
    if not isinstance(frames, list) or len(frames) > MOST_FRAMES or not all(map(_is_short, frames)):
        return None
    return Raised(str(name), _printable(text), tuple(map(str, frames)))


def _is_short(told: object) -> bool:
    return isinstance(told, str) and told.isprintable() and 0 < len(told) <= _LONGEST


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() or each == "\n" else "\N{MIDDLE DOT}" for each in text)
