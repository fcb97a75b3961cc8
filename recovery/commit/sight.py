"""A look at all entries below a program's `$CHECKPOINT_DIR`.

The program may replace a directory by a link at any time, so no file is looked up by its path.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from recovery.families.families import Sight, StateFile, bundle_of, is_temporary, prefix_below
from recovery.families.watch_rule import FileMark
from recovery.formats.manifest import MAX_TEXT, check_file_name
from recovery.formats.paths import OUTPUTS_PREFIX
from recovery.formats.tf_files import (
    MAX_STATE_BYTES,
    STATE_FILE,
    SavedState,
    is_state_file,
    names_of_bundles,
    parse_state,
    render_state,
)
from recovery.io import files
from supervisor.adapters.failpoints import effect
from supervisor.contract.errors import UserError
from supervisor.contract.job.file_pattern import MAX_DEPTH

MAX_ENTRIES = 20_000
SAVED_MODEL = "saved_model.pb"
KERAS_ENDINGS = (".h5", ".hdf5", ".keras")
_VARIABLES = "variables"
_NOT_READABLE = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR, errno.EINVAL})
"""Errors for a file that the agent may not read, or that the program replaces by something else meanwhile."""


@dataclass(slots=True)
class _Found:
    """The findings of a look so far."""

    marks: list[FileMark] = field(default_factory=list)
    states: dict[str, StateFile] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    entries: int = 0
    whole: bool = True

    @property
    def full(self) -> bool:
        """Whether the look has reached its limit."""
        return self.entries > MAX_ENTRIES


class Eyes:
    """Looks below one directory; remembers state files that have not changed. Blocking.

    `adopt`: another name of the directory, by which state files may name saves; empty: none.
    """

    def __init__(self, directory: Path, adopt: str = "") -> None:
        self._directory = directory
        self._adopt = adopt
        self._states: dict[str, tuple[FileMark, str | None]] = {}

    def look(self) -> Sight:
        """Look once; an absent directory gives an empty Sight. Raises OSError."""
        found = _Found()
        with suppress(FileNotFoundError), _opened(self._directory, None) as fd:
            self._look_inside(fd, "", found)
        return Sight(tuple(sorted(found.marks)), found.states, found.refused, found.entries, found.whole)

    def _look_inside(self, fd: int, inside: str, found: _Found) -> None:
        deeper = []
        with os.scandir(fd) as entries:
            names = {entry.name: entry for entry in islice(entries, MAX_ENTRIES + 1 - found.entries)}
        if SAVED_MODEL in names:
            found.refused[inside or "."] = (
                "it is a SavedModel, from which no training resumes by itself: name its files in "
                "checkpoint.pattern if the program loads them, or write exports to another directory"
            )
            names.pop(_VARIABLES, None)
        for name, entry in names.items():
            found.entries += 1
            if found.full:
                found.whole = False
                found.refused["."] = (
                    f"there are more than {MAX_ENTRIES} files below $CHECKPOINT_DIR, and no more are looked "
                    "at: keep checkpoints alone there"
                )
                return
            path = f"{inside}/{name}" if inside else name
            if entry.is_dir(follow_symlinks=False):
                if not is_temporary(name):
                    deeper.append((path, name))
            elif entry.is_symlink():
                self._refuse_link(fd, path, name, found)
            elif name == STATE_FILE or bundle_of(name) is not None:
                self._see(fd, inside, path, name, found)
            elif name.endswith(KERAS_ENDINGS):
                pattern = f"{inside}/*.{name.rpartition('.')[2]}".lstrip("/")
                found.refused[pattern] = (
                    "files of Keras are committed where checkpoint.pattern names them: write "
                    f'`checkpoint: {{pattern: "{pattern}"}}` in the job file'
                )
        for path, name in deeper:
            if found.full:
                return
            self._look_deeper(fd, path, name, found)

    def _look_deeper(self, fd: int, path: str, name: str, found: _Found) -> None:
        if path.count("/") + 2 > MAX_DEPTH:
            found.refused[path] = (
                f"it is more than {MAX_DEPTH - 1} directories below $CHECKPOINT_DIR: save nearer"
            )
            return
        try:
            with suppress(FileNotFoundError, NotADirectoryError), _opened(name, fd) as inner:
                self._look_inside(inner, path, found)
        except PermissionError:
            found.whole = False
            found.refused[path] = "the agent has no right to read this directory"

    def _see(self, fd: int, inside: str, path: str, name: str, found: _Found) -> None:
        with suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                return
            mark = mark_by(status, path)
            if name != STATE_FILE:
                try:
                    found.marks.append(_allowed(mark))
                except UserError as error:
                    found.refused[path[:200]] = str(error)
                return
            try:
                named = self._named(fd, inside, mark)
            except OSError as error:
                if error.errno not in _NOT_READABLE:
                    raise
                found.refused[path] = (
                    f"the agent cannot read this state file ({error.strerror}), and no checkpoint has it: "
                    "give the agent the right to read it"
                )
                return
            if named is None:
                return
            prefix = prefix_below(named, inside, self._roots())
            found.states[inside] = StateFile(mark, prefix or "")
            if prefix is None:
                found.refused[named] = "it is not below $CHECKPOINT_DIR: let the program save there"

    def _named(self, fd: int, inside: str, mark: FileMark) -> str | None:
        known = self._states.get(inside)
        if known is None or known[0] != mark:
            state = _state_of(STATE_FILE, fd)
            known = self._states[inside] = (mark, state.newest if state is not None else None)
        return known[1]

    def _roots(self) -> tuple[str, ...]:
        return names_of(self._directory, self._adopt)

    def _refuse_link(self, fd: int, path: str, name: str, found: _Found) -> None:
        """Record a link as refused, unless its target is looked at anyway."""
        with suppress(OSError):
            target = os.readlink(name, dir_fd=fd)
            if target.startswith(f"../{OUTPUTS_PREFIX}"):
                return  # the agent's own link to a task's exports
            if prefix_below(target, path.rpartition("/")[0], self._roots()) is None:
                found.refused[path] = (
                    "it is a symbolic link out of $CHECKPOINT_DIR, which is not followed: save below it"
                )


def names_of(directory: Path, adopt: str) -> tuple[str, ...]:
    """The absolute paths by which a program may know its `$CHECKPOINT_DIR`."""
    resolved = directory.parent.resolve() / directory.name
    return (str(directory), str(resolved), *((adopt,) if adopt else ()))


def relative_states(directory: Path, names: Collection[str], adopt: str = "") -> dict[str, bytes]:
    """The state files that belong beside these files of a checkpoint, by their paths below `directory`.

    They are those of the directories in which there is a tensor bundle or a state file among `names`, where
    they name one of the bundles, with paths that are right wherever the directory is. `adopt`: as for `Eyes`.
    Blocking.
    """
    directories = {
        name.rpartition("/")[0] for name in names if name.endswith(".index") or is_state_file(name)
    }
    bundles = {name.removesuffix(".index") for name in names_of_bundles(names) if name.endswith(".index")}
    found = {}
    for inside in sorted(directories):
        path = f"{inside}/{STATE_FILE}".lstrip("/")
        try:
            with files.beneath(directory, path) as (fd, name):
                state = _state_of(name, fd)
        except FileNotFoundError:
            continue
        roots = names_of(directory, adopt)
        prefix = prefix_below(state.newest, inside, roots) if state is not None else None
        if prefix in bundles and prefix is not None:
            found[path] = render_state(posixpath.relpath(prefix, inside or "."))
    return found


def write_state(into: Path, name: str, state: bytes) -> None:
    """Write a state file of a checkpoint that is being put together, over one that was copied."""
    path = into / name
    with effect("outbox.state_file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(state)


def mark_by(status: os.stat_result, name: str) -> FileMark:
    """The mark of a file with this status, under `name`."""
    return FileMark(name, status.st_size, status.st_mtime_ns, status.st_ino)


def mark_below(directory: Path, name: str) -> FileMark:
    """The mark of a file below a directory now. Raises OSError."""
    with files.beneath(directory, name) as (fd, last):
        return mark_by(os.stat(last, dir_fd=fd, follow_symlinks=False), name)


def _state_of(name: str, dir_fd: int) -> SavedState | None:
    """The content of a `checkpoint` file; None if it is a file of another kind.

    Only the beginning of a large file is read: TensorFlow names the newest save there. Raises OSError.
    """
    return parse_state(files.read_head(name, MAX_STATE_BYTES, dir_fd).decode(errors="replace"))


def _allowed(mark: FileMark) -> FileMark:
    check_file_name(mark.name)
    if len(mark.name) > MAX_TEXT or not mark.name.isprintable():
        raise UserError(f"a checkpoint needs a printable name of at most {MAX_TEXT} characters")
    return mark


@contextmanager
def _opened(directory: Path | str, dir_fd: int | None) -> Iterator[int]:
    follow = 0 if dir_fd is None else os.O_NOFOLLOW
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | follow, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)
