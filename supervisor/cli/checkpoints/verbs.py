"""`checkpoints JOB` verify, gc, pin, unpin, rebuild: requests to the leader about checkpoints in their
store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from supervisor.cli import names, render
from supervisor.cli.checkpoints.list import JOB
from supervisor.cli.jobs.control import parse_checkpoint, set_pin
from supervisor.cli.options import Globals, global_options
from supervisor.cli.progress import ProgressLine
from supervisor.cli.target import find_target
from supervisor.cli.terminal import neutralise
from supervisor.contract import codec
from supervisor.contract.errors import BadCheckpoint, StoreUnreachable
from supervisor.contract.views.checkpoints import CheckProgress, CheckView, CollectReport, Finding

if TYPE_CHECKING:
    from supervisor.api.client import ControlClient

STORE_S = 300.0
"""Seconds that the leader may take to scan a store."""

WHY = {
    "base": "the job's present generation, or a restart that was asked for, begins from it",
    "pinned": "it is pinned",
    "newest": "one of the newest on the lineage: checkpoint.keep, at least 2",
    "verified": "one of the newest two that were read back from the store",
    "every": "the first one of its steps: checkpoint.keep_every",
    "young": "younger than checkpoint.keep_for",
    "suspected": "it is suspected only, and may be cleared",
    "grace": "off the lineage, quarantined, or of an earlier life (--fresh), for less than 3 days",
    "former_life": "of an earlier life of this job (--fresh), for more than 3 days",
    "surplus": "nothing asks to keep it",
    "off_lineage": "off the lineage for more than 3 days",
    "quarantined": "quarantined for more than 3 days",
    "collecting": "it is being deleted",
    "never_committed": "an interrupted commit left it; no record will ever name it",
    "in_force": "it may still be committed",
    "records_lost": "the job's records are lost: `rebuild` first",
    "other_job": "its manifest is another job's, or of a life that this cluster does not know",
    "unreadable": "no manifest that this release can read; look at it, then remove it by hand",
    "abandoned": "an interrupted commit left it",
    "generation_over": "what a generation that is over has mounted",
    "in_use": "what the generation in force has mounted, or one that is prepared",
}


@click.command()
@click.argument("refs", nargs=-1, shell_complete=names.checkpoints_of_job, metavar="[REF...]")
@global_options
@click.pass_context
def verify(context: click.Context, given: Globals, refs: tuple[str, ...]) -> None:
    """Read the checkpoints REF (400, or g3-s400), or all, back from the store.

    One that is not what was committed is quarantined. One that cannot be read is left as it is.
    Exits with 14 when one is bad, else with 5 when one could not be read.
    """
    wanted = tuple(parse_checkpoint(ref) for ref in refs)
    job = str(context.meta[JOB])
    found, end = asyncio.run(_follow(given, "verifying", lambda client: client.verify(job, wanted)))
    _print_checks(given, job, found, end)
    findings = {view.finding for view in found}
    code = BadCheckpoint.exit_code if Finding.BAD in findings else 0
    if not code and Finding.UNKNOWN in findings:
        code = StoreUnreachable.exit_code
    context.exit(code)


@click.command()
@global_options
@click.pass_context
def rebuild(context: click.Context, given: Globals) -> None:
    """Record the checkpoints in the store again, after etcd was lost. Each is read back first."""
    job = str(context.meta[JOB])
    found, end = asyncio.run(_follow(given, "reading", lambda client: client.rebuild(job)))
    _print_checks(given, job, found, end)


@click.command()
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@global_options
@click.pass_context
def gc(context: click.Context, given: Globals, dry_run: bool) -> None:
    """Tell what is in the store, what is kept and why, and remove the rest now."""
    report = asyncio.run(_collect(given, str(context.meta[JOB]), dry_run=dry_run))
    if given.json:
        render.emit_json(report)
        return
    click.echo(neutralise(f"{report.job}: {report.uri}"))
    rows = [
        (
            str(item.ref or "-"),
            item.thing.value,
            render.size(item.size) if item.size else "-",
            "goes" if item.goes else "stays",
            WHY.get(item.why, item.why),
            item.path,
        )
        for item in report.items
    ]
    render.table(("checkpoint", "what", "size", "fate", "why", "path"), rows, "the store is empty")
    going = sum(item.goes for item in report.items)
    told = "would be removed" if dry_run else "removed, or being removed"
    click.echo(f"{going} of {len(report.items)} {told}")


@click.command()
@click.argument("checkpoint", shell_complete=names.checkpoints_of_job, metavar="REF")
@global_options
@click.pass_context
def pin(context: click.Context, given: Globals, checkpoint: str) -> None:
    """Keep the checkpoint REF (400, or g3-s400) for good, however many newer ones come."""
    set_pin(given, str(context.meta[JOB]), checkpoint, pinned=True)


@click.command()
@click.argument("checkpoint", shell_complete=names.checkpoints_of_job, metavar="REF")
@global_options
@click.pass_context
def unpin(context: click.Context, given: Globals, checkpoint: str) -> None:
    """Let the checkpoint REF be removed when it is old enough."""
    set_pin(given, str(context.meta[JOB]), checkpoint, pinned=False)


async def follow(
    line: ProgressLine, what: str, stream: AsyncGenerator[CheckProgress, None]
) -> tuple[list[CheckView], str]:
    """Show the leader's progress; returns the results, and the text about its records at the end."""
    found: list[CheckView] = []
    end = ""
    try:
        async with aclosing(stream) as items:
            async for item in items:
                count = f" {item.number} of {item.count}" if item.count > 1 else ""
                if item.waits_ms:
                    left = render.seconds(item.waits_ms)
                    line.write(f"waiting {left}: tasks from before etcd was lost may run until then")
                else:
                    line.show(f"{what}{count}", item.done_bytes, item.total_bytes)
                if item.found is not None:
                    found.append(item.found)
                end = item.end or end
    finally:
        line.clear()
    return found, end


async def _follow(
    given: Globals, what: str, ask_for: Callable[[ControlClient], AsyncGenerator[CheckProgress, None]]
) -> tuple[list[CheckView], str]:
    async with find_target(given).client() as client:
        return await follow(ProgressLine(wanted=not given.json), what, ask_for(client))


async def _collect(given: Globals, job: str, *, dry_run: bool) -> CollectReport:
    async with find_target(given).client(STORE_S) as client:
        return await client.collect(job, dry_run=dry_run)


def _print_checks(given: Globals, job: str, found: list[CheckView], end: str) -> None:
    if given.json:
        render.emit_json({"job": job, "checkpoints": [codec.to_plain(view) for view in found], "end": end})
        return
    rows = [
        (
            str(view.ref),
            view.finding.value,
            render.size(view.size),
            view.tensors or "-",
            render.seconds(view.took_ms),
            view.detail or "-",
        )
        for view in found
    ]
    render.table(("checkpoint", "found", "size", "tensors", "took", "detail"), rows)
    click.echo(neutralise(f"{job}: {end}"))
