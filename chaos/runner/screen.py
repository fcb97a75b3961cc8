"""The output while runs go on: one moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from chaos.runner.record import Outcome, RunRecord
from chaos.runner.timeline import Entry

COLOURS = {Outcome.PASSED: "green", Outcome.BROKEN: "bold red", Outcome.ERROR: "yellow"}


class Screen:
    """Everything goes to standard error: standard output is for documents."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False, quiet=quiet)
        self._began_s = time.monotonic()
        self._status: Status | None = None
        self._title = ""

    def title(self, text: str) -> None:
        """Show the name of the run that begins now."""
        self._title = text
        if self.console.is_terminal and self._status is None:
            self._status = self.console.status("")
            self._status.start()
        self.say(text)

    def say(self, text: str) -> None:
        """A step of it."""
        if self._status is not None:
            self._status.update(f"{escape(self._title)}: {escape(text)}")
        else:
            self.line(text)

    def line(self, text: str, style: str = "") -> None:
        """A line that stays."""
        self.console.print(
            f"{time.monotonic() - self._began_s:8.1f}  {escape(text)}", style=style, soft_wrap=True
        )

    def close(self) -> None:
        """No more moving line."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def done(self, record: RunRecord) -> None:
        """The end of one run."""
        took_s = (record.ended_ms - record.began_ms) / 1000
        what = " and ".join(f"{fault.name} of {fault.target}" for fault in record.faults)
        text = f"{record.outcome.value:6}  {record.id}  {what or record.scenario}  ({took_s:.1f} s)"
        self.line(f"{text}  {record.why}".rstrip(), COLOURS[record.outcome])

    def failure(self, record: RunRecord, timeline: Sequence[Entry]) -> None:
        """Why a run is broken, what happened around that, and how to see it again."""
        print_ = partial(self.console.print, soft_wrap=True)
        for broken in record.violations:
            print_(f"\n[bold red]broken promise:[/] {escape(broken.promise)}: {escape(broken.text)}")
            for each in broken.evidence:
                print_(f"    {escape(each)}")
        for entry in timeline:
            mark = "[red]>[/]" if entry.kind == "broken" else " "
            print_(f"  {mark} {entry.at_s:9.3f} s  {entry.kind:9} {escape(entry.text)}")
        print_(f"seed: {record.seed}\nreplay: {escape(record.replay)}\n")


def table(counts: dict[str, dict[Outcome, int]]) -> Table:
    """The number of injections of each fault, by outcome."""
    found = Table("fault", *(outcome.value for outcome in Outcome), box=None)
    for name, row in sorted(counts.items()):
        found.add_row(name, *(str(row.get(outcome, 0) or "") for outcome in Outcome))
    return found


def document(text: str) -> None:
    """To standard output."""
    sys.stdout.write(f"{text}\n")
