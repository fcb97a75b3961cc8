"""The families of one generation: their new saves, and the content of a checkpoint of all. Pure.

Both modes use it. The staged and the mounted mode look at files, keep them and verify them differently.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from recovery.families.families import (
    MAX_FAMILIES,
    Family,
    FirstSeen,
    Save,
    Saves,
    Sight,
    StateFile,
    family_of,
    saves_in,
)
from recovery.families.notes import Notes
from recovery.families.watch import FamilyWatch
from recovery.families.watch_rule import IDLE, META_PATIENCE_LOOKS, Idle, Unfinished
from recovery.formats.manifest import Manifest, ManifestFile, crc32c_of_bytes
from recovery.formats.tf_files import MAX_STEP, STATE_FILE, render_state


class Part(Protocol):
    """A family's newest save that was taken. Subclasses add the place of its files."""

    @property
    def save(self) -> Save:
        """The save, with the marks of the program's files."""

    @property
    def files(self) -> tuple[ManifestFile, ...]:
        """Its files as they were verified."""

    @property
    def tensors(self) -> int:
        """The number of tensors in its files."""

    @property
    def tf_version(self) -> str:
        """The version of the TensorFlow that saved it; empty if unknown."""

    @property
    def step(self) -> int | None:
        """The step in its name and its tensors; None without one."""

    @property
    def count(self) -> int:
        """The number of saves of this family that were taken."""


P = TypeVar("P", bound=Part)


