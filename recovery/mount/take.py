"""Taking finished saves of a mounted generation: they are moved, not copied, and linked in their old place.

The saver's node looks into the live directory by the store's own client. A finished save is moved into a
directory under `.staging`, out of the program's reach; every mount still shows it, by the links. There it is
read back through the mount of this node and verified. Saves of other families are copied from the checkpoint
before, as no file is moved out of a directory that a record may name.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from recovery.commit.bundle_outbox import ENTRIES_A_LOOK
from recovery.commit.outbox import SavingJob, Seen, TakenCheckpoint, manifest_of
from recovery.commit.sight import names_of
from recovery.commit.verify import Verified, verify_files
from recovery.families.families import Family, Save, Sight
from recovery.families.notes import Notes
from recovery.families.saves import FamilySaves, Ready
from recovery.families.watch_rule import IDLE, Idle, Unfinished
from recovery.formats.bundle import MAX_INDEX_BYTES, read_index
from recovery.formats.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    Manifest,
    ManifestFile,
    encode_manifest,
    parse_manifest,
)
from recovery.formats.paths import stored_ref
from recovery.formats.steps import step_of_save
from recovery.formats.tf_files import complete_set, number_of
from recovery.io.deadline import Motion
from recovery.io.files import mapped_errors
from recovery.mount.backends.backend import read_small
from recovery.mount.layout import PLACES, Place, parse_place, staging_place
from recovery.mount.live import LiveDirectory
from recovery.mount.sight import LiveEyes
from recovery.mount.staging import Staging
from supervisor.contract.boundaries import Clock
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.errors import BadCheckpoint, IncompatibleRecord, NotFound, StoreUnreachable

DIRECTORIES_A_LOOK = 10
"""Directories for which one look is made. For each further such number, or `ENTRIES_A_LOOK` files, one look
is left out."""


@dataclass(frozen=True, slots=True)
class MountedGeneration:
    """The generation whose checkpoints are taken. `directory` is this node's mount point."""

    live: LiveDirectory
    directory: Path
    generation: int
    base: CheckpointRef | None


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A family's newest save that was taken.

    `place` has its files; the other fields are those of `families.saves.Part`.
    """

    save: Save
    files: tuple[ManifestFile, ...]
    place: Place
    tensors: int = 0
    tf_version: str = ""
    step: int | None = None
    count: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The paths of its files."""
        return tuple(file.name for file in self.files)


