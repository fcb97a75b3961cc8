"""The directory of one mounted generation: its own files, and links to checkpoints that were taken from it.

A file is looked up by its own name first and then by its link. The link is made before the file is moved, so
each look finds one of them. If a program deletes a file of a taken checkpoint, only the link goes.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Collection
from dataclasses import dataclass

from recovery.io.parallel import in_parallel
from recovery.mount.backends.backend import Backend, Entry, read_small, write_small
from recovery.mount.layout import (
    HIDDEN,
    Place,
    link_name,
    linked_path,
    links_path,
    parse_place,
    parts_path,
    place_shown,
)
from supervisor.adapters.failpoints import effect
from supervisor.contract.errors import Conflict, NotFound, StoreUnreachable, UserError

AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a look-up: the file's place in the store, and the link that led there, if any."""

    entry: Entry
    path: str
    place: Place | None = None


class LiveDirectory:
    """One `.live/g<generation>.PLAN` of a store. Paths are relative to it; the empty one is itself.

    Raises, from any call: as `Backend` does; UserError for reserved names.
    """

    def __init__(self, backend: Backend, root: str) -> None:
        self.backend = backend
        self.root = root

    async def make(self) -> None:
        """Make the directory; not an error if it is there."""
        with effect("live.make", StoreUnreachable):
            await self.backend.mkdirs(links_path(self.root))
            await self.backend.mkdirs(parts_path(self.root))

    async def seed(self, names: Collection[str], place: Place) -> None:
        """Show exactly these files of a committed checkpoint, before any program runs.

        Safe to repeat, and to run on several nodes at once. Links to a base that was given up are removed.
        """

        async def make(directory: str) -> None:
            with effect("live.make_below", StoreUnreachable):
                await self.backend.mkdirs(self.path(directory))

        async def show(name: str) -> None:
            before = await self.places(name)
            if before and before != (place,):
                await self.unlink(name)
            if before != (place,):
                await self.link(name, place)

        await in_parallel(make, sorted({posixpath.dirname(name) for name in names} - {""}), AT_ONCE)
        await in_parallel(show, names, AT_ONCE)
        for name in await self.linked():
            if name not in names:
                await self.unlink(name)

    def path(self, name: str) -> str:
        """The path, in the store, of a file of its own."""
        if name == HIDDEN or name.startswith(f"{HIDDEN}/"):
            raise UserError(f"{name!r} is kept by tf-supervisor for itself")
        return f"{self.root}/{name}" if name else self.root

    def new_part(self) -> str:
        """A path in the store for a file that has no name yet."""
        return f"{parts_path(self.root)}/{secrets.token_hex(8)}"

    async def find(self, name: str) -> Found | None:
        """Look up a name; None if there is no such file."""
        shown = place_shown(name)
        if shown is not None:
            return await self._in_place(*shown)
        path = self.path(name)
        entry = await self.backend.info(path)
        if entry is not None or not name:
            return Found(entry, path) if entry is not None else None
        linked = await self.follow(name)
        if linked is not None:
            return linked
        # A rename over a linked name makes the file first and removes the link then.
        entry = await self.backend.info(path)
        return Found(entry, path) if entry is not None else None

    async def follow(self, name: str) -> Found | None:
        """The target of the link of this name; None without a link, or if the checkpoint was collected."""
        for place in await self.places(name):
            found = await self._in_place(place, name)
            if found is not None:
                return found
        return None

    async def _in_place(self, place: Place | None, name: str) -> Found | None:
        if place is None:
            return Found(Entry(HIDDEN, 0, 0, directory=True), self.root)
        for directory in place.directories:
            path = f"{directory}/{name}" if name else directory
            entry = await self.backend.info(path)
            if entry is not None:
                return Found(entry, path, place)
        return None

    async def places(self, name: str) -> tuple[Place, ...]:
        """The places that the links of a name lead to, sorted by name."""
        link = link_name(name)
        if link is None:
            return ()
        try:
            entries = await self.backend.list(f"{links_path(self.root)}/{link}")
        except NotFound:
            return ()
        return tuple(place for entry in entries if (place := parse_place(entry.name)) is not None)

    async def list(self, name: str) -> tuple[Entry, ...]:
        """The children of a directory, sorted by name. Of a linked file only the name is known.

        Raises NotFound.
        """
        own = {entry.name: entry for entry in await self.own(name)}
        prefix = f"{name}/" if name else ""
        for linked in await self.linked():
            child = linked.removeprefix(prefix)
            if linked.startswith(prefix) and "/" not in child:
                own.setdefault(child, Entry(child, 0, 0, directory=False))
        return tuple(own[each] for each in sorted(own))

    async def own(self, name: str) -> tuple[Entry, ...]:
        """The children of a directory without those that are only links. Raises NotFound."""
        return tuple(each for each in await self.backend.list(self.path(name)) if name or each.name != HIDDEN)

    async def linked(self) -> frozenset[str]:
        """The paths of all links, in all directories."""
        try:
            entries = await self.backend.list(links_path(self.root))
        except NotFound:
            return frozenset()
        return frozenset(linked_path(entry.name) for entry in entries)

    async def read(self, name: str, limit: int) -> bytes:
        """The beginning of a file of its own, at most `limit` bytes. Raises NotFound."""
        return await read_small(self.backend, self.path(name), limit)

    async def mkdir(self, name: str) -> None:
        """Make a directory. Raises Conflict, NotFound (no parent)."""
        await self._require_parent(name)
        if await self.find(name) is not None:
            raise Conflict(f"{name} exists already")
        with effect("live.mkdir", StoreUnreachable):
            await self.backend.mkdirs(self.path(name))

    async def remove(self, name: str) -> None:
        """Delete a file, a directory without files of its own, or the link of a taken file.

        Raises NotFound, Conflict.
        """
        with effect("live.remove", StoreUnreachable):
            gone = await self.backend.delete(self.path(name), recursive=False)
        if not await self.unlink(name) and not gone:
            raise NotFound(f"{name} does not exist")

    async def require_unlinked(self, directory: str) -> None:
        """Raise Conflict if a directory shows taken files, in it or below it."""
        if any(name.startswith(f"{directory}/") for name in await self.linked()):
            raise Conflict(f"{directory} shows files of a checkpoint")

    async def rename(self, old: str, new: str) -> None:
        """Move a file or directory, over a file of that name. Raises NotFound, Conflict."""
        with effect("live.rename", StoreUnreachable):
            await self.backend.rename(self.path(old), self.path(new), overwrite=True)
        await self.unlink(new)

    async def name_part(self, part: str, name: str) -> None:
        """Rename a finished part to its name, over a file of that name."""
        with effect("live.name", StoreUnreachable):
            await self.backend.rename(part, self.path(name), overwrite=True)
        await self.unlink(name)

    async def write(self, name: str, data: bytes) -> None:
        """Write a small file, atomically, over a file of that name."""
        part = self.new_part()
        with effect("live.write", StoreUnreachable):
            await write_small(self.backend, part, data)
        await self.name_part(part, name)

    async def link(self, name: str, place: Place) -> None:
        """Link a file to `place`, where it is or will be."""
        link = link_name(name)
        if link is None:
            raise UserError(f"{name!r} is too long for a file of a checkpoint in a mounted directory")
        with effect("live.link", StoreUnreachable):
            await self.backend.mkdirs(f"{links_path(self.root)}/{link}/{place.name}")

    async def unlink(self, name: str, place: Place | None = None) -> bool:
        """Remove the links of a file, or only the one to `place`; returns whether there was one."""
        link = link_name(name)
        if link is None:
            return False
        below = f"/{place.name}" if place is not None else ""
        with effect("live.unlink", StoreUnreachable):
            return await self.backend.delete(f"{links_path(self.root)}/{link}{below}", recursive=True)

    async def _require_parent(self, name: str) -> None:
        parent = name.rpartition("/")[0]
        found = await self.find(parent)
        if found is None or not found.entry.directory:
            raise NotFound(f"{parent or 'the directory'} does not exist")
