"""`outputs JOB` lists what a job's tasks wrote to their output directories; `outputs JOB get` fetches it.

This process reads the store, so the machine needs access to the job's HDFS, or to the store's directory.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from supervisor.cli import names, render
from supervisor.cli.checkpoints.list import JOB, JobGroup
from supervisor.cli.options import Globals, global_options
from supervisor.cli.progress import ProgressLine
from supervisor.cli.store import open_store
from supervisor.cli.target import find_target
from supervisor.cli.terminal import neutralise
from supervisor.contract.errors import Conflict, NotFound
from supervisor.contract.ids import check_name

if TYPE_CHECKING:
    from recovery.outputs.index import OutputFile, OutputIndex
    from supervisor.contract.boundaries import CheckpointStore, Moved

TRIES = 3
_HERE = "supervisor.cli.jobs.outputs"


class OutputsGroup(JobGroup):
    """The verbs of `outputs JOB`."""

    verbs: ClassVar[Mapping[str, tuple[str, str]]] = {
        "ls": (_HERE, "List the files."),
        "get": (_HERE, "Fetch the files into a directory of this machine."),
    }
    functions: ClassVar[Mapping[str, str]] = {}


@click.group(cls=OutputsGroup, invoke_without_command=True)
@click.argument("job", shell_complete=names.jobs)
@global_options
@click.pass_context
def outputs(context: click.Context, given: Globals, job: str) -> None:
    """List the files in the output directories of JOB's tasks; with a command, work on them."""
    context.obj = given
    context.meta[JOB] = check_name("job", job)
    if context.invoked_subcommand is None:
        _list(given, job, "", ())


@click.command()
@click.option("--task", default="", help="Only the files of this task: ROLE:INDEX.")
@click.argument("paths", nargs=-1)
@global_options
@click.pass_context
def ls(context: click.Context, given: Globals, task: str, paths: tuple[str, ...]) -> None:
    """List the files, those below PATHS alone if there are any."""
    _list(given, str(context.meta[JOB]), task, paths)


@click.command()
@click.option(
    "--to", "target", type=click.Path(path_type=Path), required=True, help="An empty directory, or a new one."
)
@click.option("--task", default="", help="Only the files of this task: ROLE:INDEX.")
@click.argument("paths", nargs=-1)
@global_options
@click.pass_context
def get(context: click.Context, given: Globals, target: Path, task: str, paths: tuple[str, ...]) -> None:
    """Fetch the files, those below PATHS alone if there are any, to DIRECTORY/ROLE.INDEX/PATH."""
    document = asyncio.run(_get(given, str(context.meta[JOB]), target.absolute(), task, paths))
    if given.json:
        render.emit_json(document)
        return
    count, size, missing = document["count"], document["size"], document["missing"]
    assert isinstance(size, int)
    assert isinstance(missing, list)
    click.echo(neutralise(f"{document['job']}: {count} files, {render.size(size)}, are in {target}"))
    for text in missing:
        click.echo(neutralise(f"not fetched: {text}"), err=True)


def _list(given: Globals, job: str, task: str, paths: Sequence[str]) -> None:
    document, found = asyncio.run(_read(given, job, task, paths))
    if given.json:
        render.emit_json(document)
        return
    click.echo(neutralise(f"{job}: {document['uri']}"))
    now_ms = int(time.time() * 1000)
    rows = [
        (_task(index), path, render.size(file.size), render.age(now_ms - file.modified_ms))
        for index in found
        for path, file in sorted(index.files.items())
    ]
    render.table(("task", "path", "size", "age"), rows, "no output has been stored yet")
    for index in found:
        if index.left_out_count:
            named = "; ".join(f"{path}: {why}" for path, why in list(index.left_out.items())[:5])
            text = f"{_task(index)}: {index.left_out_count} files are not stored ({named})"
            click.echo(neutralise(text), err=True)


