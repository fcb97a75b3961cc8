"""Families of saves: which files below a directory are one save, and which saves follow one another. Pure.

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
"""So many families are kept in one checkpoint, those saved last."""

MORE_REMEMBERED = 1000
"""So many files are remembered beside twice those that are there."""

_PART = re.compile(r"(.+)\.(?:index|data-\d{5}-of-\d{5}|meta(?:\..+)?)$", re.ASCII | re.DOTALL)
_TEMPORARY = re.compile(r"(?:.*_temp(?:_[0-9a-f]+)?|workertemp_\d+|temp-\d+)$", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Family:
    """Where its saves are, relative to `$CHECKPOINT_DIR`, and what their names begin with."""

    directory: str
    stem: str

    def __str__(self) -> str:
        return posixpath.join(self.directory, self.stem)


@dataclass(frozen=True, slots=True)
class StateFile:
    """A `checkpoint` file as one look saw it. `prefix`: the path of what it names; empty: it is not here."""

    mark: FileMark
    prefix: str


@dataclass(frozen=True, slots=True)
class Sight:
    """One look at everything below `$CHECKPOINT_DIR`. All paths are relative to it.

    Attributes:
        marks: the files of which TensorFlow's checkpoints consist, sorted by name.
        states: by the directory in which a `checkpoint` file is.
        refused: path -> why what is there cannot be looked at, or cannot be committed.
        entries: how many files and directories there are, of whatever kind.
        whole: all of it was looked at. False: there may be more than is told here.
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
        turn: of the look in which all of it was there for the first time, as it is now.
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
        """The marks of its index and data files. A `.meta` may come later, and makes it no other save."""
        return tuple(mark for mark in self.marks if mark.name not in self.files.others)

    @property
    def finished_ns(self) -> int:
        """When its index was written; 0 where its files are gone."""
        return next((mark.mtime_ns for mark in self.marks if mark.name == self.files.index), 0)

    @property
    def age(self) -> tuple[int, int]:
        """Greater for a save that was made later, as far as looks and the clock show it."""
        return self.turn, self.finished_ns


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Files of a save that is being written or deleted, or that lacks some. `turn`: as that of a Save."""

    prefix: str
    marks: tuple[FileMark, ...]
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Saves:
    """One family in one look: its newest complete save, and its incomplete ones by prefix."""

    newest: Save | None
    incomplete: tuple[Incomplete, ...] = ()


class FirstSeen:
    """In which look of a watcher each file was first seen as it is: that tells which of two is newer.

    The clock of a node may be set back, and a file may be copied together with its time.
    """

    def __init__(self) -> None:
        self._turns: dict[FileMark, int] = {}
        self._turn = -1

    def see(self, marks: Collection[FileMark]) -> None:
        """Another look shows these."""
        self._turn += 1
        for mark in marks:
            self._turns.setdefault(mark, self._turn)
        # A file that is away for a moment comes back as what it was.
        if len(self._turns) > 2 * len(marks) + MORE_REMEMBERED:
            self._turns = {mark: self._turns[mark] for mark in marks}

    def turn_of(self, marks: Iterable[FileMark]) -> int:
        """The look in which the last of these came; 0 where none of them was ever seen."""
        return max((self._turns.get(mark, 0) for mark in marks), default=0)


def family_of(prefix: str) -> Family:
    """Whose save this is."""
    directory, _, name = prefix.rpartition("/")
    return Family(directory, split_number(name)[0])


def is_temporary(directory: str) -> bool:
    """Whether TensorFlow keeps files in a directory of this name only while it writes."""
    return _TEMPORARY.match(directory) is not None


def bundle_of(name: str) -> str | None:
    """The prefix of the bundle that a file of this name belongs to; None for any other file."""
    match = _PART.match(name)
    return match[1] if match else None


def prefix_below(named: str, directory: str, roots: Iterable[str]) -> str | None:
    """The path below `$CHECKPOINT_DIR` of what a state file names; None when that lies elsewhere.

    Args:
        named: as the state file in `directory` spells it.
        directory: where that file is, relative to `$CHECKPOINT_DIR`.
        roots: how `$CHECKPOINT_DIR` itself may be spelt, absolute.
    """
    path = posixpath.normpath(posixpath.join(directory, named)) if not named.startswith("/") else ""
    for root in roots if not path else ():
        inside = posixpath.relpath(posixpath.normpath(named), root)
        if not inside.startswith(".."):
            path = inside
    outside = not path or path in {".", ".."} or path.startswith("../")
    return None if outside or named.endswith("/") else path


def is_newer(one: Save, other: Save) -> bool:
    """Whether `one` is the newer save of their family; False also where nothing tells.

    There are three witnesses: the `checkpoint` file, the number in the name, and the look in which a save was
    first seen, or the time of its index where that look is the same. The majority is right, as each of them
    can be wrong: the `checkpoint` file is written last, numbers may begin anew, a clock may be set back, and
    a program may copy old saves over themselves. Where they are divided, the look tells.
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
    """The one that was seen last, unless the one that a state file names is newer.

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
