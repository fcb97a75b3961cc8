"""`checkpoints JOB` restore, import: transfer between the store and a directory of this machine.

This process reads and writes the store, so the machine needs access to the job's HDFS, or to the store's
directory.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli import render
from supervisor.cli.checkpoints.list import JOB
from supervisor.cli.checkpoints.verbs import follow
from supervisor.cli.jobs.control import parse_checkpoint
from supervisor.cli.options import Globals, global_options
from supervisor.cli.progress import ProgressLine
from supervisor.cli.store import open_store
from supervisor.cli.target import find_target
from supervisor.cli.terminal import neutralise
from supervisor.contract import codec
from supervisor.contract.bounds import STEPS
from supervisor.contract.checkpoint import CheckpointRef, CommitState

if TYPE_CHECKING:
    from recovery.commit.exchange import Candidate
    from supervisor.api.client import ControlClient

LOOK_S = 0.2


@click.command()
@click.argument("checkpoint", metavar="REF")
@click.option(
    "--to", "target", type=click.Path(path_type=Path), required=True, help="An empty directory, or a new one."
)
@global_options
@click.pass_context
def restore(context: click.Context, given: Globals, checkpoint: str, target: Path) -> None:
    """Bring the checkpoint REF (400, or g3-s400) into a directory, verified, for TensorFlow to restore."""
    found = asyncio.run(
        _restore(given, str(context.meta[JOB]), parse_checkpoint(checkpoint), target.absolute())
    )
    if given.json:
        render.emit_json(found)
        return
    click.echo(neutralise(f"{found['job']}: {found['checkpoint']} is in {found['directory']}, verified"))
    if found["warning"]:
        click.echo(neutralise(f"warning: {found['warning']}"), err=True)


@click.command("import")
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--step", type=click.IntRange(0, STEPS - 1), help="The checkpoint's step; else the number in its name."
)
@click.option(
    "--prefix", default="", help="The prefix of TensorFlow's files, as model.ckpt-400; else the newest."
)
@click.option("--file", "names", multiple=True, help="A file that is not TensorFlow's, below DIRECTORY.")
@global_options
@click.pass_context
def import_(
    context: click.Context,
    given: Globals,
    directory: Path,
    step: int | None,
    prefix: str,
    names: tuple[str, ...],
) -> None:
    """Let the next start of JOB, which must not run, begin from the checkpoint in DIRECTORY."""
    from recovery.commit.exchange import find_candidate

    candidate = find_candidate(directory.absolute(), prefix, names, step)
    found = asyncio.run(_import(given, str(context.meta[JOB]), candidate))
    if given.json:
        render.emit_json(found)
    else:
        click.echo(neutralise(f"{found['job']}: {found['checkpoint']} is imported; {found['end']}"))


async def _restore(given: Globals, job: str, ref: CheckpointRef, target: Path) -> dict[str, object]:
    from recovery.commit.exchange import building_directory, bytes_below, check_target, restore_to
    from supervisor.adapters.clock import BootClock

    check_target(target)
    async with find_target(given).client() as client:
        found = await client.find_checkpoint(job, ref)
    record, build = found.commit, building_directory(target)
    line = ProgressLine(wanted=not given.json)
    async with open_store(found.uri) as store:
        work = asyncio.ensure_future(restore_to(store, record, target, build, BootClock()))
        try:
            while not (await asyncio.wait({work}, timeout=LOOK_S))[0]:
                line.show(f"restoring {record.ref}", bytes_below(build), record.size)
            manifest = work.result()
        finally:
            if not work.done():
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
            line.clear()
    state = record.state
    return {
        "job": job,
        "checkpoint": str(record.ref),
        "directory": str(target),
        "size": manifest.size,
        "tensors": manifest.tensors,
        "files": [codec.to_plain(file) for file in manifest.files],
        "warning": "" if state is CommitState.COMMITTED else f"it is {state.value}: {record.reason}",
    }


async def _import(given: Globals, job: str, candidate: Candidate) -> dict[str, object]:
    from recovery.commit.exchange import bring, describe
    from supervisor.adapters.clock import BootClock

    clock, line = BootClock(), ProgressLine(wanted=not given.json)
    total = sum((candidate.directory / name).stat().st_size for name in candidate.names)
    async with find_target(given).client() as client:
        place = await client.place_import(job, candidate.step)
        async with open_store(place.uri) as store:
            try:
                reading = partial(describe, candidate, place, socket.gethostname(), clock.wall_ms())
                manifest = await asyncio.to_thread(reading, _shown(line, "verifying", total))
                path = await bring(store, candidate, manifest, _shown(line, "uploading", total))
                end = await _adopt(client, line, job, path)
            finally:
                line.clear()
    return {
        "job": job,
        "checkpoint": str(place.ref),
        "path": path,
        "size": manifest.size,
        "tensors": manifest.tensors,
        "end": end,
    }


async def _adopt(client: ControlClient, line: ProgressLine, job: str, path: str) -> str:
    _, end = await follow(line, "the leader reads it back", client.adopt(job, path))
    return end


def _shown(line: ProgressLine, what: str, total: int) -> Callable[[int], None]:
    done = 0

    def moved(more: int) -> None:
        nonlocal done
        done += more
        line.show(what, done, total)

    return moved
