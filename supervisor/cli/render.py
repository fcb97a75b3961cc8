"""Documents for people and for programs.

A string may come from a training program, so tables neutralise all.
"""

from __future__ import annotations

import datetime as dt
import importlib
import json
from collections.abc import Mapping, Sequence

import click

from supervisor.cli.terminal import colours, on_terminal, one_line
from supervisor.contract import codec
from supervisor.contract.incident import PHASES
from supervisor.contract.views.tones import TONES

TIME_LINE_WIDTH = 50
BAR = "#"
GOOD, WARN, BAD, DIM = "green", "yellow", "red", "bright_black"
_COLOUR = {"good": GOOD, "warn": WARN, "bad": BAD, "calm": DIM}
COLOURS = {word: _COLOUR[tone] for word, tone in TONES.items()}


def emit_json(document: object) -> None:
    """Print a document as JSON; ASCII only, so that it is safe on a terminal too."""
    click.echo(json.dumps(codec.to_plain(document), indent=2))


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], empty: str = "") -> None:
    """Print rows under heads: by rich on a terminal, in plain columns elsewhere."""
    cells = [[one_line(str(cell)) for cell in row] for row in rows]
    if not cells:
        click.echo(empty or "nothing")
        return
    if on_terminal():
        # Only a terminal pays for importing rich.
        importlib.import_module("supervisor.cli.rich_table").show(heads, cells, COLOURS)
        return
    widths = [max(len(row[column]) for row in (list(heads), *cells)) for column in range(len(heads))]
    for row in (list(heads), *cells):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def paint(word: str) -> str:
    """A state's name, in its colour where colours are used."""
    safe = one_line(word)
    return click.style(safe, fg=COLOURS.get(word)) if colours() and word in COLOURS else safe


def seconds(milliseconds: int) -> str:
    """`1.25 s`."""
    return f"{milliseconds / 1000:.2f} s"


def size(count: int) -> str:
    """`3.1 MiB`."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def age(milliseconds: int) -> str:
    """`42 s`, `5 min`, `3 h`, `2 d`: an age in one unit."""
    seconds_old = max(0, milliseconds) // 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds_old >= 2 * length:
            return f"{seconds_old // length} {unit}"
    return f"{seconds_old} s"


def when(wall_ms: int) -> str:
    """Local time of day, for people."""
    return dt.datetime.fromtimestamp(wall_ms / 1000).astimezone().strftime("%H:%M:%S.%f")[:-3]


def moment(wall_ms: int) -> str:
    """Local date and time, for people; "now" for none."""
    if not wall_ms:
        return "now"
    return dt.datetime.fromtimestamp(wall_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def rfc3339(wall_ms: int) -> str:
    """A time as Kubernetes writes it: UTC, in whole seconds."""
    return dt.datetime.fromtimestamp(wall_ms // 1000, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def step(number: int) -> str:
    """A step, or a dash before the first."""
    return str(number) if number >= 0 else "-"


def phases(durations: Mapping[str, int]) -> str:
    """`detected 12 ms, decided 3 ms, ...`, in the order in which they come."""
    known = [name for name in PHASES if name in durations]
    return ", ".join(f"{name.replace('_', ' ')} {durations[name]} ms" for name in known)


def time_line(durations: Mapping[str, int]) -> list[str]:
    """A recovery drawn as one bar for each phase, each where it lies between loss and first step.

    Empty for fewer than two phases, and where they took no time.
    """
    known = [name for name in PHASES if name in durations]
    total_ms = sum(durations[name] for name in known)
    if len(known) < 2 or total_ms <= 0:
        return []
    lines, before_ms = [], 0
    for name in known:
        first = before_ms * TIME_LINE_WIDTH // total_ms
        before_ms += durations[name]
        past = max(first + 1, before_ms * TIME_LINE_WIDTH // total_ms)
        bar = (" " * first + BAR * (past - first)).ljust(TIME_LINE_WIDTH + 1)
        lines.append(f"{name.replace('_', ' '):<12}{bar} {durations[name]:>7} ms")
    return lines


def json_line(document: object) -> str:
    """A document as one line of JSON."""
    return json.dumps(codec.to_plain(document), separators=(",", ":"))
