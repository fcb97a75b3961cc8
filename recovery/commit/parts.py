"""Parts: the newest taken save of each family. A checkpoint is put together from them.

A part is taken from the program's directory, linked on from checkpoint to checkpoint, or found again by an
agent that begins anew. A shard in the outbox is another name of the program's own file: a program that writes
in place changes it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from recovery.commit.sight import mark_below
from recovery.families.families import Family, Save, family_of
from recovery.families.watch_rule import FileMark
from recovery.formats.bundle import MAX_INDEX_BYTES, read_index
from recovery.formats.manifest import Manifest, ManifestFile, crc32c_of_bytes, hex_crc32c
from recovery.formats.tf_files import complete_set
from recovery.io import files
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Moved


@dataclass(frozen=True, slots=True)
class Part:
    """A family's newest save that was taken.

    Attributes:
        save: the save, with the marks of the program's files; without marks once these are gone.
        files: its files as they were verified.
        home: a directory that holds them under the same names, if it is still there.
        sound: the marks of the files in `home` when they were verified; empty if an earlier life verified
            them.
        step: the step in its name and its tensors; None without one.
        count: the number of saves of this family that were taken.
    """

    save: Save
    files: tuple[ManifestFile, ...]
    home: Path
    sound: tuple[FileMark, ...] = ()
    tensors: int = 0
    tf_version: str = ""
    step: int | None = None
    count: int = 0


def find_part(known: Iterable[tuple[Manifest, Path]], save: Save, directory: Path) -> Part | None:
    """The part that holds this save of the program, if one of these checkpoints has the same index, and so
    the same checksums of all tensors.

    `known` has each checkpoint with its directory.
    """
    for manifest, home in known:
        if save.prefix in manifest.bundles:
            part = _part(manifest, home, save, directory)
            if part is not None:
                return part
    return None


def last_part(known: Iterable[tuple[Manifest, Path]], family: Family) -> Part | None:
    """The newest part of a family in these checkpoints, which are newest first. Its files may be gone."""
    lost = None
    for manifest, home in known:
        by_name = {file.name: file for file in manifest.files}
        for prefix in manifest.bundles:
            found = complete_set(prefix, by_name)
            if family_of(prefix) != family or found is None:
                continue
            part = _part(manifest, home, Save(found, ()), home)
            if part is not None:
                return part
            lost = lost or Part(Save(found, ()), tuple(by_name[name] for name in found.names), home)
    return lost


def _part(manifest: Manifest, home: Path, save: Save, directory: Path) -> Part | None:
    """The part that `manifest` has of `save`, if `directory` has its index."""
    by_name = {file.name: file for file in manifest.files}
    index, own = by_name.get(save.files.index), complete_set(save.prefix, by_name)
    if index is None or own is None:
        return None
    with suppress(FileNotFoundError), files.beneath(directory, index.name) as (fd, name):
        raw = files.read_small(name, MAX_INDEX_BYTES, fd)
        if crc32c_of_bytes(raw) == index.crc32c:
            return Part(
                save,
                tuple(by_name[each] for each in own.names),
                home,
                tensors=len(read_index(raw).tensors),
                tf_version=manifest.tf_version,
                count=int(save.prefix == manifest.prefix),
            )
    return None


def link_part(part: Part, into: Path, moved: Moved) -> tuple[FileMark, ...]:
    """Link a part from its home; returns its marks in `into`, or none if a file has changed since.

    A file is read only if its mark differs from the one at its verification. Raises FileNotFoundError.
    """
    for file in part.files:
        with effect("outbox.carry_file"):
            make_parent(into / file.name)
            files.link_or_copy(part.home / file.name, into / file.name, moved=moved)
    return _as_verified(part, into, moved)


def retake_part(part: Part, directory: Path, into: Path, moved: Moved) -> tuple[FileMark, ...]:
    """Take a part again from the program's directory; returns its marks in `into`, or none if it has changed
    there.
    """
    if not part.save.marks or not take_files(directory, into, part.save):
        return ()
    return _as_verified(part, into, moved)


def _as_verified(part: Part, into: Path, moved: Moved) -> tuple[FileMark, ...]:
    found = marks_below(into, [file.name for file in part.files])
    for file, mark in zip(part.files, found, strict=True):
        if mark in part.sound:
            continue
        size, crc = files.crc32c_of_file(into / file.name, moved=moved)
        if (size, hex_crc32c(crc)) != (file.size, file.crc32c):
            return ()
    return found


def marks_below(directory: Path, names: Iterable[str]) -> tuple[FileMark, ...]:
    """The marks of these files below a directory now. Raises OSError."""
    return tuple(mark_below(directory, name) for name in names)


def take_files(source: Path, target: Path, save: Save) -> bool:
    """Link the shards and copy the other files; False if the program changed one of them meanwhile."""
    try:
        for name in save.files.names:
            with files.beneath(source, name) as (fd, last):
                make_parent(target / name)
                if save.files.in_place(name):
                    with effect("outbox.copy_file"):
                        files.copy_file(Path(last), target / name, dir_fd=fd)
                else:
                    with effect("outbox.link_file"):
                        files.link_or_copy(Path(last), target / name, dir_fd=fd)
        return all(mark_below(source, mark.name) == mark for mark in save.marks)
    except FileNotFoundError:
        return False


def forget_files(into: Path, names: Sequence[str]) -> None:
    """Remove the files of a save that were brought so far."""
    for name in names:
        with effect("outbox.forget_file"):
            (into / name).unlink(missing_ok=True)


def make_parent(path: Path) -> None:
    """Make the directory of a file that is about to be brought."""
    with effect("outbox.make_parent"):
        path.parent.mkdir(parents=True, exist_ok=True)
