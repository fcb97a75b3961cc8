"""`models` lists the models of all jobs, `models JOB` the versions of one; `models JOB VERB` works on these.

This process reads and writes the store, so the machine needs access to the job's HDFS, or to the store's
directory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

import click

from supervisor.cli import names, render
from supervisor.cli.checkpoints.list import JOB, JobGroup
from supervisor.cli.models.overview import list_all, state_of, tell_held
from supervisor.cli.options import Globals, global_options
from supervisor.cli.store import open_store
from supervisor.cli.target import find_target
from supervisor.cli.terminal import neutralise
from supervisor.contract.errors import NotFound, UserError
from supervisor.contract.ids import check_name
from supervisor.contract.job.serving import base_of, check_server

if TYPE_CHECKING:
    from recovery.models.index import ModelIndex
    from recovery.models.store import ModelStore
    from supervisor.contract.boundaries import CheckpointStore

T = TypeVar("T")
_HERE = "supervisor.cli.models.verbs"
_SERVERS_S = 120.0
_FILE = click.Path(path_type=Path, dir_okay=False)
Change = Callable[["ModelIndex"], "ModelIndex"]


class ModelsGroup(JobGroup):
    """The verbs of `models JOB`."""

    verbs: ClassVar[Mapping[str, tuple[str, str]]] = {
        "ls": (_HERE, "List the versions."),
        "publish": (_HERE, "Publish a withdrawn version, or all, and what comes."),
        "rollback": (_HERE, "Withdraw the newest version, or all after one, and hold what comes."),
        "label": (_HERE, "Put a label on a version, or take it away."),
        "repair": (_HERE, "Write an index anew that cannot be read."),
        "reload": (_HERE, "Write a model server's configuration, and tell servers of it."),
    }
    functions: ClassVar[Mapping[str, str]] = {}


@click.group(cls=ModelsGroup, invoke_without_command=True)
@click.argument("job", shell_complete=names.jobs, required=False)
@global_options
@click.pass_context
def models(context: click.Context, given: Globals, job: str | None) -> None:
    """List the models of all jobs, or the versions of JOB's; with a command, work on these."""
    if job is None:
        list_all(given)
        return
    context.obj = given
    context.meta[JOB] = check_name("job", job)
    if context.invoked_subcommand is None:
        _list(given, job, "")


_model = click.option("--model", default="", help="The model, where the job has published several.")


@click.command()
@_model
@global_options
@click.pass_context
def ls(context: click.Context, given: Globals, model: str) -> None:
    """List the versions, the newest last."""
    _list(given, str(context.meta[JOB]), model)


@click.command()
@click.argument("version", type=int, required=False)
@_model
@global_options
@click.pass_context
def publish(context: click.Context, given: Globals, model: str, version: int | None) -> None:
    """Publish a withdrawn VERSION. Without one: all of them, and new exports again."""
    from recovery.models.index import put_forward

    index = _change(given, str(context.meta[JOB]), model, lambda index: put_forward(index, version))
    _tell(given, index, f"model {index.model}: {_shown(index)}")


@click.command()
@click.argument("version", type=int, required=False)
@_model
@global_options
@click.pass_context
def rollback(context: click.Context, given: Globals, model: str, version: int | None) -> None:
    """Make VERSION the newest that servers see; without one, that before the newest. New exports are held."""
    from recovery.models.index import rolled_back

    index = _change(given, str(context.meta[JOB]), model, lambda index: rolled_back(index, version))
    _tell(given, index, f"model {index.model}: {_shown(index)}; new exports are held until `publish`")


@click.command()
@click.argument("label")
@click.argument("version", type=int, required=False)
@click.option("--remove", is_flag=True, help="Take the label away.")
@_model
@global_options
@click.pass_context
def label(
    context: click.Context, given: Globals, model: str, label: str, version: int | None, remove: bool
) -> None:
    """Put LABEL, for example stable or canary, on a published VERSION. `reload` tells servers of it."""
    from recovery.models.index import labelled

    if remove == (version is not None):
        raise click.UsageError("name a version for the label, or write --remove", context)
    index = _change(given, str(context.meta[JOB]), model, lambda index: labelled(index, label, version))
    place = "is gone" if version is None else f"is on version {version}"
    _tell(given, index, f"model {index.model}: label {label} {place}")


@click.command()
@_model
@global_options
@click.pass_context
def repair(context: click.Context, given: Globals, model: str) -> None:
    """Write an index anew that cannot be read, from what is in the store. What servers see stays as it is."""
    job = str(context.meta[JOB])

    async def work(store: CheckpointStore, _uri: str) -> ModelIndex:
        return await (await _open(store, job, model)).repair(job, int(time.time() * 1000))

    index = _with_store(given, job, work)
    text = f"model {index.model}: the index is written anew: {_shown(index)}"
    held = f"; new exports are held: look at `models {job}`, then publish" if index.held else ""
    _tell(given, index, text + held)


