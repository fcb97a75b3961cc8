"""Committing a checkpoint of a mounted generation. Its files are in the store already.

A failed commit leaves them where they are, for the next try: there is no other copy.
"""

from __future__ import annotations

import posixpath

from recovery.commit.commit import Committer
from recovery.commit.outbox import TakenCheckpoint
from recovery.families.commit_rule import CommitIdentity, CommitRefused, Committed
from recovery.formats.manifest import MANIFEST_FILE
from recovery.formats.tf_files import STATE_FILE
from recovery.mount.backends.backend import Backend, write_small
from recovery.mount.take import place_of
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import CheckpointStore, Clock, Coordination
from supervisor.contract.checkpoint import Verify
from supervisor.contract.errors import BadCheckpoint, NotFound, StoreUnreachable


class MountedCommitter(Committer):
    """A `Committer` for the checkpoints of `MountedWatcher`."""

    def __init__(
        self, backend: Backend, store: CheckpointStore, coordination: Coordination, clock: Clock
    ) -> None:
        # Its checksums come from reading it back: there is no cheaper way to them.
        super().__init__(store, coordination, clock, Verify.READBACK)
        self._backend = backend

    async def commit(
        self, taken: TakenCheckpoint, identity: CommitIdentity, _staging_id: str, quiet_ms: int
    ) -> Committed | CommitRefused:
        """As `Committer.commit`, without its id: the place was chosen when the checkpoint was taken."""
        return await super().commit(taken, identity, place_of(taken).stored.rpartition(".")[2], quiet_ms)

    async def _look_for_left(self, generation: int) -> None:
        """Without effect: the staged files are the program's saves."""

    async def _tidy(self) -> None:
        """Without effect: the files of a failed commit are the only ones."""

    async def _publish(self, taken: TakenCheckpoint, _staging: str, path: str) -> None:
        place = place_of(taken)
        assert path == place.stored, f"{path} is not {place.stored}"
        if await self._backend.info(path) is None:
            await self._describe_in_place(taken, place.staging)
            try:
                with effect("mounted_commit.rename", StoreUnreachable):
                    await self._backend.rename(place.staging, path, overwrite=False)
            except NotFound as error:
                raise BadCheckpoint(f"{place.staging} is gone from the store") from error
        there: dict[str, int] = {}
        for below in sorted({posixpath.dirname(file.name) for file in taken.manifest.files}):
            self._motion()
            for entry in await self._backend.list(f"{path}/{below}".rstrip("/")):
                there[posixpath.join(below, entry.name)] = entry.size
        for file in taken.manifest.files:
            if there.get(file.name) != file.size:
                raise BadCheckpoint(f"{path}/{file.name} has {there.get(file.name)} bytes, not {file.size}")

    async def _describe_in_place(self, taken: TakenCheckpoint, staging: str) -> None:
        """Write the manifest and the state file, even where an earlier try has begun to write them."""
        beside = {MANIFEST_FILE: taken.raw}
        if state := taken.manifest.state:
            beside[STATE_FILE] = state
        for name, data in beside.items():
            with effect("mounted_commit.describe", StoreUnreachable):
                await self._backend.delete(f"{staging}/{name}", recursive=False)
                await write_small(self._backend, f"{staging}/{name}", data)
            self._motion()
