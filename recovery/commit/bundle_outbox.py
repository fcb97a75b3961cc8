"""Taking finished TensorFlow checkpoints, of whatever name, in whatever directory below `$CHECKPOINT_DIR`.

A checkpoint holds the newest finished save of each family, so that a program finds all its saves at a
restart. Each new save of any family makes a checkpoint. Saves of the other families are linked from the
checkpoint before, and not read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from recovery.commit.outbox import (
    Looks,
    SavingJob,
    Seen,
    TakenCheckpoint,
    generation_directory,
    manifest_of,
    outbox_directory,
    put_in_outbox,
    read_taken,
    taken_of,
)
from recovery.commit.parts import (
    Part,
    find_part,
    forget_files,
    last_part,
    link_part,
    marks_below,
    retake_part,
    take_files,
)
from recovery.commit.sight import Eyes, write_state
from recovery.commit.verify import verify_files
from recovery.families.families import Family, Save, Sight, family_of
from recovery.families.saves import FamilySaves, Ready, base_step_of
from recovery.families.watch_rule import IDLE, FileMark, Idle, Unfinished
from recovery.formats.manifest import Manifest
from recovery.formats.steps import step_of_save
from recovery.formats.tf_files import number_of
from recovery.io.deadline import Motion
from recovery.io.files import mapped_errors
from supervisor.contract.boundaries import Clock
from supervisor.contract.errors import BadCheckpoint

ENTRIES_A_LOOK = 100
"""Entries of a directory for which one look is made. After a look at more entries some looks are left out, so
that a large directory costs little."""


class CheckpointWatcher:
    """Takes each save of one generation's program once it is finished. Call `look` about each 100 ms.

    Two kinds of saves are not taken again: the base, and saves that an earlier life of the agent has taken.
    They are recognised by their index files, which hold the checksums of all tensors. `motion` is called
    while a save is taken. A save gets its own step (`formats.steps`), but always one above `last_step`, the
    highest that was committed in this generation before.
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
        self._eyes = Eyes(self._directory, job.adopt)
        self._families: FamilySaves[Part] = FamilySaves(base_step_of(base), last_step)
        self._known: list[tuple[Manifest, Path]] | None = None
        self._recalled: TakenCheckpoint | None = None
        self._left_out = 0
        self.motion = Motion(clock)

    async def look(self, step: int = -1, *, final: bool = False) -> Seen:
        """Look once.

        Args:
            step: the newest step that the program has reported, -1 before any; used for saves that have none.
            final: the saver is confirmed dead; then Idle means that every save is taken.

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
                self._meet(family, seen.newest)
        judged = self._families.judge(sight, saves, final=final)
        return self._take(judged, step, final=final) if isinstance(judged, Ready) else judged

    def _recall(self) -> None:
        """Once: look up the saves of the base, and those that earlier lives of the agent have taken."""
        if self._known is not None:
            return
        self._known, committed = [], self._families.last_step
        for taken in taken_of(self._parent, self._generation):
            self._recalled = self._recalled or taken
            self._families.last_step = max(self._families.last_step, taken.manifest.ref.step)
            self._known.append((taken.manifest, taken.directory))
        if self._recalled is not None and self._recalled.manifest.ref.step < committed:
            self._recalled = None  # another node has committed newer ones since
        if self._base is not None:
            own = read_taken(outbox_directory(self._parent, self._base.ref))
            at_home = own is not None and own.manifest == self._base
            self._known.append((self._base, own.directory if own and at_home else self._directory))

    def _meet(self, family: Family, newest: Save | None) -> None:
        known = self._known or ()
        part = find_part(known, newest, self._directory) if newest is not None else None
        if part is not None:
            self._families.meet(family, part)
        else:
            # It is being written, or torn, or new: what it was before stays in each checkpoint till then.
            self._families.meet(family, last_part(known, family), there=False)

    def _take(self, ready: Ready, step: int, *, final: bool) -> Seen:
        families = self._families
        parts: dict[Family, Part] = {}
        sound: dict[Family, tuple[FileMark, ...]] = {}
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
                before = families.parts.get(family)
                if part is not None:
                    parts[family], sound[family] = part, part.sound
                elif before is not None and (marks := self._carry(before, into)):
                    parts[family], sound[family] = before, marks
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
        kept = {
            family: replace(part, home=taken.directory, sound=sound[family]) for family, part in parts.items()
        }
        families.took(ready, parts, taken.manifest.ref.step, lambda part: kept[family_of(part.save.prefix)])
        return taken

    def _take_new(self, family: Family, save: Save, into: Path) -> Part | None:
        """Take a save; None if the program has changed it meanwhile.

        Raises BadCheckpoint. Neither leaves files behind.
        """
        try:
            if take_files(self._directory, into, save):
                sound = marks_below(into, save.files.names)
                found = verify_files(into, save.prefix, save.files.names, moved=self.motion)
                if {file.name: file.size for file in found.files} == {
                    mark.name: mark.size for mark in save.marks
                }:
                    told = step_of_save(number_of(save.prefix), found.counters)
                    count = self._families.count_of(family)
                    return Part(save, found.files, into, sound, found.tensors, found.tf_version, told, count)
        except BadCheckpoint:
            forget_files(into, save.files.names)
            raise
        forget_files(into, save.files.names)
        return None

    def _carry(self, part: Part, into: Path) -> tuple[FileMark, ...]:
        """Bring a part that was taken before into `into`.

        Returns the marks of its files; none if no copy is left.
        """
        found: tuple[FileMark, ...] = ()
        if part.home != self._directory:
            with suppress(FileNotFoundError):
                found = link_part(part, into, self.motion)
        if not found:
            forget_files(into, part.save.files.names)
            found = retake_part(part, self._directory, into, self.motion)
        if not found:
            forget_files(into, part.save.files.names)
            self._families.notes.note(
                part.save.prefix,
                "its last finished save is gone or was written over in place, and no whole one is there "
                "since: save under another name, or write beside it and rename",
            )
        return found

    def _describe(self, ready: Ready, parts: Mapping[Family, Part], step: int, into: Path) -> Manifest:
        content = self._families.describe(ready, parts, step)
        for name, state in content.states.items():
            write_state(into, name, state)
        base = self._base.ref if self._base is not None else None
        return manifest_of(self._job, self._generation, base, content, self._clock.wall_ms())
