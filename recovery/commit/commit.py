"""Committing (rule 7): stage, verify, write the manifest, rename, look again, and make one transaction.

An interrupted commit leaves in the store either a directory under `.staging` or a complete directory that no
record names. Neither can be restored, and `recovery.retention.collect` removes both later.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import PurePosixPath

from recovery.commit.outbox import TakenCheckpoint
from recovery.commit.upload import Publisher, Uploader
from recovery.families.commit_rule import (
    CommitIdentity,
    CommitRefused,
    Committed,
    Proceed,
    RefusalReason,
    decide,
    reads,
    view_of,
)
from recovery.formats.manifest import MANIFEST_FILE, crc32c_of_bytes
from recovery.formats.paths import STAGING, staging_path, stored_path, stored_ref
from recovery.formats.tf_files import STATE_FILE
from recovery.io.deadline import Motion, while_moving
from recovery.io.parallel import in_parallel
from recovery.retention.collect import delete_stored
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import CheckpointStore, Clock, Coordination
from supervisor.contract.checkpoint import CheckpointRef, Verify
from supervisor.contract.errors import (
    BadCheckpoint,
    CoordinationUnreachable,
    InvariantBroken,
    Refused,
    StoreUnreachable,
    TfSupervisorError,
)

RETRY_S = 0.05
TIDY_MS = 10_000


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
        verify: Verify = Verify.READBACK,
        executor: Executor | None = None,
        publisher: Publisher | None = None,
    ) -> None:
        self._store = store
        self._coordination = coordination
        self._clock = clock
        self._verify = verify
        self._publisher = publisher or Uploader(store, verify, executor)
        self._pending: TakenCheckpoint | None = None
        self._in_hand: CheckpointRef | None = None
        self._skipped: list[CheckpointRef] = []
        self._leftovers: set[str] = set()
        self._looked = False
        self._motion = Motion(clock)

    @property
    def pending(self) -> TakenCheckpoint | None:
        """The checkpoint that waits to be committed, or is being committed."""
        return self._pending

    @property
    def still_ms(self) -> int:
        """Milliseconds since the running commit last made progress; -1 if none runs."""
        return self._clock.now_ms() - self._motion.moved_ms if self._in_hand is not None else -1

    def take_skipped(self) -> tuple[CheckpointRef, ...]:
        """The checkpoints that were given up for a newer one since the last call."""
        skipped, self._skipped = self._skipped, []
        return tuple(skipped)

    def offer(self, taken: TakenCheckpoint) -> None:
        """Make `taken` the next to commit, instead of an older one that waits."""
        waiting = self._pending
        if waiting is not None and waiting.manifest.ref > taken.manifest.ref:
            self._skipped.append(taken.manifest.ref)
            return
        self._pending = taken
        if waiting is not None and waiting.manifest.ref not in (taken.manifest.ref, self._in_hand):
            self._skipped.append(waiting.manifest.ref)

    async def run_once(
        self, identity: CommitIdentity, staging_id: str, quiet_ms: int
    ) -> Committed | CommitRefused | None:
        """Commit the pending checkpoint; None if there is none. Raises as `commit` does.

        It stays pending after an error or a refusal that may pass. Raises InvariantBroken if a commit runs
        already.
        """
        if self._in_hand is not None:
            # What is staged would be taken for what an earlier one has left, and be deleted under it.
            raise InvariantBroken(f"a commit begins while that of {self._in_hand} goes on")
        taken = self._pending
        if taken is None:
            return None
        self._in_hand = taken.manifest.ref
        try:
            outcome = await self.commit(taken, identity, staging_id, quiet_ms)
        except BadCheckpoint:
            self._forget(taken)
            raise
        except TfSupervisorError:
            self._give_way(taken)
            raise
        finally:
            self._in_hand = None
        if isinstance(outcome, CommitRefused) and outcome.reason.may_pass:
            self._give_way(taken)
        else:
            self._forget(taken)
        return outcome

    async def commit(
        self, taken: TakenCheckpoint, identity: CommitIdentity, staging_id: str, quiet_ms: int
    ) -> Committed | CommitRefused:
        """Commit `taken`. Safe to repeat after any error, with a new id.

        Args:
            taken: the checkpoint to commit.
            identity: the committing agent; compared in the transaction.
            staging_id: random, never used before; part of the names in the store.
            quiet_ms: milliseconds without progress after which it gives up.

        Raises:
            StoreUnreachable, CoordinationUnreachable: it may or may not be committed; ask again.
            Refused, CoordinationFull: the store or etcd does not accept it.
            BadCheckpoint: the node's own copy is damaged.
        """
        manifest, motion = taken.manifest, self._motion
        path = stored_path(manifest.ref, staging_id)
        crc = crc32c_of_bytes(taken.raw)
        wanted = reads(manifest, identity)
        async with while_moving(motion, self._clock, quiet_ms, f"the commit of {manifest.ref}"):
            await self._look_for_left(manifest.ref.generation)
            await self._tidy()
            found = await self._coordination.txn((), wanted)
            decision = decide(view_of(found.reads), manifest, identity, path, crc, self._verify)
            if not isinstance(decision, Proceed):
                return decision
            await self._publish(taken, staging_path(manifest.ref, staging_id), path)
            while isinstance(decision, Proceed):
                motion()
                try:
                    with effect("commit.record", CoordinationUnreachable):
                        result = await self._coordination.txn(decision.compares, decision.puts, wanted)
                except CoordinationUnreachable:
                    # It may have happened. Sending it again is safe: it compares the record's absence.
                    await asyncio.sleep(RETRY_S)
                    continue
                if result.succeeded:
                    return Committed(decision.record)
                decision = decide(view_of(result.reads), manifest, identity, path, crc, self._verify)
            if _is_leftover(decision, path):
                # What was sent before compared what has changed since: no record will ever name it.
                self._leftovers.add(path)
            return decision

    async def tidy(self, generation: int) -> None:
        """Delete from the store the files that failed commits of this generation have left, as far as
        possible now.
        """
        with suppress(TfSupervisorError):
            async with while_moving(Motion(self._clock), self._clock, TIDY_MS, "deleting leftovers"):
                await self._look_for_left(generation)
                await self._tidy()

    def _forget(self, taken: TakenCheckpoint) -> None:
        if self._pending is taken:
            self._pending = None

    def _give_way(self, taken: TakenCheckpoint) -> None:
        """After a failure: drop this checkpoint if a newer one came meanwhile."""
        if self._pending is not taken:
            self._skipped.append(taken.manifest.ref)

    async def _look_for_left(self, generation: int) -> None:
        """Once: find directories that an agent left when it died during a commit.

        Only the node of the generation's saver commits in it, and one agent at a time, so no other commit
        uses them.
        """
        if not self._looked:
            names = (await self._store.list(STAGING)).directories
            refs = ((name, stored_ref(name)) for name in names)
            self._leftovers.update(
                f"{STAGING}/{name}" for name, ref in refs if ref is not None and ref.generation == generation
            )
            self._looked = True

    async def _tidy(self) -> None:
        for leftover in sorted(self._leftovers):
            with suppress(TfSupervisorError):
                await delete_stored(self._store, leftover)
                self._leftovers.discard(leftover)

    async def _publish(self, taken: TakenCheckpoint, staging: str, path: str) -> None:
        """Make it complete at `path`. Files that an error leaves are deleted at the next try."""
        self._leftovers.update((staging, path))
        try:
            with effect("commit.publish", StoreUnreachable):
                await self._publisher.publish(taken, staging, self._motion)
            await self._describe(taken, staging)
            with effect("commit.rename", StoreUnreachable):
                await self._store.rename(staging, path)
            await self._look_over(taken, path)
        except Refused:
            # No space or no right: half a checkpoint must not take the place of what could still be written.
            await self.tidy(taken.manifest.ref.generation)
            raise
        # From here on a record may name it.
        self._leftovers -= {staging, path}

    async def _describe(self, taken: TakenCheckpoint, staging: str) -> None:
        """Write the manifest, and the state file by which TensorFlow finds the checkpoint there."""
        beside = {MANIFEST_FILE: taken.raw}
        if state := taken.manifest.state:
            beside[STATE_FILE] = state

        async def write(name: str) -> None:
            with effect(f"commit.write_{name.partition('.')[0]}", StoreUnreachable):
                await self._store.write_bytes(f"{staging}/{name}", beside[name])

        await in_parallel(write, beside, len(beside))
        self._motion()

    async def _look_over(self, taken: TakenCheckpoint, path: str) -> None:
        """Check that all files are still at `path`: a cleaning of the store may have removed them
        meanwhile.
        """
        missing = {file.name: file.size for file in taken.manifest.files} | {MANIFEST_FILE: len(taken.raw)}
        for parent in {PurePosixPath(name).parent for name in missing}:
            for file in (await self._store.list(str(PurePosixPath(path, parent)))).files:
                name = str(PurePosixPath(file.path).relative_to(path))
                if missing.get(name) == file.size:
                    del missing[name]
            self._motion()
        if missing:
            names = ", ".join(sorted(missing))
            raise StoreUnreachable(f"{path} has lost what was sent there, or a part of it: {names}")


def _is_leftover(decision: Committed | CommitRefused, path: str) -> bool:
    """Whether no record names `path`.

    A record that was withdrawn meanwhile may name it: then it may still be needed.
    """
    if isinstance(decision, CommitRefused):
        return decision.reason is not RefusalReason.WITHDRAWN
    return decision.record.path != path
