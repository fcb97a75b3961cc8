"""Tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from supervisor.cli.terminal import colours


def show(heads: Sequence[str], cells: Sequence[Sequence[str]], styles: Mapping[str, str]) -> None:
    """Print a table."""
    Console(no_color=not colours(), highlight=False).print(grid(heads, cells, styles))


def grid(
    heads: Sequence[str],
    cells: Sequence[Sequence[str]],
    styles: Mapping[str, str],
    *,
    wrap: bool = True,
) -> Table:
    """A table; a cell that is a key of `styles` gets that colour. Cells are text, never markup.

    Without `wrap` each row is one line: the last column is cut where there is no room, the others only where
    that is not enough.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, head in enumerate(heads, 1):
        # rich takes room from columns that may wrap before it takes any from others.
        no_wrap = not wrap and place < len(heads)
        table.add_column(head, overflow="fold" if wrap else "ellipsis", no_wrap=no_wrap)
    for row in cells:
        table.add_row(*(Text(cell, style=styles.get(cell, ""), no_wrap=not wrap) for cell in row))
    return table
