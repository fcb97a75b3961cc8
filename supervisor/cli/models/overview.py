"""`models` without a job: the models of all jobs, each as its store has it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from supervisor.cli import render
from supervisor.cli.options import Globals
from supervisor.cli.store import open_store
from supervisor.cli.target import find_target
from supervisor.cli.terminal import neutralise
from supervisor.contract.errors import NotFound, TfSupervisorError
from supervisor.contract.job.serving import MODELS

if TYPE_CHECKING:
    from recovery.models.index import ModelIndex, ModelVersion
    from supervisor.contract.boundaries import CheckpointStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A model.

    Attributes:
        job: the job that publishes it.
        place: the URI of its directory.
        visible: the versions that servers see.
        served: the highest of them, which a server answers with unless it is asked for another; None: none.
    """

    job: str
    place: str
    visible: tuple[int, ...]
    served: int | None
    index: ModelIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A store, or one model of it, that could not be read."""

    job: str
    place: str
    reason: str


def list_all(given: Globals) -> None:
    """List the models of all jobs. What cannot be read hides no other model."""
    found = asyncio.run(_look(given))
    known = [each for each in found if isinstance(each, Published)]
    unread = [each for each in found if isinstance(each, Unread)]
    if given.json:
        render.emit_json({"models": known, "unread": unread})
        return
    rows = [
        (
            each.job,
            each.index.model,
            ", ".join(_numbered(version, each.visible) for version in each.index.present) or "-",
            ", ".join(f"{name}={version}" for name, version in sorted(each.index.labels.items())) or "-",
            each.served or "-",
        )
        for each in known
    ]
    empty = "this machine sees no model of any job; `serving:` in a job file says what to publish"
    render.table(("job", "model", "versions", "labels", "served"), rows, empty)
    for each in known:
        tell_held(each.job, each.index)
    for failed in unread:
        click.echo(neutralise(f"not listed: job {failed.job}: {failed.reason}"), err=True)


def state_of(version: ModelVersion, *, visible: bool) -> str:
    """Where a version is; `visible`: whether servers see it."""
    # It is on its way, or something else is in its place.
    return version.state.value if visible == version.is_published else "moving"


def tell_held(job: str, index: ModelIndex) -> None:
    """Say on standard error that new exports of a model are not published, if so."""
    if index.held:
        text = f"new exports are held; `supervisorctl models {job} publish` publishes them"
        click.echo(neutralise(text), err=True)


def _numbered(version: ModelVersion, visible: tuple[int, ...]) -> str:
    state = state_of(version, visible=version.version in visible)
    return str(version.version) if state == "published" else f"{version.version} {state}"


async def _look(given: Globals) -> list[Published | Unread]:
    looks = (_in_store(job, uri) for uri, job in (await stores(given)).items())
    found = [each for models in await asyncio.gather(*looks) for each in models]
    return sorted(found, key=lambda each: (each.job, each.place))


async def stores(given: Globals) -> dict[str, str]:
    """The stores of all jobs by their URIs, each with a job that uses it."""
    async with find_target(given).client() as client:
        found = {}
        for job in (await client.status()).jobs:
            with suppress(NotFound):  # it was deleted meanwhile
                found[(await client.checkpoints(job.name)).uri] = job.name
        return found


async def _in_store(job: str, uri: str) -> list[Published | Unread]:
    """The models in a store."""
    from recovery.models.index import RECORDS

    try:
        async with open_store(uri) as store:
            names = (await store.list(RECORDS)).directories
            return [await _model(store, job, f"{uri}/{MODELS}/{name}", name) for name in names]
    except TfSupervisorError as error:
        return [Unread(job=job, place=uri, reason=str(error))]


async def _model(store: CheckpointStore, job: str, place: str, name: str) -> Published | Unread:
    from recovery.models.store import ModelStore

    model = ModelStore(store, name)
    try:
        index, visible = await model.read(), tuple(sorted(await model.visible()))
    except TfSupervisorError as error:
        return Unread(job=job, place=place, reason=f"model {name}: {error}")
    served = max(visible, default=None)
    return Published(job=index.job or job, place=place, visible=visible, served=served, index=index)