@dataclass(frozen=True, slots=True)
class Ready:
    """The families and saves to take now.

    Attributes:
        sight: the look that showed them.
        chosen: the families of one checkpoint.
        fresh: those of them that have a new finished save.
    """

    sight: Sight
    chosen: tuple[Family, ...]
    fresh: Mapping[Family, Save]

    def state_of(self, family: Family) -> StateFile | None:
        """The `checkpoint` file of this family's directory."""
        return self.sight.states.get(family.directory)


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a checkpoint. `states`: path -> content of the `checkpoint` files among its `files`."""

    step: int
    prefix: str
    files: tuple[ManifestFile, ...]
    tensors: int
    tf_version: str
    version: int
    states: Mapping[str, bytes] = field(default_factory=dict)


class FamilySaves(Generic[P]):
    """The families of one generation, look by look.

    Attributes:
        notes: the notes for the user.
        parts: family -> its part, for each family that is there.
        last_step: the highest step of this generation that is used; a later save gets a higher one.
    """

    def __init__(self, base_step: int, last_step: int, notes: Notes | None = None) -> None:
        self.notes = notes or Notes()
        self.parts: dict[Family, P] = {}
        self.last_step = last_step
        self._base_step = base_step
        self._watches: dict[Family, FamilyWatch] = {}
        self._first_seen = FirstSeen()
        self._held_looks = 0

    def look_over(self, sight: Sight, *, final: bool) -> dict[Family, Saves]:
        """The saves of each family. Unusable ones are noted; a family that is gone is forgotten."""
        self._first_seen.see(sight.marks)
        saves = saves_in(sight, self._first_seen)
        for family in self.parts.keys() - saves.keys() if sight.whole else ():
            del self.parts[family]
        self.notes.look_over(sight, saves, self._watches, final=final)
        return saves

    def meet(self, family: Family, known: P | None, *, there: bool = True) -> None:
        """Begin to watch a family. `known`: its part that was taken before, or that the base holds.

        If that is `there` as its newest save, it is not taken again. Otherwise it stands for the family until
        a new save is taken.
        """
        watch = self._watches[family] = FamilyWatch()
        if known is not None:
            self.parts[family] = known
            if there:
                watch.take(known.save)

    def met(self, family: Family) -> bool:
        """Whether this family is watched."""
        return family in self._watches

    def judge(self, sight: Sight, saves: Mapping[Family, Saves], *, final: bool) -> Ready | Idle | Unfinished:
        """The decision after this look. All families in `saves` have been met."""
        chosen = self.chosen(saves)
        fresh: dict[Family, Save] = {}
        unfinished = ""
        hurried = final
        for family in chosen:
            seen, watch, state = saves[family], self._watches[family], sight.states.get(family.directory)
            judged = watch.judge(seen.newest, state, final=final)
            if isinstance(judged, Save):
                fresh[family] = judged
                hurried = hurried or watch.hurries(judged, state)
            elif isinstance(judged, Unfinished):
                unfinished = judged.prefix
        self._held_looks = self._held_looks + 1 if fresh else 0
        if not fresh or (unfinished and not hurried and self._held_looks < META_PATIENCE_LOOKS):
            # Where both are true, the program saves one after the other what belongs together.
            return Unfinished(unfinished) if unfinished else IDLE
        return Ready(sight, tuple(chosen), fresh)

    def chosen(self, saves: Mapping[Family, Saves]) -> list[Family]:
        """The families that one checkpoint can hold."""

        def age(family: Family) -> tuple[int, int]:
            newest = saves[family].newest
            return newest.age if newest is not None else (-1, 0)

        there = [family for family in saves if saves[family].newest is not None or family in self.parts]
        by_age = sorted(there, key=age, reverse=True)
        for family in by_age[MAX_FAMILIES:]:
            self.notes.note(
                str(family),
                f"there are more than {MAX_FAMILIES} families of saves below $CHECKPOINT_DIR, and it is not "
                "among those saved last: save under fewer names, or remove what is not needed",
            )
        return by_age[:MAX_FAMILIES]

    def count_of(self, family: Family) -> int:
        """The number of saves of this family, with one more that is about to be taken."""
        before = self.parts.get(family)
        return before.count + 1 if before is not None else 1

    def refuse(self, family: Family, save: Save, reason: str, *, final: bool) -> None:
        """Record that a save does not verify. It is not looked at again before one of its files changes."""
        self._watches[family].refuse(save)
        self.notes.refused(save, reason, final=final)

    def refuse_all(self, ready: Ready, reason: str) -> None:
        """Record that these saves, each of them whole, are together too much for one checkpoint."""
        for family, save in ready.fresh.items():
            self._watches[family].refuse(save)
            self.notes.note(save.prefix, reason)

    def took(self, ready: Ready, parts: Mapping[Family, P], step: int, kept: Callable[[P], P]) -> None:
        """Record that a checkpoint of these parts exists.

        `kept` gives each part with its place in that checkpoint.
        """
        self._held_looks = 0
        self.last_step = max(self.last_step, step)
        for family, part in parts.items():
            if part is not self.parts.get(family):
                self._watches[family].take(part.save, ready.state_of(family))
            self.parts[family] = kept(part)

    def describe(self, ready: Ready, parts: Mapping[Family, P], step: int) -> Content:
        """The content of a checkpoint of these parts.

        `step`: the newest step that the program has reported.
        """
        sight = ready.sight
        lead = _lead(sight, parts)
        told = parts[lead].step if lead in ready.fresh else None
        if told is None:
            reported = step if lead in ready.fresh and step <= MAX_STEP else -1
            told = max(reported, self._base_step + 1)
        states = _states(sight, [part.save for part in parts.values()])
        prefix = parts[lead].save.prefix
        alone = len(parts) == 1 and not lead.directory and states == {STATE_FILE: render_state(prefix)}
        found = [file for part in parts.values() for file in part.files]
        if alone:
            states = {}
        found += [ManifestFile(name, len(data), crc32c_of_bytes(data)) for name, data in states.items()]
        versions = [part.tf_version for part in parts.values() if part.tf_version]
        return Content(
            step=max(told, self.last_step + 1),
            prefix=prefix,
            files=tuple(sorted(found)),
            tensors=sum(part.tensors for part in parts.values()),
            tf_version=versions[0] if versions else "",
            version=1 if alone else 2,
            states=states,
        )


def base_step_of(base: Manifest | None) -> int:
    """The step that a generation begins with."""
    return base.ref.step if base is not None else 0


def _lead(sight: Sight, parts: Mapping[Family, Part]) -> Family:
    """The family that training resumes from: the one with the most saves, where the base's family counts one
    more.

    Among equals it is one that a state file names, or that tells its step.
    """
    named = {state.prefix for state in sight.states.values()}

    def weight(family: Family) -> tuple[int, bool, bool]:
        part = parts[family]
        return part.count, part.save.prefix in named, part.step is not None

    return max(sorted(parts), key=weight)


def _states(sight: Sight, saves: Collection[Save]) -> dict[str, bytes]:
    """The state files that belong beside these saves, by their paths.

    Each names the save that the program's own state file names, relative to its directory; if that is not
    among `saves`, the newest save of its directory. A program that keeps no state file in a directory gets
    none there.
    """
    by_prefix = {save.prefix: save for save in saves}
    found = {}
    for directory, state in sorted(sight.states.items()):
        own = [save for save in saves if family_of(save.prefix).directory == directory]
        newest = max(own, key=lambda save: save.age, default=None)
        named = by_prefix.get(state.prefix, newest)
        if named is not None:
            found[posixpath.join(directory, STATE_FILE)] = render_state(
                posixpath.relpath(named.prefix, directory or ".")
            )
    return found
