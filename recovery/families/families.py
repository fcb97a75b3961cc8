"""Families of saves: files below a directory that are one save, and saves that follow one another. Pure.

A family is a directory and a stem: `model.ckpt-100` and `model.ckpt-200` are two saves of the family
`model.ckpt`. A program may have several families: the model, the best model, an optimizer.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from recovery.families.watch_rule import FileMark
from recovery.formats.tf_files import FileSet, complete_set, number_of, split_number

Ordered = TypeVar("Ordered", int, tuple[int, int])
MAX_FAMILIES = 32
"""Most families in one checkpoint; those saved last are kept."""

MORE_REMEMBERED = 1000
"""Number of files to remember beside twice the number of those that are there."""

_PART = re.compile(r"(.+)\.(?:index|data-\d{5}-of-\d{5}|meta(?:\..+)?)$", re.ASCII | re.DOTALL)
_TEMPORARY = re.compile(r"(?:.*_temp(?:_[0-9a-f]+)?|workertemp_\d+|temp-\d+)$", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Family:
    """The directory of its saves, relative to `$CHECKPOINT_DIR`, and the stem of their names."""

    directory: str
    stem: str

    def __str__(self) -> str:
        return posixpath.join(self.directory, self.stem)


@dataclass(frozen=True, slots=True)
class StateFile:
    """A `checkpoint` file as one look saw it.

    `prefix`: the path of the save that it names; empty: that is not here.
    """

    mark: FileMark
    prefix: str


@dataclass(frozen=True, slots=True)
class Sight:
    """One look at everything below `$CHECKPOINT_DIR`. All paths are relative to it.

    Attributes:
        marks: the files of TensorFlow's checkpoints, sorted by name.
        states: directory -> its `checkpoint` file.
        refused: path -> the reason why the entry there cannot be read, or cannot be committed.
        entries: the number of files and directories of any kind.
        whole: the look covered everything. False: there may be more.
    """

    marks: tuple[FileMark, ...] = ()
    states: Mapping[str, StateFile] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    entries: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Save:
    """A complete file set.

    Attributes:
        marks: of `files`, sorted by name.
        half_meta: its `.meta` is being written.
        expects_meta: other saves of its family have a `.meta`.
        named: a `checkpoint` file names it.
        turn: number of the first look that saw all its files as they are now.
    """

    files: FileSet
    marks: tuple[FileMark, ...]
    half_meta: bool = False
    expects_meta: bool = False
    named: bool = False
    turn: int = 0

    @property
    def prefix(self) -> str:
        """The path of the bundle, relative to `$CHECKPOINT_DIR`."""
        return self.files.prefix

    @property
    def tensors(self) -> tuple[FileMark, ...]:
        """The marks of its index and data files. A `.meta` that comes later does not make it a new save."""
        return tuple(mark for mark in self.marks if mark.name not in self.files.others)

    @property
    def finished_ns(self) -> int:
        """The time at which its index was written, in ns; 0 if its files are gone."""
        return next((mark.mtime_ns for mark in self.marks if mark.name == self.files.index), 0)

    @property
    def age(self) -> tuple[int, int]:
        """Sort key: greater for a later save, by the look that first saw it and then by the clock."""
        return self.turn, self.finished_ns


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Files of a save that is being written or deleted, or has lost files. `turn`: as in Save."""

    prefix: str
    marks: tuple[FileMark, ...]
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Saves:
    """One family in one look: its newest complete save, and its incomplete ones by prefix."""

    newest: Save | None
    incomplete: tuple[Incomplete, ...] = ()


class FirstSeen:
    """The number of the look that first saw each file as it is now. It tells the newer of two saves.

    The clock of a node may be set back, and a file may be copied together with its time.
    """

    def __init__(self) -> None:
        self._turns: dict[FileMark, int] = {}
        self._turn = -1

    def see(self, marks: Collection[FileMark]) -> None:
        """Record the files of another look."""
        self._turn += 1
        for mark in marks:
            self._turns.setdefault(mark, self._turn)
        # A file that is away for a moment comes back as what it was.
        if len(self._turns) > 2 * len(marks) + MORE_REMEMBERED:
            self._turns = {mark: self._turns[mark] for mark in marks}

    def turn_of(self, marks: Iterable[FileMark]) -> int:
        """The number of the look that first saw the last of these files; 0 if none was seen."""
        return max((self._turns.get(mark, 0) for mark in marks), default=0)


