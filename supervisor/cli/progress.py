"""One line on a terminal's standard error that is rewritten to show progress."""

from __future__ import annotations

import sys
from contextlib import suppress

import click

from supervisor.cli import render
from supervisor.cli.terminal import one_line

_CELLS = 20
_WIDTH = 110


class RewrittenLine:
    """A line that is rewritten.

    It shows nothing if standard error is no terminal, or if it is switched off.
    """

    def __init__(self, *, wanted: bool = True) -> None:
        self._on = wanted and sys.stderr.isatty()
        self._last = ""

    def write(self, text: str) -> None:
        """Show a new text."""
        line = one_line(text)[:_WIDTH]
        if self._on and line != self._last:
            self._last = line
            click.echo(f"\r\x1b[K{line}", err=True, nl=False)

    def clear(self) -> None:
        """Clear the line."""
        if self._on and self._last:
            self._last = ""
            with suppress(OSError):
                click.echo("\r\x1b[K", err=True, nl=False)


class ProgressLine(RewrittenLine):
    """A progress bar of bytes."""

    def show(self, what: str, done: int, total: int) -> None:
        """`what [#####.....] 1.0 GiB of 2.0 GiB`."""
        share = min(1.0, done / total) if total > 0 else 1.0
        cells = "#" * round(share * _CELLS)
        amount = f"{render.size(min(done, total))} of {render.size(total)}"
        self.write(f"{what} [{cells:.<{_CELLS}}] {amount}")
