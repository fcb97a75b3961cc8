"""An operator who stops a job, brings in a checkpoint that was made elsewhere, and starts the job from it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from chaos.sim.cluster.saves import files_of
from chaos.sim.cluster.world import World
from chaos.sim.promises.checkers import Promises
from recovery.commit.exchange import bring, describe, find_candidate
from recovery.formats.tf_files import render_state
from supervisor.contract.boundaries import unwatched
from supervisor.contract.views.checkpoints import ImportPlace

STEPS = (1, 50, 10_000)
"""The steps of imports: early, in the middle, and beyond the last step of any run."""
POLL_S, STOPS_S = 0.2, 8.0
TORN = 0.25
"""The share of imports in which a file has another byte than its manifest says."""


async def ended(world: World, promises: Promises, job: str) -> bool:
    """Whether a job that is being stopped comes to its end in time."""
    until_s = world.loop.time() + STOPS_S * world.pace
    while world.loop.time() < until_s:
        if promises.has_ended(job):
            return True
        await asyncio.sleep(POLL_S)
    return False


async def put_into_store(world: World, place: ImportPlace, rng: random.Random) -> str:
    """The client's part of `supervisorctl checkpoints JOB import`; returns the complete directory.

    Raises TfSupervisorError if the store refuses it.
    """
    temper, step = world.tempers[place.job], place.ref.step
    plain = temper.plain
    made = files_of(step, (place.ref.generation,), own=plain, named=temper.named)
    import_id = world.new_id()[:16]
    directory = world.elsewhere / import_id
    directory.mkdir(parents=True)
    for name, data in made.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(data)
    if not plain:
        prefix = Path(next(iter(made))).name.partition(".data-")[0]
        state = (directory / next(iter(made))).with_name("checkpoint")
        state.write_bytes(render_state(prefix))
    found = find_candidate(directory, "", tuple(made) if plain else (), step)
    manifest = describe(found, place, "elsewhere", 0, unwatched)
    path = await bring(world.open_store(place.uri), found, manifest, unwatched, lambda: import_id)
    if rng.random() < TORN:
        world.rotten.add(path)
        world.damage(f"{path}/{rng.choice(sorted(made))}")
    return path
