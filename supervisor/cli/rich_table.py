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

    Without `wrap` each row is one line: the last column is cut where there is no room.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold" if wrap else "ellipsis", no_wrap=not wrap)
    for row in cells:
        table.add_row(*(Text(cell, style=styles.get(cell, "")) for cell in row))
    return table
