"""Exports in a task's output directory: found by their pattern, copied out of its reach. All is blocking."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from recovery.commit.verify import verify_files
from recovery.formats.meta_graph import SAVED_MODEL
from recovery.formats.saved_model import check_graph, check_names
from recovery.io import files
from recovery.io.files import GoOn
from recovery.models.index import digest_text
from recovery.outputs.reading import Unreadable, copy_range
from recovery.outputs.scan import Scan, Seen, scan, shown
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Moved
from supervisor.contract.errors import BadCheckpoint
from supervisor.contract.job.file_pattern import compile_pattern


@dataclass(frozen=True, slots=True)
class Export:
    """A directory that a program exported a SavedModel to, as a scan found it.

    Attributes:
        files: path below it -> file.
        left_out: why something in it cannot be taken; empty if all can.
    """

    source: str
    files: Mapping[str, Seen]
    left_out: str = ""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(seen.size for seen in self.files.values())

    @property
    def modified_ns(self) -> int:
        """The time of the last write, on the wall clock."""
        return max(seen.modified_ns for seen in self.files.values())


@dataclass(frozen=True, slots=True)
class Copied:
    """A verified copy of an export: path -> (size, crc32c) of its files, and the digest of these."""

    files: Mapping[str, tuple[int, int]]
    digest: str


def find_exports(directory: Path, export: str, uid: int | None) -> list[Export]:
    """The exports whose directories match, in the order in which they were written. Raises OSError.

    An export is there once it has a `saved_model.pb`, which TensorFlow writes after all variables.
    """
    found, pattern = scan(directory, uid), compile_pattern(export)
    inside: dict[str, dict[str, Seen]] = {}
    for path, seen in found.files.items():
        parts = path.split("/")
        # A star stands for characters of one name, so all exports are equally deep.
        depth = export.count("/") + 1
        inside.setdefault("/".join(parts[:depth]), {})["/".join(parts[depth:])] = seen
    exports = [
        Export(source, below, _left_out(found, f"{source}/"))
        for source, below in inside.items()
        if SAVED_MODEL in below and pattern.fullmatch(source)
    ]
    return sorted(exports, key=lambda each: (each.files[SAVED_MODEL].modified_ns, each.source))


def _left_out(found: Scan, below: str) -> str:
    """Why something below this path cannot be taken. What could not be looked at may be there."""
    for path, why in found.left_out.items():
        if path.startswith(shown(below)) or not found.complete:
            return f"{path}: {why}"
    return ""


def copy_export(directory: Path, export: Export, target: Path, go_on: GoOn, moved: Moved) -> Copied:
    """Copy an export to the new directory `target`, and verify the copy.

    Raises Changed (the program writes to it), BadCheckpoint (it is no whole SavedModel), OSError. The copy
    can be read by every user that can get there: the task's own user tries it.
    """
    if export.left_out:
        raise BadCheckpoint(export.left_out)
    check_names(export.files.keys())
    with effect("models.copy"):
        target.mkdir(mode=0o755)
        target.chmod(0o755)
        crcs = {}
        for path, seen in export.files.items():
            copy = _make_parents(target, path)
            try:
                crcs[path] = copy_range(
                    directory, f"{export.source}/{path}", seen, 0, seen.size, copy, go_on=go_on, moved=moved
                )
            except Unreadable as error:
                raise BadCheckpoint(f"{path}: {error}") from error
            copy.chmod(0o644)
    _check_graph(target / SAVED_MODEL)
    verified = verify_files(target, "", sorted(export.files), go_on, moved)
    copied = {each.name: (each.size, int(each.crc32c, 16)) for each in verified.files}
    if {path: crc for path, (_, crc) in copied.items()} != crcs:
        raise OSError(5, os.strerror(5), str(target))
    return Copied(copied, hashlib.sha256(digest_text(copied)).hexdigest())


def _check_graph(path: Path) -> None:
    fd = files.open_to_read(path)
    try:
        check_graph(lambda at, size: os.pread(fd, size, at), os.fstat(fd).st_size)
    except BadCheckpoint as error:
        raise BadCheckpoint(f"{SAVED_MODEL}: {error}") from error
    finally:
        os.close(fd)


def is_unchanged(directory: Path, export: Export, pattern: str, uid: int | None) -> bool:
    """Whether the export is still as it was found. Raises OSError."""
    return export in find_exports(directory, pattern, uid)


def _make_parents(target: Path, path: str) -> Path:
    found = target
    *parents, name = path.split("/")
    for part in parents:
        found /= part
        found.mkdir(mode=0o755, exist_ok=True)
        found.chmod(0o755)
    return found / name
