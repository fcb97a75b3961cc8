"""The verb `describe`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from supervisor.cli import names, render
from supervisor.cli.jobs.look import ask
from supervisor.cli.options import Globals, global_options
from supervisor.cli.terminal import neutralise
from supervisor.contract.ids import check_name
from supervisor.contract.job.written import scalar
from supervisor.contract.views.description import Description

COLUMN = 40
"""The column of comments, where values leave room."""


@click.command()
@click.argument("job", shell_complete=names.jobs)
@global_options
def describe(given: Globals, job: str) -> None:
    """Show the stored file of JOB, and after each value where it is from. It can be submitted again."""
    document = ask(given, lambda client: client.describe(check_name("job", job)))
    if given.json:
        render.emit_json(document)
    else:
        click.echo(neutralise("\n".join(lines(document))))


def lines(document: Description) -> Iterator[str]:
    """A job file, with the source of each value in a comment."""
    yield from (f"# {each}" for each in _head(document))
    above: tuple[str, ...] = ()
    for field in document.fields:
        for depth, part in enumerate(field.path[:-1]):
            if field.path[: depth + 1] != above[: depth + 1]:
                yield f"{'  ' * depth}{scalar(part)}:"
                above = field.path[: depth + 1]
        above = field.path[:-1]
        mark = "" if field.in_file else "# "
        text = f"{'  ' * len(above)}{mark}{scalar(field.path[-1])}: {field.value}"
        yield f"{text.ljust(COLUMN)}  # {field.source}"


def _head(document: Description) -> Iterator[str]:
    owner = f" by {document.owner}" if document.owner else ""
    owner += f", group {document.group}" if document.group else ""
    yield f"job {document.job}, submitted {render.moment(document.submitted_wall_ms)}{owner}"
    if not document.recorded:
        yield "It is not recorded which values its file gave: see `describe` in docs/cli.md."
    if document.redacted:
        yield "Values that may be secrets are hidden. Put them in before you submit this again."
