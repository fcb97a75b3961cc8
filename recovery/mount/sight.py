"""A look at all entries in the directory of a mounted generation, by the store's own client.

It does not use the mount, which may hang. A look makes one call to the store for each directory, and one for
all links. The target of a link does not change, and is looked up once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from recovery.commit.sight import KERAS_ENDINGS, MAX_ENTRIES, SAVED_MODEL
from recovery.families.families import Sight, StateFile, bundle_of, is_temporary, prefix_below
from recovery.families.watch_rule import FileMark
from recovery.formats.manifest import check_file_name
from recovery.formats.tf_files import MAX_STATE_BYTES, is_state_file, parse_state
from recovery.io.parallel import in_parallel
from recovery.mount.backends.backend import Entry, read_small
from recovery.mount.layout import MAX_LINK_BYTES, Place, link_name
from recovery.mount.live import LiveDirectory
from supervisor.contract.errors import NotFound, StoreUnreachable, UserError
from supervisor.contract.job.file_pattern import MAX_DEPTH

MAX_DIRECTORIES = 500
"""Most directories of a look: each costs a call to the store at every look."""

AT_ONCE = 8
_VARIABLES = "variables"


@dataclass(frozen=True, slots=True)
class Linked:
    """A file of a taken checkpoint: its place, and its mark at that time."""

    place: Place
    mark: FileMark


@dataclass(slots=True)
class _Found:
    """The findings of a look so far. `own`: files by path that are in the live directory itself."""

    linked: frozenset[str]
    own: dict[str, Entry] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    entries: int = 0
    directories: int = 1
    whole: bool = True


class LiveEyes:
    """Looks below one live directory.

    Args:
        live: the directory.
        roots: the absolute spellings of `$CHECKPOINT_DIR`.
        deep: whether files in subdirectories can be taken too.

    Attributes:
        links: path -> file of the last look that is not in the live directory itself.
        covered: paths of the last look that hold a file beside an old link of the same name.
        directories: the number of directories of the last look.
    """

    def __init__(self, live: LiveDirectory, roots: tuple[str, ...], *, deep: bool) -> None:
        self._live = live
        self._roots = roots
        self._deep = deep
        self._states: dict[str, tuple[FileMark, str | None]] = {}
        self.links: dict[str, Linked] = {}
        self.covered: frozenset[str] = frozenset()
        self.directories = 0
        self._seen: dict[str, FileMark] = {}

    async def look(self) -> Sight:
        """Look once. Raises StoreUnreachable, Refused."""
        # The links first: what is written over meanwhile is then found as a file.
        found = _Found(await self._live.linked())
        await self._look_inside("", found)
        self.directories = found.directories
        self.covered = found.linked & found.own.keys()
        await self._follow(found)
        marks: list[FileMark] = []
        states: dict[str, StateFile] = {}
        self._seen = self._marks(found)
        for name, mark in self._seen.items():
            try:
                _check(name)
            except UserError as error:
                found.refused[name[:200]] = str(error)
                continue
            if is_state_file(name):
                await self._see_state(name, mark, states, found)
            else:
                marks.append(mark)
        return Sight(tuple(sorted(marks)), states, found.refused, found.entries, found.whole)

    def know(self, names: Iterable[str], place: Place) -> None:
        """Record that these files are in `place` now. They keep the marks of the last look."""
        for name in names:
            self.links[name] = Linked(place, self._seen[name])

    def forget(self) -> None:
        """Forget the targets of links, so that the next look reads them again."""
        self.links = {}

    async def _look_inside(self, inside: str, found: _Found) -> None:
        try:
            entries = await self._live.own(inside)
        except NotFound as error:
            if inside:
                return
            raise StoreUnreachable(f"{self._live.root} is not in the store: {error}") from error
        deeper = []
        saved_model = any(entry.name == SAVED_MODEL for entry in entries)
        if saved_model:
            found.refused[inside or "."] = (
                "it is a SavedModel, from which no training resumes by itself: write exports to another "
                "directory"
            )
        for entry in entries:
            path = f"{inside}/{entry.name}" if inside else entry.name
            found.entries += 1
            if found.entries > MAX_ENTRIES:
                found.whole = False
                found.refused["."] = (
                    f"there are more than {MAX_ENTRIES} files below $CHECKPOINT_DIR, and no more are looked "
                    "at: keep checkpoints alone there"
                )
                return
            if not entry.directory:
                found.own[path] = entry
                if entry.name.endswith(KERAS_ENDINGS):
                    found.refused[f"{inside}/*.{entry.name.rpartition('.')[2]}".lstrip("/")] = (
                        "files of Keras are not committed in checkpoint.mode: mounted: use mode: staged and "
                        "name them in checkpoint.pattern, or save in TensorFlow's format"
                    )
            elif saved_model and entry.name == _VARIABLES:
                found.hidden.add(path)
            elif not is_temporary(entry.name):
                deeper.append(path)
        allowed = [path for path in deeper if self._may_look_into(path, found)]
        await in_parallel(lambda path: self._look_inside(path, found), allowed, AT_ONCE)

    def _may_look_into(self, path: str, found: _Found) -> bool:
        if not self._deep:
            found.refused[path] = (
                "this directory was mounted by an earlier release, which takes nothing below it: "
                "`supervisorctl restart` mounts it anew"
            )
        elif path.count("/") + 2 > MAX_DEPTH:
            found.refused[path] = (
                f"it is more than {MAX_DEPTH - 1} directories below $CHECKPOINT_DIR: save nearer"
            )
        elif found.directories >= MAX_DIRECTORIES:
            found.whole = False
            found.refused["."] = (
                f"there are more than {MAX_DIRECTORIES} directories below $CHECKPOINT_DIR, and no more are "
                "looked into: keep checkpoints alone there"
            )
        else:
            found.directories += 1
            return True
        return False

    async def _follow(self, found: _Found) -> None:
        """Look up the targets of links with names of checkpoints."""
        names = {name for name in found.linked - found.own.keys() if _counts(name)}
        self.links = {name: link for name, link in self.links.items() if name in names}

        async def follow(name: str) -> None:
            at = await self._live.follow(name)
            if at is not None and at.place is not None:
                self.links[name] = Linked(at.place, _mark(name, at.entry))

        await in_parallel(follow, sorted(names - self.links.keys()), AT_ONCE)

    def _marks(self, found: _Found) -> dict[str, FileMark]:
        marks = {name: _mark(name, entry) for name, entry in found.own.items() if _counts(name)}
        marks |= {name: link.mark for name, link in self.links.items()}
        hidden = tuple(f"{path}/" for path in found.hidden)
        return {name: mark for name, mark in marks.items() if not name.startswith(hidden)}

    async def _see_state(
        self, name: str, mark: FileMark, states: dict[str, StateFile], found: _Found
    ) -> None:
        inside = name.rpartition("/")[0]
        known = self._states.get(inside)
        if known is None or known[0] != mark:
            at = await self._live.find(name)
            if at is None or at.entry.directory:
                return
            try:
                raw = await read_small(self._live.backend, at.path, MAX_STATE_BYTES)
            except NotFound:
                return
            state = parse_state(raw.decode(errors="replace"))
            known = self._states[inside] = (mark, state.newest if state is not None else None)
        named = known[1]
        if named is None:
            return
        prefix = prefix_below(named, inside, self._roots)
        states[inside] = StateFile(mark, prefix or "")
        if prefix is None:
            found.refused[named] = "it is not below $CHECKPOINT_DIR: let the program save there"


def _counts(name: str) -> bool:
    """Whether a file of this name may belong to a checkpoint."""
    return is_state_file(name) or bundle_of(name) is not None


def _mark(name: str, entry: Entry) -> FileMark:
    return FileMark(name, entry.size, entry.mtime_ms * 1_000_000, 0)


def _check(name: str) -> None:
    if not is_state_file(name):
        check_file_name(name)
    if link_name(name) is None:
        raise UserError(
            f"its path is longer than the {MAX_LINK_BYTES} bytes that a mounted directory can show of a "
            "checkpoint (each `/` counts as three): save under a shorter one"
        )
