"""Files of a mounted generation on their way into a checkpoint: new files are moved, others are copied.

No file is moved out of a directory that a record may name. A link to the new place is made before a file is
moved, so that after any interruption a program finds its save under each name.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping

import google_crc32c

from recovery.families.families import Save
from recovery.formats.manifest import ManifestFile, hex_crc32c
from recovery.io.parallel import in_parallel
from recovery.mount.backends.backend import once, read_small, write_small
from recovery.mount.layout import Place
from recovery.mount.live import LiveDirectory
from recovery.mount.sight import LiveEyes
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Moved
from supervisor.contract.errors import NotFound, StoreUnreachable

FILES_AT_ONCE = 8
COPY_BYTES = 4 << 20


class Staging:
    """The file operations of one watcher. `eyes` have looked before; `moved` is called for copied bytes.

    Raises, from any call: StoreUnreachable, Refused. The caller repeats the call after another look.
    """

    def __init__(self, live: LiveDirectory, eyes: LiveEyes, moved: Moved) -> None:
        self._live = live
        self._backend = live.backend
        self._eyes = eyes
        self._moved = moved
        self._crossed: dict[str, Place] = {}

    async def bring(self, save: Save, place: Place) -> bool:
        """Move a save to `place`, out of its program's reach; False if the program has changed it since."""
        await self._make(place, save.files.names)
        links = self._eyes.links
        copied = {
            name for name in save.files.names if name in links and links[name].place.unmoved != place.unmoved
        }
        marks = {mark.name: mark for mark in save.marks}

        async def bring(name: str) -> None:
            if name in copied:
                await self._copy(links[name].place, name, place)
                await self._live.link(name, place)
                await self._live.unlink(name, links[name].place)
            elif name not in links:
                await self._move(name, place)

        async def look(name: str) -> None:
            entry = await self._backend.info(f"{place.staging}/{name}")
            now = (entry.size, entry.mtime_ms * 1_000_000) if entry is not None else None
            if now != (marks[name].size, marks[name].mtime_ns):
                self._crossed[name] = place

        try:
            await in_parallel(bring, save.files.names, FILES_AT_ONCE)
        except NotFound:
            self._eyes.forget()
            return False
        await in_parallel(look, [name for name in save.files.names if name not in copied], FILES_AT_ONCE)
        if self._crossed:
            await self._link_crossed()
            self._eyes.forget()
            return False
        self._eyes.know(save.files.names, place)
        return True

    async def link_again(self) -> None:
        """Link files again that a program wrote at the very moment in which an older file of that name was
        moved.

        The program's mount has removed the link of the older file, as it must, after the new one had been
        moved.
        """
        await self._link_crossed()
        self._crossed = {}

    async def carry(self, files: Collection[ManifestFile], old: Place, place: Place) -> bool:
        """Copy files from `old` to `place`; False if one is gone or has changed."""

        async def carry(file: ManifestFile) -> None:
            if await self._copy(old, file.name, place) != (file.size, file.crc32c):
                raise NotFound(f"{file.name} is not what was taken")

        if any(self._shows(file.name, place) for file in files):
            # A torn save of this family got there with another one, when a try before was interrupted.
            return False
        await self._make(place, [file.name for file in files])
        try:
            await in_parallel(carry, files, FILES_AT_ONCE)
        except NotFound:
            return False
        return True

    async def write(self, states: Mapping[str, bytes], place: Place) -> None:
        """Write small files of our own into `place`, even where an earlier try has begun to."""
        await self._make(place, states.keys())
        for name, data in states.items():
            path = f"{place.staging}/{name}"
            with effect("mounted_take.write", StoreUnreachable):
                await self._backend.delete(path, recursive=False)
                await write_small(self._backend, path, data)

    async def settle(self, names: Collection[str], old: Place, place: Place, *, copied: bool) -> None:
        """Bring these files from `old` to `place`, and lead the program's links there.

        `copied`: they are in `place` already, and stay in `old` too.
        """
        linked = await self._live.linked() if old != place else frozenset()
        shown = {name for name in names if name in linked and self._shows(name, old)}

        async def settle(name: str) -> None:
            if name in shown:
                await self._live.link(name, place)
            if not copied and old.staged != place.staged:
                await self._rename(f"{old.staging}/{name}", f"{place.staging}/{name}")
            if name in shown:
                await self._live.unlink(name, old)

        if old != place:
            await self._make(place, names)
            await in_parallel(settle, names, FILES_AT_ONCE)
            self._eyes.know(shown, place)

    async def read(self, place: Place, name: str, limit: int) -> bytes:
        """The beginning of a file in `place`. Raises NotFound."""
        for directory in place.directories:
            try:
                return await read_small(self._backend, f"{directory}/{name}", limit)
            except NotFound:
                continue
        raise NotFound(f"{name} is not in {place.stored}")

    def _shows(self, name: str, place: Place) -> bool:
        link = self._eyes.links.get(name)
        return link is not None and link.place.unmoved == place.unmoved

    async def _make(self, place: Place, names: Collection[str]) -> None:
        for below in sorted({posixpath.dirname(name) for name in names}):
            with effect("mounted_take.make", StoreUnreachable):
                await self._backend.mkdirs(f"{place.staging}/{below}".rstrip("/"))

    async def _move(self, name: str, place: Place) -> None:
        if name in self._eyes.covered:
            # What it leads to is older than the file that is here.
            await self._live.unlink(name)
        # The link first: whoever looks meanwhile finds the file or the link.
        await self._live.link(name, place)
        try:
            await self._rename(self._live.path(name), f"{place.staging}/{name}")
        except NotFound:
            await self._live.unlink(name)
            raise

    async def _rename(self, old: str, new: str) -> None:
        """Move a file. Safe to repeat after a move whose answer was lost. Raises NotFound."""
        try:
            with effect("mounted_take.rename", StoreUnreachable):
                await self._backend.rename(old, new, overwrite=True)
        except NotFound:
            if await self._backend.info(new) is None:
                raise

    async def _copy(self, source: Place, name: str, place: Place) -> tuple[int, str]:
        """Copy a file; returns its size and checksum. Raises NotFound."""
        target = f"{place.staging}/{name}"
        with effect("mounted_take.clear", StoreUnreachable):
            await self._backend.delete(target, recursive=False)
        for directory in source.directories:
            try:
                reader = await self._backend.open(f"{directory}/{name}")
                break
            except NotFound:
                continue
        else:
            raise NotFound(f"{name} is not in {source.stored}")
        size, crc = 0, 0
        with effect("mounted_take.copy", StoreUnreachable):
            writer = await self._backend.create(target)
        try:
            while piece := await reader.read(size, COPY_BYTES):
                await writer.copy(once(piece))
                size, crc = size + len(piece), google_crc32c.extend(crc, piece)
                self._moved(len(piece))
            with effect("mounted_take.close", StoreUnreachable):
                await writer.close()
        except BaseException:
            await writer.abandon()
            raise
        finally:
            await reader.close()
        return size, hex_crc32c(crc)

    async def _link_crossed(self) -> None:
        for name, place in self._crossed.items():
            if await self._live.find(name) is None:
                await self._live.link(name, place)
