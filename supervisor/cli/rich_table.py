"""Tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from supervisor.cli.terminal import colours


def show(heads: Sequence[str], cells: Sequence[Sequence[str]], styles: Mapping[str, str]) -> None:
    """Print a table; a cell that is a key of `styles` gets that colour. Cells are text, never markup."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in heads:
        grid.add_column(head, overflow="fold")
    for row in cells:
        grid.add_row(*(Text(cell, style=styles.get(cell, "")) for cell in row))
    Console(no_color=not colours(), highlight=False).print(grid)
