"""An operator who stops a job, brings in a checkpoint that was made elsewhere, and starts the job from it."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import google_crc32c

from chaos.sim.programs import files_of
from chaos.sim.promises import Promises
from chaos.sim.world import World
from recovery.checkpoints.manifest import MANIFEST_FILE, Manifest, ManifestFile, encode_manifest
from recovery.checkpoints.paths import staging_path, stored_path
from recovery.checkpoints.tf_files import STATE_FILE, render_state
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.checkpoint_views import ImportPlace
from supervisor.contract.errors import TfSupervisorError

STEPS = (1, 50, 10_000)
"""Of what is imported: early, in the middle, and beyond what any run comes to."""
POLL_S, STOPS_S = 0.2, 8.0
TORN = 0.25
"""Of the imports: a file has another byte than the manifest says."""


async def ended(world: World, promises: Promises, job: str) -> bool:
    """Whether a job that is being stopped comes to its end in time."""
    until_s = world.loop.time() + STOPS_S * world.pace
    while world.loop.time() < until_s:
        if promises.has_ended(job):
            return True
        await asyncio.sleep(POLL_S)
    return False


async def put_into_store(world: World, place: ImportPlace, rng: random.Random) -> str:
    """What `supervisorctl checkpoints JOB import` does by itself; returns the complete directory.

    Raises TfSupervisorError when the store does not take it.
    """
    temper = world.tempers[place.job]
    step = place.ref.step
    files = files_of(step, (place.ref.generation,), own=temper.plain)
    manifest = Manifest(
        job_uuid=place.job_uuid,
        job=place.job,
        ref=place.ref,
        parent=None,
        node="elsewhere",
        incarnation="import",
        prefix="" if temper.plain else f"model.ckpt-{step}",
        wall_ms=0,
        files=tuple(
            ManifestFile(name, len(data), f"{google_crc32c.value(data):08x}")
            for name, data in sorted(files.items())
        ),
        tensors=0 if temper.plain else 1,
    )
    store, import_id = world.open_store(place.uri), world.new_id()[:16]
    staging, path = staging_path(place.ref, import_id), stored_path(place.ref, import_id)
    if rng.random() < TORN:
        name = rng.choice(sorted(files))
        files[name] = bytes([files[name][0] ^ 1]) + files[name][1:]
        world.rotten.add(path)
    try:
        await _upload(store, staging, files, manifest)
        await store.rename(staging, path)
    except TfSupervisorError:
        with suppress(TfSupervisorError):
            await store.delete_tree(staging)
        raise
    return path


async def _upload(store: CheckpointStore, staging: str, files: dict[str, bytes], manifest: Manifest) -> None:
    for name, data in files.items():
        await store.write_bytes(f"{staging}/{name}", data)
    if manifest.prefix:
        await store.write_bytes(f"{staging}/{STATE_FILE}", render_state(manifest.prefix))
    await store.write_bytes(f"{staging}/{MANIFEST_FILE}", encode_manifest(manifest))