async def _read(
    given: Globals, job: str, task: str, paths: Sequence[str]
) -> tuple[dict[str, object], list[OutputIndex]]:
    """The document for programs, and its indexes, reduced to the requested files."""
    uri, uuid = await _place(given, job)
    async with open_store(uri) as store:
        found = await _indexes(store, uuid, task, paths)
    tasks = [
        {
            "task": _task(index),
            "node": index.node,
            "writing": index.writing,
            "files": [
                {"path": path, "size": file.size, "modified_ms": file.modified_ms}
                for path, file in sorted(index.files.items())
            ],
            "left_out": dict(index.left_out),
            "left_out_count": index.left_out_count,
        }
        for index in found
    ]
    return {"job": job, "uri": uri, "tasks": tasks}, found


async def _place(given: Globals, job: str) -> tuple[str, str]:
    async with find_target(given).client() as client:
        listed = await client.checkpoints(job)
        status = await client.status(job)
    return listed.uri, next(each.uuid for each in status.jobs if each.name == job)


async def _indexes(store: CheckpointStore, uuid: str, task: str, paths: Sequence[str]) -> list[OutputIndex]:
    """Each task's index, reduced to the requested files. Raises NotFound for a task without outputs."""
    from recovery.outputs.stored import read_outputs

    found = sorted(await read_outputs(store, uuid), key=_order)
    if task:
        found = [index for index in found if _task(index) == task]
        if not found:
            raise NotFound(f"task {task} has stored no output; write it as ROLE:INDEX, for example worker:0")
    wanted = [path.strip("/") for path in paths]
    if not wanted:
        return found
    return [
        replace(index, files={path: file for path, file in index.files.items() if _asked(path, wanted)})
        for index in found
    ]


async def _get(given: Globals, job: str, target: Path, task: str, paths: Sequence[str]) -> dict[str, object]:
    from recovery.commit.exchange import check_target

    check_target(target)
    uri, uuid = await _place(given, job)
    spool, missing = target / f".part-{uuid[:8]}", list[str]()
    async with open_store(uri) as store:
        found = await _indexes(store, uuid, task, paths)
        total = sum(index.size for index in found)
        line = ProgressLine(wanted=not given.json)
        done = 0

        def moved(more: int) -> None:
            nonlocal done
            done += more
            line.show(f"fetching outputs of {job}", done, total)

        try:
            for index in found:
                missing += await _fetch(store, uuid, index, target, spool, moved)
        finally:
            line.clear()
            with suppress(OSError):
                shutil.rmtree(spool)
    count = sum(len(index.files) for index in found) - len(missing)
    if not count:
        raise NotFound(
            f"job {job} has stored no such output; `supervisorctl outputs {job}` lists what there is"
        )
    return {"job": job, "directory": str(target), "count": count, "size": total, "missing": missing}


async def _fetch(
    store: CheckpointStore, uuid: str, index: OutputIndex, target: Path, spool: Path, moved: Moved
) -> list[str]:
    """Fetch one task's files; returns those that another file is in the way of."""
    from recovery.outputs.index import directory_of
    from recovery.outputs.stored import Fetcher, read_index

    base, directory = directory_of(uuid, index.member), target / index.member
    directory.mkdir(parents=True, exist_ok=True)
    fetcher = Fetcher(store, base, directory, spool)
    missing = []
    for path, file in sorted(index.files.items()):
        now: OutputFile | None = file
        for left in reversed(range(TRIES)):
            if now is None:
                break  # its program has removed it meanwhile
            try:
                await fetcher.fetch(path, now, None, moved)
                break
            except Conflict as error:
                missing.append(f"{_task(index)} {path}: {error}")
                break
            except NotFound:
                # Its task writes on: there is a newer index.
                if not left:
                    raise
                newer = await read_index(store, base)
                now = newer.files.get(path) if newer is not None else None
    return missing


def _task(index: OutputIndex) -> str:
    role, _, number = index.member.rpartition(".")
    return f"{role}:{number}"


def _order(index: OutputIndex) -> tuple[str, int]:
    role, _, number = index.member.rpartition(".")
    return role, int(number)


def _asked(path: str, wanted: Sequence[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in wanted)