def family_of(prefix: str) -> Family:
    """The family of a save."""
    directory, _, name = prefix.rpartition("/")
    return Family(directory, split_number(name)[0])


def is_temporary(directory: str) -> bool:
    """Whether a directory of this name is one that TensorFlow uses only while it writes."""
    return _TEMPORARY.match(directory) is not None


def bundle_of(name: str) -> str | None:
    """The prefix of the bundle that a file of this name belongs to; None for any other file."""
    match = _PART.match(name)
    return match[1] if match else None


def prefix_below(named: str, directory: str, roots: Iterable[str]) -> str | None:
    """The path, below `$CHECKPOINT_DIR`, of the save that a state file names; None if it lies elsewhere.

    Args:
        named: as the state file in `directory` spells it.
        directory: the directory of that file, relative to `$CHECKPOINT_DIR`.
        roots: the absolute spellings of `$CHECKPOINT_DIR`.
    """
    path = posixpath.normpath(posixpath.join(directory, named)) if not named.startswith("/") else ""
    for root in roots if not path else ():
        inside = posixpath.relpath(posixpath.normpath(named), root)
        if not inside.startswith(".."):
            path = inside
    outside = not path or path in {".", ".."} or path.startswith("../")
    return None if outside or named.endswith("/") else path


def is_newer(one: Save, other: Save) -> bool:
    """Whether `one` is the newer save of their family; False if that is unknown too.

    Three signs are compared: the `checkpoint` file, the number in the name, and the look that first saw a
    save (or, for the same look, the time of its index). Each can be wrong: the `checkpoint` file is written
    last, numbers may begin anew, a clock may be set back, and a program may copy old saves over themselves.
    So the majority decides, and in a tie the look.
    """
    number, others = number_of(one.prefix), number_of(other.prefix)
    votes = _sign(one.named, other.named) + _sign(one.age, other.age)
    if number is not None and others is not None:
        votes += _sign(number, others)
    return votes > 0 or (votes == 0 and (one.age, one.named) > (other.age, other.named))


def saves_in(sight: Sight, first_seen: FirstSeen | None = None) -> dict[Family, Saves]:
    """The saves of each family. Without `first_seen` only times tell which save is newer."""
    order = first_seen or FirstSeen()
    named = {state.prefix for state in sight.states.values()}
    groups: dict[str, list[FileMark]] = {}
    for mark in sight.marks:
        prefix = bundle_of(mark.name)
        if prefix is not None:
            groups.setdefault(prefix, []).append(mark)
    complete: dict[Family, list[Save]] = {}
    incomplete: dict[Family, list[Incomplete]] = {}
    metas: dict[Family, set[str]] = {}
    for prefix, marks in groups.items():
        family, names = family_of(prefix), {mark.name for mark in marks}
        if f"{prefix}.meta" in names:
            metas.setdefault(family, set()).add(prefix)
        found = complete_set(prefix, names)
        if found is None:
            rest = Incomplete(prefix, tuple(marks), order.turn_of(marks))
            incomplete.setdefault(family, []).append(rest)
            continue
        half = not found.others and any(name.startswith(f"{prefix}.meta.") for name in names)
        own = {name: mark for mark in marks if (name := mark.name) in found.names}
        turn = order.turn_of(mark for name, mark in own.items() if name not in found.others)
        save = Save(found, tuple(sorted(own.values())), half, named=prefix in named, turn=turn)
        complete.setdefault(family, []).append(save)
    return {
        family: Saves(
            _newest(complete.get(family, ()), metas.get(family, set())),
            tuple(sorted(incomplete.get(family, ()), key=lambda each: each.prefix)),
        )
        for family in sorted({*complete, *incomplete})
    }


def _newest(saves: Collection[Save], metas: set[str]) -> Save | None:
    """The save that was first seen last, unless the one that a state file names is newer.

    `is_newer` is no order of three or more: each of them may be newer than another.
    """
    newest = max(saves, key=_last_seen, default=None)
    named = max((save for save in saves if save.named), key=_last_seen, default=None)
    if newest is not None and named is not None and is_newer(named, newest):
        newest = named
    return None if newest is None else replace(newest, expects_meta=bool(metas - {newest.prefix}))


def _last_seen(save: Save) -> tuple[tuple[int, int], int, str]:
    number = number_of(save.prefix)
    return save.age, number if number is not None else -1, save.prefix


def _sign(one: Ordered, other: Ordered) -> int:
    return (one > other) - (one < other)