class MountedWatcher:
    """Takes each save of one generation's program once it is finished. Call `look` about each 300 ms.

    Two kinds of saves are not taken again: the base, and saves that an earlier life of the agent has taken.
    They are recognised by their links. Steps are assigned as by `CheckpointWatcher`.
    """

    def __init__(
        self,
        site: MountedGeneration,
        job: SavingJob,
        clock: Clock,
        new_id: Callable[[], str],
        last_step: int = -1,
    ) -> None:
        self._site = site
        self._live = site.live
        self._job = job
        self._clock = clock
        self._new_id = new_id
        notes = Notes("data files are missing: not all tasks that write a part of it have done so")
        base_step = site.base.step if site.base is not None else 0
        self._families: FamilySaves[StoredPart] = FamilySaves(base_step, last_step, notes)
        self._opened: tuple[LiveEyes, Staging] | None = None
        self._given: set[str] = set()
        self._found: dict[str, TakenCheckpoint] = {}
        self._recalled: TakenCheckpoint | None = None
        self._left_out = 0
        self.motion = Motion(clock)

    async def look(self, step: int = -1, *, final: bool = False) -> Seen:
        """Look once.

        Args:
            step: the newest step that the program has reported, -1 before any; used for saves that have none.
            final: the saver is confirmed dead; then Idle means that every save is taken.

        An Unusable is returned once, then Idle. Raises StoreUnreachable, Refused: look again later.
        """
        if self._left_out and not final:
            self._left_out -= 1
            return IDLE
        eyes, staging = self._opened = self._opened or await self._open()
        await staging.link_again()
        sight = await eyes.look()
        self._left_out = sight.entries // ENTRIES_A_LOOK + eyes.directories // DIRECTORIES_A_LOOK
        found = await self._judge(sight, step, final=final)
        if isinstance(found, TakenCheckpoint):
            self._recalled = None
        elif isinstance(found, Idle) and self._recalled is not None:
            # It may not have been committed yet.
            found, self._recalled = self._recalled, None
        return self._families.notes.next() or found if isinstance(found, Idle) else found

    async def _open(self) -> tuple[LiveEyes, Staging]:
        here = self._site.directory
        roots = names_of(here, self._job.adopt)
        eyes = LiveEyes(self._live, roots, deep=await asyncio.to_thread(self._shows_places))
        return eyes, Staging(self._live, eyes, self.motion)

    def _shows_places(self) -> bool:
        """Whether the process that serves the mount of this node is of a release that knows `PLACES`."""
        try:
            with mapped_errors(f"look at {self._site.directory}"):
                try:
                    (self._site.directory / PLACES).stat()
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    return False
        except NotFound as error:
            raise StoreUnreachable(f"{self._site.directory} is not mounted") from error
        return True

    @property
    def _eyes(self) -> LiveEyes:
        assert self._opened is not None, "nothing has been looked at"
        return self._opened[0]

    @property
    def _staging(self) -> Staging:
        assert self._opened is not None, "nothing has been looked at"
        return self._opened[1]

    async def _judge(self, sight: Sight, step: int, *, final: bool) -> Seen:
        families = self._families
        saves = families.look_over(sight, final=final)
        for family, seen in saves.items():
            if not families.met(family):
                families.meet(family, await self._find_known(seen.newest) if seen.newest else None)
        judged = families.judge(sight, saves, final=final)
        return await self._take(judged, step, final=final) if isinstance(judged, Ready) else judged

    async def _find_known(self, save: Save) -> StoredPart | None:
        """The part of this save in a whole checkpoint: the base, or one that an earlier life has taken."""
        links = [self._eyes.links.get(name) for name in save.files.names]
        places = {link.place if link is not None else None for link in links}
        place = min(filter(None, places), default=None)
        if place is None or None in places or len({each.unmoved for each in filter(None, places)}) > 1:
            return None
        taken = await self._described(place)
        if taken is None:
            return None
        manifest = taken.manifest
        own = complete_set(save.prefix, {file.name for file in manifest.files})
        if own is None or save.prefix not in manifest.bundles:
            return None
        if manifest.ref.generation == self._site.generation and manifest.job_uuid == self._job.job_uuid:
            self._families.last_step = max(self._families.last_step, manifest.ref.step)
            if self._recalled is None or self._recalled.manifest.ref < manifest.ref:
                self._recalled = taken
        raw = await self._staging.read(place, own.index, MAX_INDEX_BYTES)
        return StoredPart(
            save,
            tuple(file for file in manifest.files if file.name in own.names),
            place_of(taken),
            len(read_index(raw).tensors),
            manifest.tf_version,
            count=int(save.prefix == manifest.prefix),
        )

    async def _described(self, place: Place) -> TakenCheckpoint | None:
        """The checkpoint in a complete place; None for a place that was only begun."""
        known = self._found.get(place.unmoved)
        if known is not None:
            return known
        staged = place.staged and await self._read_manifest(place.staging)
        stored = staged or await self._read_manifest(place.stored)
        if not stored:
            return None
        raw, manifest = stored
        whole = place.of(manifest.ref) if staged else place
        self._found[place.unmoved] = taken = TakenCheckpoint(self._shown(whole), manifest, raw)
        return taken

    async def _read_manifest(self, directory: str) -> tuple[bytes, Manifest] | None:
        try:
            raw = await read_small(self._live.backend, f"{directory}/{MANIFEST_FILE}", MAX_MANIFEST_BYTES + 1)
            return raw, parse_manifest(raw)
        except (NotFound, BadCheckpoint, IncompatibleRecord):
            # It was being written when the agent died, or a newer release has written it.
            return None

    async def _take(self, ready: Ready, step: int, *, final: bool) -> Seen:
        taken_anew: dict[Family, StoredPart] = {}
        changed = ""
        for family, save in ready.fresh.items():
            try:
                part = await self._take_new(family, save)
            except BadCheckpoint as error:
                self._families.refuse(family, save, str(error), final=final)
                continue
            if part is None:
                changed = save.prefix
            else:
                taken_anew[family] = part
        if not taken_anew:
            return Unfinished(changed) if changed else IDLE
        return await self._put_together(ready, taken_anew, step)

    async def _take_new(self, family: Family, save: Save) -> StoredPart | None:
        """Take a save; None if the program has changed it meanwhile. Raises BadCheckpoint."""
        place = await self._begun(save.files.names)
        if place is None:
            told = step_of_save(number_of(save.prefix), {})
            step = max(told if told is not None else -1, self._families.last_step + 1)
            place = staging_place(CheckpointRef(self._site.generation, step), self._new_id()[:16])
        if not await self._staging.bring(save, place):
            return None
        found = await asyncio.to_thread(self._verify, save, place)
        if {file.name: file.size for file in found.files} != {mark.name: mark.size for mark in save.marks}:
            return None
        told = step_of_save(number_of(save.prefix), found.counters)
        count = self._families.count_of(family)
        return StoredPart(save, found.files, place, found.tensors, found.tf_version, told, count)

    async def _begun(self, names: Collection[str]) -> Place | None:
        """The place to which an interrupted try began to move these files; None without one."""
        links = self._eyes.links
        for place in sorted({links[name].place for name in names if name in links}):
            ref = stored_ref(place.staged)
            ours = ref is not None and ref.generation == self._site.generation
            if ours and place.staged not in self._given and await self._described(place) is None:
                return place
        return None

    def _verify(self, save: Save, place: Place) -> Verified:
        with mapped_errors(f"read back {save.prefix}"):
            below = PLACES + "/" + place.name if self._shows_places() else ""
            return verify_files(
                self._site.directory / below, save.prefix, save.files.names, moved=self.motion
            )

    async def _put_together(self, ready: Ready, fresh: Mapping[Family, StoredPart], step: int) -> Seen:
        """Put together one checkpoint of new saves and of saves that were taken before."""
        families, staging = self._families, self._staging
        begun = next(iter(fresh.values())).place
        parts = dict(fresh)
        for family in ready.chosen:
            old = families.parts.get(family)
            if family in parts or old is None:
                continue
            if await staging.carry(old.files, old.place, begun):
                parts[family] = old
            else:
                families.notes.note(
                    old.save.prefix, "its last finished save is gone, and no whole one is there since"
                )
        content = families.describe(ready, parts, step)
        base, generation = self._site.base, self._site.generation
        manifest = manifest_of(self._job, generation, base, content, self._clock.wall_ms())
        try:
            raw = encode_manifest(manifest)
        except BadCheckpoint as error:
            families.refuse_all(ready, str(error))
            return IDLE
        place = begun.of(manifest.ref)
        await staging.write(content.states, place)
        for family, part in parts.items():
            await staging.settle(part.names, part.place, place, copied=family not in fresh)
        self._given.add(place.staged)
        families.took(ready, parts, manifest.ref.step, lambda part: replace(part, place=place))
        return TakenCheckpoint(self._shown(place), manifest, raw)

    def _shown(self, place: Place) -> Path:
        """A path that names the place. It is no directory of this node, so no file is removed by it."""
        return self._site.directory.parent / ".taken" / place.name


def place_of(taken: TakenCheckpoint) -> Place:
    """The place of the files of a checkpoint that a `MountedWatcher` took."""
    place = parse_place(taken.directory.name)
    assert place is not None, f"{taken.directory} is no place"
    return place