@click.command()
@click.option(
    "--to",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file of --model_config_file; other models in it stay.",
)
@click.option("--server", "servers", multiple=True, help="A model server, HOST:PORT, instead of the job's.")
@click.option("--base-path", default="", help="Where servers see the model, if that is elsewhere.")
@click.option("--ca", type=_FILE, help="The authority of the servers' certificates; else no TLS.")
@click.option("--cert", type=_FILE, help="A certificate for servers that ask for one.")
@click.option("--key", type=_FILE, help="Its private key.")
@_model
@global_options
@click.pass_context
def reload(
    context: click.Context,
    given: Globals,
    /,
    model: str,
    target: Path | None,
    servers: tuple[str, ...],
    base_path: str,
    **tls: Path | None,
) -> None:
    """Write the model's versions and labels into a configuration, and tell model servers of it.

    A server gets a label only once it has loaded the version. Its whole configuration is replaced: name the
    file of its other models with --to.
    """
    from supervisor.cli.models.servers import config_of, credentials_of, merged, text_of, write_file

    job = str(context.meta[JOB])
    for each in servers:
        check_server(each)
    credentials = credentials_of(**tls)

    async def work(store: CheckpointStore, uri: str) -> tuple[ModelIndex, str, tuple[str, ...]]:
        from supervisor.cli.models.servers import tell_servers

        index = await (await _open(store, job, model)).read()
        place = base_path or base_of(uri, index.model)
        whole = merged(target, config_of(index, place))
        if target is not None:
            write_file(target, text_of(whole))
        told = servers or index.servers
        await tell_servers(told, whole, index.model, _SERVERS_S, credentials)
        return index, text_of(whole), told

    index, text, told = _with_store(given, job, work)
    if given.json:
        render.emit_json({"model": index.model, "config": text, "servers": list(told)})
    elif not told and target is None:
        click.echo(neutralise(text), nl=False)
    else:
        places = [*([str(target)] if target is not None else []), *told]
        click.echo(neutralise(f"model {index.model}: {_shown(index)}: {', '.join(places)}"))


def _list(given: Globals, job: str, model: str) -> None:
    async def work(store: CheckpointStore, uri: str) -> tuple[ModelIndex, str, frozenset[int]]:
        found = await _open(store, job, model)
        index = await found.read()
        return index, f"{uri}/models/{index.model}", await found.visible()

    index, place, visible = _with_store(given, job, work)
    if given.json:
        render.emit_json({"place": place, "visible": sorted(visible), "index": index})
        return
    click.echo(neutralise(f"model {index.model}: {place}"))
    now_ms = int(time.time() * 1000)
    rows = [
        (
            each.version,
            state_of(each, visible=each.version in visible),
            ", ".join(sorted(name for name, at in index.labels.items() if at == each.version)) or "-",
            render.size(each.size),
            each.check,
            f"{each.generation}.{each.attempt}",
            each.source,
            render.age(now_ms - each.taken_ms),
        )
        for each in index.present
    ]
    heads = ("version", "state", "labels", "size", "checked by", "attempt", "export", "age")
    render.table(heads, rows, "no version has been published yet")
    tell_held(job, index)
    for source, why in index.refused.items():
        click.echo(neutralise(f"not published: {source}: {why}"), err=True)


def _change(given: Globals, job: str, model: str, change: Change) -> ModelIndex:
    """Change the index of a model, and bring its versions to their places."""

    async def work(store: CheckpointStore, _uri: str) -> ModelIndex:
        found = await _open(store, job, model)
        await found.update(lambda index, _: change(index))
        return await found.settle()

    return _with_store(given, job, work)


def _tell(given: Globals, index: ModelIndex, text: str) -> None:
    if given.json:
        render.emit_json({"index": index})
    else:
        click.echo(neutralise(text))


def _shown(index: ModelIndex) -> str:
    numbers = ", ".join(str(each.version) for each in index.published)
    return f"versions {numbers}" if numbers else "no version"


def _with_store(given: Globals, job: str, work: Callable[[CheckpointStore, str], Awaitable[T]]) -> T:
    """Run work on the job's store."""

    async def run() -> T:
        uri = await _place(given, job)
        async with open_store(uri) as store:
            return await work(store, uri)

    return asyncio.run(run())


async def _place(given: Globals, job: str) -> str:
    async with find_target(given).client() as client:
        return (await client.checkpoints(job)).uri


async def _open(store: CheckpointStore, job: str, model: str) -> ModelStore:
    """A model of the store: the only one, or the named one. Raises NotFound, UserError."""
    from recovery.models.index import RECORDS
    from recovery.models.store import ModelStore

    known = (await store.list(RECORDS)).directories
    if not known:
        raise NotFound(f"job {job} has published no model; `serving:` in its job file says what to publish")
    if model and model not in known:
        raise NotFound(f"job {job} has published no model {model}; it has {', '.join(known)}")
    if not model and len(known) > 1:
        raise UserError(
            f"job {job} has published {len(known)} models: write --model with one of {', '.join(known)}"
        )
    return ModelStore(store, model or known[0])
