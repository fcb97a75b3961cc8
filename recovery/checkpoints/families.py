"""Families of saves: which files below a directory are one save, and which saves follow one another. Pure.

A family is a directory and a stem: `model.ckpt-100` and `model.ckpt-200` are two saves of the family
`model.ckpt`. A program may have several families: the model, the best model, an optimizer.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from recovery.checkpoints.tf_files import FileSet, complete_set, number_of, split_number
from recovery.checkpoints.watch_rule import FileMark

MAX_FAMILIES = 32
"""So many families are kept in one checkpoint, those saved last."""

_PART = re.compile(r"(.+)\.(?:index|data-\d{5}-of-\d{5}|meta(?:\..+)?)$", re.ASCII | re.DOTALL)
_TEMPORARY = re.compile(r"(?:.*_temp(?:_[0-9a-f]+)?|workertemp_\d+)$", re.ASCII | re.DOTALL)


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
    """

    marks: tuple[FileMark, ...] = ()
    states: Mapping[str, StateFile] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    entries: int = 0


@dataclass(frozen=True, slots=True)
class Save:
    """A complete file set.

    Attributes:
        marks: of `files`, sorted by name.
        half_meta: its `.meta` is being written.
        expects_meta: other saves of its family have a `.meta`.
    """

    files: FileSet
    marks: tuple[FileMark, ...]
    half_meta: bool = False
    expects_meta: bool = False

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
        """When its index was written."""
        return next(mark.mtime_ns for mark in self.marks if mark.name == self.files.index)


@dataclass(frozen=True, slots=True)
class Saves:
    """What one look shows of one family: its newest complete save, and the prefixes that are incomplete."""

    newest: Save | None
    incomplete: tuple[str, ...] = ()


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


def saves_in(sight: Sight) -> dict[Family, Saves]:
    """What there is of each family. Of saves whose indexes are equally old the higher number counts."""
    groups: dict[str, list[FileMark]] = {}
    for mark in sight.marks:
        prefix = bundle_of(mark.name)
        if prefix is not None:
            groups.setdefault(prefix, []).append(mark)
    complete: dict[Family, list[Save]] = {}
    incomplete: dict[Family, list[str]] = {}
    metas: dict[Family, set[str]] = {}
    for prefix, marks in groups.items():
        family, names = family_of(prefix), {mark.name for mark in marks}
        if f"{prefix}.meta" in names:
            metas.setdefault(family, set()).add(prefix)
        found = complete_set(prefix, names)
        if found is None:
            incomplete.setdefault(family, []).append(prefix)
            continue
        own = tuple(sorted(mark for mark in marks if mark.name in found.names))
        half = not found.others and any(name.startswith(f"{prefix}.meta.") for name in names)
        complete.setdefault(family, []).append(Save(found, own, half))
    return {
        family: Saves(
            _newest(complete.get(family, ()), sight, metas.get(family, set())),
            tuple(sorted(incomplete.get(family, ()))),
        )
        for family in sorted({*complete, *incomplete})
    }


def _newest(saves: Iterable[Save], sight: Sight, metas: set[str]) -> Save | None:
    named = {state.prefix for state in sight.states.values()}

    def age(save: Save) -> tuple[int, bool, int]:
        number = number_of(save.prefix)
        return save.finished_ns, save.prefix in named, -1 if number is None else number

    newest = max(saves, key=age, default=None)
    if newest is None:
        return None
    expects = bool(metas - {newest.prefix})
    return Save(newest.files, newest.marks, newest.half_meta, expects)
