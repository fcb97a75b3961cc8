"""A model in a store: its index, the files of its versions, and the renames by which they come and go."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from recovery.formats.meta_graph import SAVED_MODEL
from recovery.models.index import (
    INDEX,
    KEPT,
    MAX_INDEX_BYTES,
    REMOVED,
    ModelIndex,
    ModelVersion,
    VersionState,
    digest_text,
    encode_index,
    index_name,
    is_index,
    is_version,
    model_path,
    parse_index,
    record_path,
)
from recovery.models.repair import repaired, unknown_version
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import CheckpointStore, Moved, unwatched
from supervisor.contract.errors import (
    Conflict,
    IncompatibleRecord,
    NewerRelease,
    NotFound,
    StoreUnreachable,
    UserError,
)

Change = Callable[[ModelIndex, tuple[str, ...]], ModelIndex]
"""The next index, of the newest one and the names of directories in the model's place."""

TRIES = 8
KEPT_INDEXES = 2
_MENDED = "`supervisorctl models JOB repair` writes it anew from what is in the store"


class ModelStore:
    """One model. Every method raises StoreUnreachable, Refused; reading also IncompatibleRecord.

    Attributes:
        blocked: published versions whose place in the store something else has taken.
    """

    def __init__(self, store: CheckpointStore, model: str) -> None:
        self._store = store
        self._model = model
        self._place = model_path(model)
        self._index, self._kept, self._removed = (record_path(model, each) for each in (INDEX, KEPT, REMOVED))
        self.blocked: tuple[int, ...] = ()

    async def read(self) -> ModelIndex:
        """The newest index; an empty one if there is none."""
        for _ in range(TRIES):
            names = await self._indexes()
            if not names:
                return ModelIndex(model=self._model)
            with suppress(NotFound):  # a newer one was written meanwhile, and this one removed
                return await self._parse(names[-1])
        raise StoreUnreachable(f"{self._index} changes too fast to be read")

    async def repair(self, job: str, now_ms: int) -> ModelIndex:
        """Write the index anew where the newest one is broken; what servers see stays as it is.

        Raises Conflict where it is not, or where somebody else writes it; NewerRelease.
        """
        names = await self._indexes()
        serial = int(names[-1].rpartition("/")[2]) if names else 0
        base = ModelIndex(model=self._model, job=job)
        for path in reversed(names):
            try:
                base = await self._parse(path)
                break
            except NewerRelease:
                raise
            except IncompatibleRecord:
                continue
        if names and base.serial == serial:
            raise Conflict(f"the index of model {self._model} can be read, so there is nothing to repair")
        seen, kept = await self.visible(), (await self._store.list(self._kept)).directories
        known = {each.version for each in base.versions}
        unknown = [await self._unknown(number, serial, now_ms) for number in sorted(seen - known)]
        found = [each for each in unknown if each is not None]
        raw = encode_index(repaired(base, serial, seen, kept, found))
        with effect("models.repair", StoreUnreachable):
            await self._store.write_bytes(f"{self._index}/{index_name(serial + 1)}", raw)
        return await self.settle()

    async def _unknown(self, number: int, serial: int, now_ms: int) -> ModelVersion | None:
        """The version in a directory of the model's place; None if what is there is no model."""
        path = f"{self._place}/{number}"
        sizes = await self._sizes(path)
        if SAVED_MODEL not in sizes:
            return None
        files = {name: (size, await self._store.crc32c(f"{path}/{name}")) for name, size in sizes.items()}
        digest = hashlib.sha256(digest_text(files)).hexdigest()
        return unknown_version(number, serial, digest, sum(sizes.values()), now_ms)

    async def _parse(self, path: str) -> ModelIndex:
        """Read an index. Raises IncompatibleRecord, NotFound."""
        try:
            raw = await self._store.read_bytes(path, MAX_INDEX_BYTES)
            index = await asyncio.to_thread(parse_index, raw)
        except NewerRelease:
            raise
        except (IncompatibleRecord, UserError) as error:
            raise IncompatibleRecord(f"{path}: {error}; {_MENDED}") from error
        if (index.model, f"{self._index}/{index_name(index.serial)}") != (self._model, path):
            raise IncompatibleRecord(f"{path} is the index of another model, or of another time; {_MENDED}")
        return index

    async def update(self, change: Change) -> ModelIndex:
        """Write the index as `change` makes it of the newest one; nothing if it changes nothing."""
        for _ in range(TRIES):
            before = await self.read()
            seen = (await self._store.list(self._place)).directories
            changed = change(before, seen)
            if changed == before:
                return before
            after = replace(changed, serial=before.serial + 1)
            raw = await asyncio.to_thread(encode_index, after)
            try:
                with effect("models.index", StoreUnreachable):
                    await self._store.write_bytes(f"{self._index}/{index_name(after.serial)}", raw)
            except Conflict:
                continue
            for path in (await self._indexes())[:-KEPT_INDEXES]:
                with effect("models.remove_index", StoreUnreachable):
                    await self._store.delete_file(path)
            return after
        raise StoreUnreachable(f"{self._index} is written by somebody else all the time")

    async def put(
        self, name: str, directory: Path, files: Mapping[str, tuple[int, int]], moved: Moved = unwatched
    ) -> None:
        """Upload the files of a version, path -> (size, crc32c), and read them back; no server sees them."""
        target = f"{self._kept}/{name}"
        for path, (size, crc) in sorted(files.items()):
            with effect("models.upload", StoreUnreachable):
                stored = await self._store.upload(str(directory / path), f"{target}/{path}", moved)
            found = await self._store.crc32c(f"{target}/{path}", moved)
            if (stored.size, found) != (size, crc):
                raise StoreUnreachable(f"{target}/{path} is not what was sent")
        if await self._sizes(target) != {path: size for path, (size, _) in files.items()}:
            raise StoreUnreachable(f"{target} has lost a part of what was sent there")

    async def settle(self) -> ModelIndex:
        """Bring each version to where the index has it, newly published ones first; returns the index."""
        index = await self.read()
        for _ in range(TRIES):
            await self._move(index)
            newest = await self.read()
            if newest.serial == index.serial:
                return index
            # A version that was moved may belong elsewhere by now.
            index = newest
        raise StoreUnreachable(f"{self._index} changes too fast to be followed")

    async def visible(self) -> frozenset[int]:
        """The versions that a model server sees now."""
        names = (await self._store.list(self._place)).directories
        return frozenset(int(name) for name in names if is_version(name))

    async def sweep(self, mine: Callable[[str], bool]) -> None:
        """Remove the files of versions that never got into the index, if their ids are `mine`."""
        named = {each.id for each in (await self.read()).versions}
        for name in (await self._store.list(self._kept)).directories:
            if name not in named and mine(name):
                with effect("models.sweep", StoreUnreachable):
                    await self._store.delete_tree(f"{self._kept}/{name}")

    async def _move(self, index: ModelIndex) -> None:
        there = set((await self._store.list(self._place)).directories)
        kept = set((await self._store.list(self._kept)).directories)
        blocked = []
        for each in index.published:
            if each.id in kept:
                try:
                    await self._rename(f"{self._kept}/{each.id}", self._path(each))
                except Conflict:
                    blocked.append(each.version)
        self.blocked = tuple(blocked)
        for each in index.versions:
            # A directory with its number is another one's while its own is elsewhere.
            visible = str(each.version) in there and each.id not in kept
            if each.state is VersionState.WITHDRAWN and visible:
                await self._rename(self._path(each), f"{self._kept}/{each.id}")
            elif each.state is VersionState.REMOVED and (visible or each.id in kept):
                source = self._path(each) if visible else f"{self._kept}/{each.id}"
                await self._rename(source, f"{self._removed}/{each.id}")
        for name in (await self._store.list(self._removed)).directories:
            with effect("models.delete", StoreUnreachable):
                await self._store.delete_tree(f"{self._removed}/{name}")

    async def _rename(self, source: str, target: str) -> None:
        """Move one version; whoever else may have done it. Raises Conflict."""
        with suppress(NotFound), effect("models.move", StoreUnreachable):
            await self._store.rename(source, target)

    def _path(self, version: ModelVersion) -> str:
        return f"{self._place}/{version.version}"

    async def _indexes(self) -> list[str]:
        files = (await self._store.list(self._index)).files
        return sorted(each.path for each in files if is_index(each.path.rpartition("/")[2]))

    async def _sizes(self, root: str) -> dict[str, int]:
        found, waiting = dict[str, int](), [root]
        while waiting:
            path = waiting.pop()
            listed = await self._store.list(path)
            found |= {file.path.removeprefix(f"{root}/"): file.size for file in listed.files}
            waiting += [f"{path}/{name}" for name in listed.directories]
        return found
