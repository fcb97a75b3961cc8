"""Taking what a mounted generation has finished: it is moved, not copied, and linked where it was.

The saver's node looks into the live directory by the store's own client. What TensorFlow has finished is
moved into a directory under `.staging`, out of TensorFlow's reach; every mount still shows it, by the links.
There it is read back through the mount of this node and verified.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from recovery.checkpoints.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    Manifest,
    encode_manifest,
    parse_manifest,
)
from recovery.checkpoints.paths import STAGING, staging_path, stored_path
from recovery.checkpoints.tf_files import MAX_STATE_BYTES, STATE_FILE, local_prefix, parse_state
from recovery.checkpoints.watch_rule import IDLE, FileMark, Finished, Idle, Look, Unfinished, Unusable, Watch
from recovery.files import mapped_errors
from recovery.mount.backend import Entry, read_small
from recovery.mount.layout import Place
from recovery.mount.live import LiveDirectory
from recovery.outbox import SavingJob, TakenCheckpoint
from recovery.parallel import in_parallel
from recovery.verify import Verified, verify_files
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Clock
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.errors import BadCheckpoint, IncompatibleRecord, NotFound, StoreUnreachable

FILES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class MountedGeneration:
    """Whose checkpoints are taken: `directory` is where this node has it mounted."""

    live: LiveDirectory
    directory: Path
    generation: int
    base: CheckpointRef | None


class MountedWatcher:
    """Notices what the saver of one generation finishes, and takes it. Call `look` about each 500 ms.

    The base is known by its place, which is another generation's. No step is taken twice.
    """

    def __init__(
        self, site: MountedGeneration, job: SavingJob, clock: Clock, new_id: Callable[[], str]
    ) -> None:
        self._site = site
        self._live = site.live
        self._job = job
        self._clock = clock
        self._new_id = new_id
        # The mount itself is not asked: it may hang.
        here = site.directory
        self._spellings = (str(here), str(here.parent.resolve() / here.name))
        self._watch = Watch()
        self._state: tuple[Entry | None, bytes] = (None, b"")

    async def look(self, *, final: bool = False) -> TakenCheckpoint | Idle | Unfinished | Unusable:
        """Look once. `final`: the saver is confirmed dead; after that, Idle means that all is taken.

        An Unusable is returned once, then Idle. Raises StoreUnreachable, Refused: look again later.
        """
        now = await self._look()
        judgement = self._watch.judge(now, final=final)
        if not isinstance(judgement, Finished):
            return judgement
        try:
            taken = await self._take(judgement)
        except BadCheckpoint as error:
            self._watch.settle(judgement.step)
            return Unusable(now.prefix, str(error))
        if not isinstance(taken, Unfinished):
            self._watch.taken(judgement.step)
        return taken

    async def _look(self) -> Look:
        try:
            own, linked = await self._live.listing()
        except NotFound as error:
            raise StoreUnreachable(f"{self._live.root} is not in the store: {error}") from error
        entries = {entry.name: entry for entry in own}
        state = parse_state((await self._read_state(entries.get(STATE_FILE))).decode(errors="replace"))
        if state is None:
            return Look("")
        prefix = next(filter(None, (local_prefix(state.newest, each) for each in self._spellings)), None)
        if prefix is None:
            return Look("", elsewhere=state.newest)
        marks = []
        for name in sorted({*entries, *linked}):
            if name.startswith(f"{prefix}."):
                found = entries.get(name) or await self._followed(name)
                if found is not None:
                    marks.append(FileMark(name, found.size, found.mtime_ms * 1_000_000, 0))
        metas = (name for name in (*entries, *linked) if name.endswith(".meta"))
        writes_meta = any(not name.startswith(f"{prefix}.") for name in metas)
        return Look(prefix, tuple(marks), writes_meta=writes_meta)

    async def _followed(self, name: str) -> Entry | None:
        found = await self._live.follow(name)
        return found.entry if found is not None else None

    async def _read_state(self, entry: Entry | None) -> bytes:
        if entry is None:
            return b""
        if self._state[0] != entry:
            try:
                self._state = (entry, await self._live.read(STATE_FILE, MAX_STATE_BYTES))
            except NotFound:
                return b""
        return self._state[1]

    async def _take(self, finished: Finished) -> TakenCheckpoint | Idle | Unfinished:
        ref = CheckpointRef(self._site.generation, finished.step)
        names = finished.files.names
        place = await self._place_of(ref, names)
        if place is None:
            return IDLE
        known = await self._described(place, ref)
        if known is not None:
            return known
        if not await self._move(names, place):
            return Unfinished(finished.files.prefix)
        verified = await asyncio.to_thread(self._verify, finished)
        sizes = {mark.name: mark.size for mark in finished.marks}
        if any(sizes[file.name] != file.size for file in verified.files):
            raise BadCheckpoint("it was changed while it was taken")
        manifest = Manifest(
            job_uuid=self._job.job_uuid,
            job=self._job.job,
            ref=ref,
            parent=self._site.base,
            node=self._job.node,
            incarnation=self._job.incarnation,
            prefix=finished.files.prefix,
            wall_ms=self._clock.wall_ms(),
            files=verified.files,
            tensors=verified.tensors,
            tf_version=verified.tf_version or self._job.tensorflow(),
        )
        return TakenCheckpoint(self._shown(place), manifest, encode_manifest(manifest))

    async def _place_of(self, ref: CheckpointRef, names: tuple[str, ...]) -> Place | None:
        """Where an earlier try began to move it, else a new place; None for what another generation saved."""
        own = {entry.name for entry in (await self._live.listing())[0]}
        places = {place for name in names if name not in own for place in await self._live.places(name)}
        ours = sorted(place for place in places if place.ref == ref and place.staged)
        if places and not ours:
            return None
        if ours:
            return ours[-1]
        name = self._new_id()[:16]
        staged = staging_path(ref, name).removeprefix(f"{STAGING}/")
        return Place(stored_path(ref, name), staged)

    async def _described(self, place: Place, ref: CheckpointRef) -> TakenCheckpoint | None:
        """What was complete before this agent, or its commit, was interrupted."""
        try:
            raw = await read_small(
                self._live.backend, f"{place.stored}/{MANIFEST_FILE}", MAX_MANIFEST_BYTES + 1
            )
        except NotFound:
            return None
        try:
            manifest = parse_manifest(raw)
        except IncompatibleRecord as error:
            raise BadCheckpoint(str(error)) from error
        if (manifest.job_uuid, manifest.ref) != (self._job.job_uuid, ref):
            raise BadCheckpoint(f"{place.stored} holds {manifest.ref} of job {manifest.job_uuid}")
        return TakenCheckpoint(self._shown(place), manifest, raw)

    def _shown(self, place: Place) -> Path:
        """Says where it is; it is no directory of this node, at which something could be removed."""
        return self._site.directory.parent / ".taken" / place.name

    async def _move(self, names: tuple[str, ...], place: Place) -> bool:
        """Out of TensorFlow's reach; False when it has deleted one of them meanwhile."""
        backend, live = self._live.backend, self._live
        with effect("mounted_take.make", StoreUnreachable):
            await backend.mkdirs(place.staging)

        async def move(name: str) -> None:
            # The link first: whoever looks meanwhile finds the file or the link.
            await live.link(name, place)
            try:
                with effect("mounted_take.rename", StoreUnreachable):
                    await backend.rename(live.path(name), f"{place.staging}/{name}", overwrite=True)
            except NotFound:
                if await backend.info(f"{place.staging}/{name}") is None:
                    await live.unlink(name)
                    raise

        try:
            await in_parallel(move, names, FILES_AT_ONCE)
        except NotFound:
            return False
        return True

    def _verify(self, finished: Finished) -> Verified:
        with mapped_errors(f"read back {finished.files.prefix}"):
            verify = partial(verify_files, self._site.directory, finished.files.prefix)
            return verify(finished.files.names)
