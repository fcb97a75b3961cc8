"""Taking finished TensorFlow checkpoints, of whatever name, in whatever directory below `$CHECKPOINT_DIR`.

A checkpoint of ours holds the newest finished save of each family that is there, so that a program finds at
its restart all that it had saved. Each new save of any family makes one: what a family has not saved anew is
linked from where it is, and not read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from recovery import files
from recovery.checkpoints.bundle import MAX_INDEX_BYTES, read_index
from recovery.checkpoints.families import Family, Save, Sight
from recovery.checkpoints.family_saves import FamilySaves, Ready, base_step_of
from recovery.checkpoints.manifest import Manifest, ManifestFile, crc32c_of_bytes
from recovery.checkpoints.steps import step_of_save
from recovery.checkpoints.tf_files import complete_set, number_of
from recovery.checkpoints.watch_rule import IDLE, FileMark, Idle, Unfinished
from recovery.deadline import Motion
from recovery.files import mapped_errors
from recovery.outbox import (
    Looks,
    SavingJob,
    Seen,
    TakenCheckpoint,
    generation_directory,
    manifest_of,
    put_in_outbox,
    taken_of,
)
from recovery.sight import Eyes, mark_below, write_state
from recovery.verify import verify_files
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Clock
from supervisor.contract.errors import BadCheckpoint

ENTRIES_A_LOOK = 100
"""A look that found more is followed by looks that are left out, so that a large directory costs little."""


@dataclass(frozen=True, slots=True)
class Part:
    """A family's newest save that was taken.

    Attributes:
        files: as they were verified.
        home: a directory that holds them under the same names, if it is still there.
        step: what its name and its tensors tell.
        count: how many saves of this family were taken.
    """

    save: Save
    files: tuple[ManifestFile, ...]
    home: Path
    tensors: int = 0
    tf_version: str = ""
    step: int | None = None
    count: int = 0


class CheckpointWatcher:
    """Notices what the program of one generation finishes, and takes it. Call `look` about each 100 ms.

    What is there at the start and is the base, or was taken by an earlier life of the agent, is not taken
    again: it is known by its index files, which hold the checksums of all tensors. `motion` is told while one
    is taken. A save gets the step that it tells (`checkpoints.steps`), but never one up to `last_step`, the
    highest that was committed in this generation before: a later save has a higher step.
    """

    def __init__(
        self,
        parent: Path,
        job: SavingJob,
        generation: int,
        base: Manifest | None,
        clock: Clock,
        executor: Executor | None = None,
        last_step: int = -1,
    ) -> None:
        self._parent = parent
        self._directory = generation_directory(parent, generation)
        self._job = job
        self._generation = generation
        self._base = base
        self._clock = clock
        self._looks = Looks(executor)
        self._eyes = Eyes(self._directory)
        self._families: FamilySaves[Part] = FamilySaves(base_step_of(base), last_step)
        self._known: list[tuple[Manifest, Path]] | None = None
        self._recalled: TakenCheckpoint | None = None
        self._left_out = 0
        self.motion = Motion(clock)

    async def look(self, step: int = -1, *, final: bool = False) -> Seen:
        """Look once.

        Args:
            step: the newest that the program has reported, -1 before any; for saves that tell none.
            final: the saver is confirmed dead; after that, Idle means that all is taken.

        An Unusable is returned once, then Idle. Raises Refused (no space, no right) and StoreUnreachable (the
        local disk failed); look again later. Do not run two looks of one watcher at a time.
        """
        return await self._looks.run(lambda: self._look(step, final=final))

    def _look(self, step: int, *, final: bool) -> Seen:
        if self._left_out and not final:
            self._left_out -= 1
            return IDLE
        with mapped_errors(f"take a checkpoint from {self._directory}"):
            self._recall()
            sight = self._eyes.look()
            self._left_out = sight.entries // ENTRIES_A_LOOK
            found = self._judge(sight, step, final=final)
        if isinstance(found, TakenCheckpoint):
            self._recalled = None
        elif isinstance(found, Idle) and self._recalled is not None:
            # It may not have been committed yet.
            found, self._recalled = self._recalled, None
        return self._families.notes.next() or found if isinstance(found, Idle) else found

    def _judge(self, sight: Sight, step: int, *, final: bool) -> Seen:
        saves = self._families.look_over(sight, final=final)
        for family, seen in saves.items():
            if not self._families.met(family):
                known = self._find_known(seen.newest) if seen.newest is not None else None
                self._families.meet(family, known)
        judged = self._families.judge(sight, saves, final=final)
        return self._take(judged, step, final=final) if isinstance(judged, Ready) else judged

    def _recall(self) -> None:
        """Once: what may be there already, of the base and of what earlier lives of the agent have taken."""
        if self._known is not None:
            return
        self._known = []
        for taken in taken_of(self._parent, self._generation):
            self._recalled = self._recalled or taken
            self._families.last_step = max(self._families.last_step, taken.manifest.ref.step)
            self._known.append((taken.manifest, taken.directory))
        if self._base is not None:
            self._known.append((self._base, self._directory))

    def _find_known(self, save: Save) -> Part | None:
        for manifest, home in self._known or ():
            by_name = {file.name: file for file in manifest.files}
            index, own = by_name.get(save.files.index), complete_set(save.prefix, by_name)
            if index is None or own is None or save.prefix not in manifest.bundles:
                continue
            with suppress(FileNotFoundError), files.beneath(self._directory, index.name) as (fd, name):
                raw = files.read_small(name, MAX_INDEX_BYTES, fd)
                if crc32c_of_bytes(raw) != index.crc32c:
                    continue
                leads = save.prefix == manifest.prefix
                return Part(
                    save,
                    tuple(by_name[each] for each in own.names),
                    home,
                    len(read_index(raw).tensors),
                    manifest.tf_version,
                    count=int(leads),
                )
        return None

    def _take(self, ready: Ready, step: int, *, final: bool) -> Seen:
        families = self._families
        parts: dict[Family, Part] = {}
        changed = ""

        def fill(into: Path) -> Manifest | None:
            nonlocal changed
            for family in ready.chosen:
                save = ready.fresh.get(family)
                part = None
                if save is not None:
                    try:
                        part = self._take_new(family, save, into)
                        changed = changed if part is not None else save.prefix
                    except BadCheckpoint as error:
                        families.refuse(family, save, str(error), final=final)
                part = part or self._carry(family, into)
                if part is not None:
                    parts[family] = part
            if all(parts[family] is families.parts.get(family) for family in ready.fresh if family in parts):
                return None
            return self._describe(ready, parts, step, into)

        try:
            taken = put_in_outbox(self._parent, fill)
        except BadCheckpoint as error:
            families.refuse_all(ready, str(error))
            return IDLE
        if taken is None:
            return Unfinished(changed) if changed else IDLE
        families.took(ready, parts, taken.manifest.ref.step, lambda part: replace(part, home=taken.directory))
        return taken

    def _take_new(self, family: Family, save: Save, into: Path) -> Part | None:
        """None when the program has changed it meanwhile. Raises BadCheckpoint; both leave nothing."""
        try:
            if take_files(self._directory, into, save):
                found = verify_files(into, save.prefix, save.files.names, moved=self.motion)
                if {file.name: file.size for file in found.files} == {
                    mark.name: mark.size for mark in save.marks
                }:
                    told = step_of_save(number_of(save.prefix), found.counters)
                    count = self._families.count_of(family)
                    return Part(save, found.files, into, found.tensors, found.tf_version, told, count)
        except BadCheckpoint:
            _forget(into, save.marks)
            raise
        _forget(into, save.marks)
        return None

    def _carry(self, family: Family, into: Path) -> Part | None:
        """What was taken of a family before; None without any, or when nothing has it any more."""
        part = self._families.parts.get(family)
        if part is None:
            return None
        try:
            if part.home != self._directory:
                for file in part.files:
                    with effect("outbox.carry_file"):
                        _make_parent(into / file.name)
                        files.link_or_copy(part.home / file.name, into / file.name, moved=self.motion)
                if not self._written_over(part, into):
                    return part
                _forget(into, part.files)
                self._families.notes.note(
                    part.save.prefix,
                    "the program has written over its files in place, and no whole save is there since: save "
                    "under another name, or write beside it and rename",
                )
                return None
        except FileNotFoundError:
            _forget(into, part.files)
        if take_files(self._directory, into, part.save):
            return part
        _forget(into, part.files)
        self._families.notes.note(
            part.save.prefix, "its last finished save is gone, and no whole one is there since"
        )
        return None

    def _written_over(self, part: Part, into: Path) -> bool:
        """Whether a file of a save that was taken holds something else now.

        Only the program's own file can, of which a shard in the outbox is another name.
        """
        before = {mark.name: mark for mark in part.save.marks}
        for file in part.files:
            mark, now = before.get(file.name), mark_below(into, file.name)
            if mark is None or now.inode != mark.inode or now == mark:
                continue
            size, crc = files.crc32c_of_file(into / file.name, moved=self.motion)
            if (size, f"{crc:08x}") != (file.size, file.crc32c):
                return True
        return False

    def _describe(self, ready: Ready, parts: Mapping[Family, Part], step: int, into: Path) -> Manifest:
        content = self._families.describe(ready, parts, step)
        for name, state in content.states.items():
            write_state(into, name, state)
        base = self._base.ref if self._base is not None else None
        return manifest_of(self._job, self._generation, base, content, self._clock.wall_ms())


def take_files(source: Path, target: Path, save: Save) -> bool:
    """Shards by hard link, the rest by copy; False when the program touched one of them meanwhile."""
    try:
        for name in save.files.names:
            with files.beneath(source, name) as (fd, last):
                _make_parent(target / name)
                if save.files.in_place(name):
                    with effect("outbox.copy_file"):
                        files.copy_file(Path(last), target / name, dir_fd=fd)
                else:
                    with effect("outbox.link_file"):
                        files.link_or_copy(Path(last), target / name, dir_fd=fd)
        return all(mark_below(source, mark.name) == mark for mark in save.marks)
    except FileNotFoundError:
        return False


def _forget(into: Path, known: Sequence[ManifestFile] | Sequence[FileMark]) -> None:
    for file in known:
        with effect("outbox.forget_file"):
            (into / file.name).unlink(missing_ok=True)


def _make_parent(path: Path) -> None:
    with effect("outbox.make_parent"):
        path.parent.mkdir(parents=True, exist_ok=True)
