"""The verb `goodput`."""

from __future__ import annotations

import click

from supervisor.cli import names, render
from supervisor.cli.jobs.goodput import COLUMNS, duration, line, lines, percent, share, sum_of
from supervisor.cli.jobs.look import ask
from supervisor.cli.options import Globals, global_options
from supervisor.cli.terminal import neutralise
from supervisor.contract import codec
from supervisor.contract.ids import check_name
from supervisor.contract.views.jobs import JobView


@click.command()
@click.argument("job", shell_complete=names.jobs, required=False, default="")
@global_options
def goodput(given: Globals, job: str) -> None:
    """Show what the time of all jobs was spent on, or of JOB with each category (docs/goodput.md)."""
    document = ask(given, lambda client: client.status(check_name("job", job) if job else ""))
    if given.json:
        told = [{"job": each.name, "goodput": codec.to_plain(each.goodput)} for each in document.jobs]
        render.emit_json({"jobs": told})
    elif job:
        _show(document.jobs[0])
    else:
        render.table(
            ("job", "phase", "goodput", "of", *(name for name, _ in COLUMNS)),
            [_row(each) for each in document.jobs],
            "no job has been submitted; run `supervisorctl submit FILE`",
        )


def _row(job: JobView) -> tuple[object, ...]:
    found = job.goodput
    if found is None:
        return (job.name, job.phase.value, *["-"] * (2 + len(COLUMNS)))
    spent = (percent(sum_of(found, of), found.elapsed_ms) for _, of in COLUMNS)
    return (job.name, job.phase.value, share(found), duration(found.elapsed_ms), *spent)


def _show(job: JobView) -> None:
    found = job.goodput
    if found is None:
        click.echo(neutralise(f"{job.name}: nothing is counted yet"))
        return
    click.echo(neutralise(f"{job.name}: {line(found)}"))
    if found.since_wall_ms != job.submitted_wall_ms:
        click.echo(f"counted since {render.moment(found.since_wall_ms)}")
    click.echo()
    for each in lines(found):
        click.echo(each)
