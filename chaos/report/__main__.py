"""`python -m chaos.report [DIR]`: one HTML page of all runs below a directory."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from chaos.report.page import page
from chaos.report.read import find

RUNS = Path("var/chaos")
PAGE = "report.html"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False), default=RUNS)
@click.option("--to", type=click.Path(path_type=Path), help="the page; default: DIRECTORY/report.html")
@click.option("--title", default="Chaos: faults and promises", show_default=True)
def main(directory: Path, to: Path | None, title: str) -> None:
    """Write one HTML page of all runs below DIRECTORY (default: var/chaos), which needs nothing else.

    Exit codes: 0 written; 2 wrong input, or no run is there.
    """
    found = find(directory)
    if not (found.runs or found.mutants or found.mild or found.sims):
        click.echo(f"no run is below {directory}", err=True)
        sys.exit(2)
    target = to or directory / PAGE
    target.write_text(page(found, title), encoding="utf-8")
    click.echo(f"{target}: {len(found.runs)} runs")


if __name__ == "__main__":
    main()
