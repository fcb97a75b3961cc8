"""Committing a checkpoint (rule 7): stage, verify, manifest, rename, and one transaction that makes it count.

Whatever is interrupted here leaves in the store either a directory under `.staging` or a complete directory
that no record names; both are collected later (`recovery.collect`), neither can be restored.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from contextlib import suppress
from enum import Enum

from recovery import files
from recovery.checkpoints.commit_rule import (
    CommitIdentity,
    CommitRefused,
    Committed,
    Proceed,
    RefusalReason,
    decide,
    reads,
    view_of,
)
from recovery.checkpoints.manifest import MANIFEST_FILE, ManifestFile, crc32c_of_bytes, hex_crc32c
from recovery.checkpoints.paths import staging_path, stored_path
from recovery.deadline import until
from recovery.files import mapped_errors
from recovery.outbox import TakenCheckpoint
from supervisor.contract.boundaries import CheckpointStore, Clock, Coordination
from supervisor.contract.errors import (
    BadCheckpoint,
    CoordinationUnreachable,
    StoreUnreachable,
    TfSupervisorError,
)

RETRY_S = 0.05


class Verify(Enum):
    """How an upload is checked: its size, or also its checksum by reading it back."""

    SIZES = "sizes"
    READ_BACK = "read back"


class Committer:
    """Commits the newest checkpoint that it was offered. It has no tasks of its own: call `run_once`.

    One commit at a time. A save that comes while the store is busy replaces the one that waits, so that a
    slow store makes commits rarer, never later.
    """

    def __init__(
        self,
        store: CheckpointStore,
        coordination: Coordination,
        clock: Clock,
        verify: Verify = Verify.READ_BACK,
        executor: Executor | None = None,
    ) -> None:
        self._store = store
        self._coordination = coordination
        self._clock = clock
        self._verify = verify
        self._executor = executor
        self._pending: TakenCheckpoint | None = None
        self._leftovers: set[str] = set()

    @property
    def pending(self) -> TakenCheckpoint | None:
        """What waits to be committed, or is being committed."""
        return self._pending

    def offer(self, taken: TakenCheckpoint) -> TakenCheckpoint | None:
        """Make `taken` the next to commit; returns the older one that is skipped for it, if any."""
        waiting = self._pending
        if waiting is not None and waiting.manifest.ref > taken.manifest.ref:
            return taken
        self._pending = taken
        return None if waiting is None or waiting.manifest.ref == taken.manifest.ref else waiting

    async def run_once(
        self, identity: CommitIdentity, staging_id: str, deadline_ms: int
    ) -> Committed | CommitRefused | None:
        """Commit what is pending; None when nothing is. Raises as `commit` does.

        It stays pending after an error that may pass, and after a refusal because the switch is closing.
        """
        taken = self._pending
        if taken is None:
            return None
        try:
            outcome = await self.commit(taken, identity, staging_id, deadline_ms)
        except BadCheckpoint:
            self._forget(taken)
            raise
        if isinstance(outcome, Committed) or outcome.reason is not RefusalReason.CLOSING:
            self._forget(taken)
        return outcome

    async def commit(
        self, taken: TakenCheckpoint, identity: CommitIdentity, staging_id: str, deadline_ms: int
    ) -> Committed | CommitRefused:
        """Commit `taken`, by `deadline_ms` on the clock. Safe to repeat after any error, with a new id.

        Args:
            taken: what to commit.
            identity: who commits; compared in the transaction.
            staging_id: random, never used before; part of the names in the store.
            deadline_ms: when to give up.

        Raises:
            StoreUnreachable, CoordinationUnreachable: it may or may not be committed; ask again.
            Refused, CoordinationFull: the store or etcd does not accept it.
            BadCheckpoint: the node's own copy is damaged.
        """
        manifest = taken.manifest
        path = stored_path(manifest.ref, staging_id)
        crc = crc32c_of_bytes(taken.raw)
        wanted = reads(manifest, identity)
        async with until(self._clock, deadline_ms, f"the commit of {manifest.ref}"):
            await self._tidy()
            found = await self._coordination.txn((), wanted)
            decision = decide(view_of(found.reads), manifest, identity, path, crc)
            if isinstance(decision, Proceed):
                await self._publish(taken, staging_path(self._clock.wall_ms(), staging_id), path)
            while isinstance(decision, Proceed):
                try:
                    result = await self._coordination.txn(decision.compares, decision.puts, wanted)
                except CoordinationUnreachable:
                    # It may have happened. Sending it again is safe: it compares the record's absence.
                    await asyncio.sleep(RETRY_S)
                    continue
                if result.succeeded:
                    return Committed(decision.record)
                decision = decide(view_of(result.reads), manifest, identity, path, crc)
            return decision

    def _forget(self, taken: TakenCheckpoint) -> None:
        if self._pending is taken:
            self._pending = None

    async def _tidy(self) -> None:
        for leftover in sorted(self._leftovers):
            with suppress(TfSupervisorError):
                await self._store.delete_tree(leftover)
                self._leftovers.discard(leftover)

    async def _publish(self, taken: TakenCheckpoint, staging: str, path: str) -> None:
        self._leftovers.add(staging)
        for file in taken.manifest.files:
            await self._upload(taken, file, f"{staging}/{file.name}")
        await self._store.write_bytes(f"{staging}/{MANIFEST_FILE}", taken.raw)
        await self._store.rename(staging, path)
        self._leftovers.discard(staging)

    async def _upload(self, taken: TakenCheckpoint, file: ManifestFile, target: str) -> None:
        source = taken.directory / file.name
        stored = await self._store.upload(str(source), target)
        if stored.size == file.size and (
            self._verify is Verify.SIZES or hex_crc32c(await self._store.crc32c(target)) == file.crc32c
        ):
            return
        with mapped_errors(f"read {source}"):
            loop = asyncio.get_running_loop()
            size, crc = await loop.run_in_executor(self._executor, files.crc32c_of_file, source)
        if (size, hex_crc32c(crc)) != (file.size, file.crc32c):
            raise BadCheckpoint(f"{source} has changed since it was taken")
        raise StoreUnreachable(f"{target} reads back other bytes than were written")
