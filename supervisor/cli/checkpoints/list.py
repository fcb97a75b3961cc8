"""`checkpoints JOB` lists a job's checkpoints; `checkpoints JOB VERB` works on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

import click

from supervisor.cli import names, render
from supervisor.cli.lazy import LazyGroup
from supervisor.cli.options import Globals, global_options
from supervisor.cli.target import find_target
from supervisor.cli.terminal import neutralise
from supervisor.contract.ids import check_name
from supervisor.contract.views.jobs import CheckpointList, CheckpointView

JOB = "supervisorctl checkpoints JOB"
"""The key of the job in click's `meta`."""

_VERBS = "supervisor.cli.checkpoints.verbs"
_FILES = "supervisor.cli.checkpoints.files"
VERBS = {
    "verify": (_VERBS, "Read checkpoints back from the store, and set bad ones aside."),
    "gc": (_VERBS, "List what is kept and why, and remove the rest."),
    "pin": (_VERBS, "Keep a checkpoint for good."),
    "unpin": (_VERBS, "Let a pinned checkpoint be removed when it is old."),
    "restore": (_FILES, "Bring a checkpoint into a directory of this machine."),
    "import": (_FILES, "Let the next start begin from a checkpoint that was made elsewhere."),
    "rebuild": (_VERBS, "Record the store's checkpoints again, after etcd was lost."),
}
_WITH_VALUE = frozenset({"--state", "--config", "-o", "--output"})


class JobGroup(LazyGroup):
    """A group whose name stands before its verbs, and whose options may stand on either side of that."""

    verbs: ClassVar[Mapping[str, tuple[str, str]]] = VERBS
    functions: ClassVar[Mapping[str, str]] = {"import": "import_"}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Click would take an option after JOB for a verb."""
        return super().parse_args(ctx, _options_first(args))


@click.group(cls=JobGroup, invoke_without_command=True)
@click.argument("job", shell_complete=names.jobs)
@global_options
@click.pass_context
def checkpoints(context: click.Context, given: Globals, job: str) -> None:
    """List JOB's checkpoints, the newest first; with a command, work on them."""
    context.obj = given
    context.meta[JOB] = check_name("job", job)
    if context.invoked_subcommand is not None:
        return
    document = asyncio.run(_list(given, job))
    if given.json:
        render.emit_json(document)
    else:
        _show(document)


async def _list(given: Globals, job: str) -> CheckpointList:
    async with find_target(given).client() as client:
        return await client.checkpoints(job)


def _show(document: CheckpointList) -> None:
    click.echo(neutralise(f"{document.job}: {document.uri}"))
    now_ms = int(time.time() * 1000)
    rows = [
        (
            str(entry.ref),
            entry.ref.step,
            entry.ref.generation,
            render.size(entry.size),
            entry.tensors or "-",
            entry.verified,
            "yes" if entry.pinned else "-",
            entry.state.value,
            _why(entry),
            render.age(now_ms - entry.wall_ms),
        )
        for entry in document.checkpoints
    ]
    heads = (
        *("checkpoint", "step", "generation", "size", "tensors", "verified", "pinned"),
        *("state", "why", "age"),
    )
    render.table(heads, rows, "no checkpoint is committed yet")


def _why(entry: CheckpointView) -> str:
    """The use of a checkpoint, or its problem."""
    use = {"base": "base of this generation", "newest": "newest"}.get(entry.use, "")
    lineage = "" if entry.on_lineage else "off the lineage"
    return "; ".join(filter(None, (entry.reason, use, lineage))) or "-"


def _options_first(args: Sequence[str]) -> list[str]:
    """The same words, with the options before the verb moved to the front."""
    options: list[str] = []
    job: list[str] = []
    left = list(args)
    while left and left[0] != "--" and not (job and not left[0].startswith("-")):
        word = left.pop(0)
        if not word.startswith("-"):
            job.append(word)
            continue
        options.append(word)
        if word in _WITH_VALUE and left:
            options.append(left.pop(0))
    return [*options, *job, *left]
