"""The saver's node: it watches a generation's directory, commits finished saves, and drains at the end (rule
7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from agent.boundaries import Fence
from agent.checkpoints.local_copies import LocalCopies
from agent.core.instructions import Commit
from agent.retry_log import Trouble, require_sound
from recovery.commit.bundle_outbox import CheckpointWatcher
from recovery.commit.commit import Committer
from recovery.commit.outbox import SavingJob, TakenCheckpoint
from recovery.commit.plain_outbox import PlainWatcher
from recovery.commit.stage import read_base
from recovery.families.commit_rule import CommitIdentity, CommitRefused, Committed
from recovery.families.watch_rule import Idle, Unfinished, Unusable
from recovery.formats.manifest import Manifest
from recovery.mount.commit import MountedCommitter
from recovery.mount.take import MountedGeneration, MountedWatcher
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import CheckpointStore, Clock, Coordination, Logger
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord
from supervisor.contract.errors import BadCheckpoint, InvariantBroken, NotFound, OutOfSpace, TfSupervisorError
from supervisor.contract.observed import SaverBeat, UnusableSave

LOOK_S = 0.1
MOUNTED_LOOK_S = 0.3
"""Interval in seconds of looks at a live directory: each makes two calls to the NameNode."""

POLL_S = 0.02
AGAIN_S = 0.3
COMMIT_QUIET_MS = 60_000
MAX_UNUSABLE = 8
MAX_PATH, MAX_REASON = 200, 400
REFUSED_MS = (1_000, 60_000)
"""The first and the longest pause while the store refuses, in ms: each try may write up to a quota."""

Watcher = CheckpointWatcher | PlainWatcher | MountedWatcher


@dataclass(frozen=True, slots=True)
class SaverSite:
    """The directory, store and identity of a saver.

    `mounted` is set for a generation whose directory is a mount.
    """

    node: str
    incarnation: str
    parent: Path
    store: CheckpointStore
    coordination: Coordination
    clock: Clock
    sink: Logger
    fence: Fence
    new_id: Callable[[], str]
    newest_step: Callable[[], int]
    copies: LocalCopies
    mounted: MountedGeneration | None = None
    threads: Executor | None = None
    tensorflow: Callable[[], str] = lambda: ""
    took: Callable[[int, int], None] = lambda _, __: None


@dataclass(frozen=True, slots=True)
class _Ending:
    """The end of an attempt of the saver. `clean`: it ended by itself, without an error."""

    clean: bool


class Saver:
    """Commits of one generation, from `start` until `stop`."""

    def __init__(self, commit: Commit, site: SaverSite) -> None:
        self._job = commit
        self._site = site
        self._committer = _committer(commit, site)
        self._offered = asyncio.Event()
        self._offered_ms = 0
        self._seen_ms: dict[CheckpointRef, int] = {}
        self._waiting_ms: int | None = None
        self._skipped = 0
        self._last_skipped: CheckpointRef | None = None
        self._unusable: tuple[UnusableSave, ...] = ()
        self._useless: UnusableSave | None = None
        self._put_off = ("", "")
        self._taking = Trouble("checkpoints cannot be taken", commit.job, site.clock, site.sink)
        self._committing = Trouble(
            "checkpoints cannot be committed", commit.job, site.clock, site.sink, REFUSED_MS
        )
        self._watcher: Watcher | None = None
        self._ending: _Ending | None = None
        self._stopped = False
        self._look_began_ms: int | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._draining = asyncio.Lock()

    def start(self) -> None:
        """Begin to watch and to commit."""
        loop = asyncio.get_running_loop()
        self._ending = None
        self._press(pressing=False)
        if self._committer.pending is not None:
            self._offered.set()
        self._tasks = [loop.create_task(self._watch()), loop.create_task(self._commit())]

    def stop(self) -> None:
        """Stop committing. An interrupted commit has no effect."""
        self._stopped = True
        self._cancel()

    @property
    def mounted(self) -> bool:
        """Whether the pending checkpoint is in the store already, and not on this node."""
        return self._site.mounted is not None

    def beat(self) -> SaverBeat:
        """The state of commits. Raises the unexpected error that ended the background work."""
        require_sound(self._tasks)
        now_ms = self._site.clock.now_ms()
        pending = self._committer.pending
        trouble = self._committing if self._committing.text else self._taking
        return SaverBeat(
            job=self._job.job,
            generation=self._job.generation,
            pending=pending.manifest.ref if pending is not None else None,
            waiting_ms=now_ms - self._waiting_ms if self._waiting_ms is not None else -1,
            still_ms=self._still_ms(),
            skipped=self._skipped,
            last_skipped=self._last_skipped,
            trouble=trouble.text,
            trouble_ms=now_ms - trouble.since_ms if trouble.text else -1,
            unusable=self._unusable,
        )

    def _still_ms(self) -> int:
        """Milliseconds since taking or committing last made progress; -1 if neither runs."""
        watcher, began_ms = self._watcher, self._look_began_ms
        found = [self._committer.still_ms] if self._committer.still_ms >= 0 else []
        if began_ms is not None and watcher is not None:
            moved_ms = watcher.motion.moved_ms
            found += [self._site.clock.now_ms() - moved_ms] if moved_ms >= began_ms else []
        return min(found, default=-1)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def settle(self, timeout_ms: int) -> None:
        """Wait for pending commits, at most `timeout_ms`; the log has the result."""
        deadline_ms = self._site.clock.now_ms() + timeout_ms
        self._press(pressing=True)
        while self._committer.pending is not None and self._site.clock.now_ms() < deadline_ms:
            await asyncio.wait(self._tasks, timeout=POLL_S)
        self._warn_of_pending()

    @property
    def pending(self) -> TakenCheckpoint | None:
        """The newest finished save that is not committed."""
        return self._committer.pending

    async def drain(self, timeout_ms: int, *, clean: bool) -> str:
        """After the programs' end: commit the newest finished save, or give up when the time is out.

        Returns the save that is not committed, for people; empty for none. A running commit may go on after
        `timeout_ms` while it makes progress. An evaluator may still run and save, so the watch goes on until
        `stop`. The next drain waits for this one: each drain begins to watch and to commit anew.
        """
        began_ms = self._site.clock.now_ms()
        async with self._draining:
            return await self._drain(began_ms, timeout_ms, clean=clean)

    async def _drain(self, began_ms: int, timeout_ms: int, *, clean: bool) -> str:
        self._ending = _Ending(clean)
        self._press(pressing=True)
        watch, commit = self._tasks
        while (not watch.done() or self._committer.pending is not None) and not commit.done():
            late = self._site.clock.now_ms() - began_ms >= timeout_ms
            if late and not 0 <= self._still_ms() < timeout_ms:
                break
            await asyncio.wait([task for task in self._tasks if not task.done()], timeout=POLL_S)
        if not watch.done():
            self._site.sink.warning(
                "the time for the last commit is over: the last save may be lost", job=self._job.job
            )
        self._warn_of_pending()
        left = self._left(looked=watch.done() and not self._stopped)
        self._cancel()
        await asyncio.wait(self._tasks)
        if not self._stopped:
            await self._committer.tidy(self._job.generation)
        if not self._stopped:
            self.start()
        return left

    def _left(self, *, looked: bool) -> str:
        pending = self._committer.pending
        if pending is not None:
            return f"{pending.manifest.ref} ({self._committing.text or 'the time for its commit was over'})"
        if looked and self._useless is not None:
            return f"{self._useless.path} ({self._useless.reason})"
        return "" if looked else f"the last save ({self._taking.text or 'the time to look for it was over'})"

    def _warn_of_pending(self) -> None:
        pending = self._committer.pending
        if pending is not None:
            self._site.sink.warning(
                "the time for a commit is over: the save stays on this node",
                job=self._job.job,
                checkpoint=str(pending.manifest.ref),
                kept=str(pending.directory),
            )

    def _press(self, *, pressing: bool) -> None:
        self._taking.press(pressing=pressing)
        self._committing.press(pressing=pressing)

    async def _watch(self) -> None:
        while True:
            final, began_ms = self._ending is not None, self._site.clock.now_ms()
            try:
                watcher = self._watcher = self._watcher or await self._new_watcher()
                found = await self._timed_look(watcher)
            except TfSupervisorError as error:
                self._waits(self._site.clock.now_ms())
                await self._taking.failed(error)
                if isinstance(error, OutOfSpace):
                    await self._make_room()
                continue
            self._taking.over()
            if isinstance(found, TakenCheckpoint):
                self._seen_ms[found.manifest.ref] = began_ms
                await self._offer(found)
                continue
            if isinstance(found, Unusable):
                self._cannot_use(found)
            if final and isinstance(found, Idle):
                return
            await asyncio.sleep(LOOK_S if self._site.mounted is None else MOUNTED_LOOK_S)

    def _cannot_use(self, found: Unusable) -> None:
        """Add an unusable save to the beat; the leader reports it to the user."""
        self._site.sink.warning(
            "a save cannot be committed", job=self._job.job, checkpoint=found.prefix, reason=found.reason
        )
        one = UnusableSave(found.prefix[:MAX_PATH], found.reason[:MAX_REASON])
        others = (each for each in self._unusable if each.path != one.path)
        self._unusable = (*others, one)[-MAX_UNUSABLE:]
        if self._ending is None or self._ending.clean:
            # Else a kill may have cut it off: then it is no finished save.
            self._useless = one

    async def _timed_look(self, watcher: Watcher) -> TakenCheckpoint | Idle | Unfinished | Unusable:
        self._look_began_ms = self._site.clock.now_ms()
        try:
            return await self._look(watcher)
        finally:
            self._look_began_ms = None

    async def _make_room(self) -> None:
        try:
            if await self._site.copies.make_room():
                self._site.sink.warning("local copies of checkpoints removed: the disk is full")
        except TfSupervisorError as error:
            self._site.sink.debug("local copies of checkpoints cannot be removed", reason=str(error))

    async def _new_watcher(self) -> Watcher:
        site, job, generation = self._site, self._job, self._job.generation
        who = SavingJob(job.job_uuid, job.job, site.node, site.incarnation, site.tensorflow, job.adopt)
        last = await self._last_step()
        if site.mounted is not None:
            return MountedWatcher(site.mounted, who, site.clock, site.new_id, last)
        base = await base_of(site.parent, generation)
        return watcher_of(job, site.parent, who, base, site.clock, site.threads, last)

    async def _last_step(self) -> int:
        """The highest step with a record in this generation; -1 without any. No later save may get it."""
        listing = await self._site.coordination.list(keys.commits_of(self._job.job))
        records = [codec.decode(CommitRecord, entry.value) for entry in listing.entries]
        mine = [each.ref.step for each in records if each.ref.generation == self._job.generation]
        return max(mine, default=-1)

    async def _look(self, watcher: Watcher) -> TakenCheckpoint | Idle | Unfinished | Unusable:
        ending, step = self._ending, self._site.newest_step()
        if isinstance(watcher, CheckpointWatcher | MountedWatcher):
            return await watcher.look(step, final=ending is not None)
        return await watcher.look(step, final=ending is not None, clean=ending is not None and ending.clean)

    async def _offer(self, taken: TakenCheckpoint) -> None:
        good = taken.manifest.bundles
        self._unusable = tuple(each for each in self._unusable if each.path not in good)
        self._useless = None
        self._offered_ms = self._site.clock.now_ms()
        self._waits(self._offered_ms)
        self._committer.offer(taken)
        self._offered.set()
        await self._let_skipped_go()

    def _waits(self, since_ms: int) -> None:
        if self._waiting_ms is None:
            self._waiting_ms = since_ms

    async def _let_skipped_go(self) -> None:
        """Remove skipped saves, which will never be committed: during a long outage of the store they would
        fill the disk.
        """
        for ref in self._committer.take_skipped():
            self._skipped += 1
            self._last_skipped = ref
            self._seen_ms.pop(ref, None)
            self._site.sink.info(
                "checkpoint not committed: a newer one is ready",
                job=self._job.job,
                checkpoint=str(ref),
                so_far=self._skipped,
            )
            try:
                await self._site.copies.drop(self._job.job_uuid, ref)
            except TfSupervisorError as error:
                self._site.sink.warning(
                    "old local copies of checkpoints cannot be removed", job=self._job.job, reason=str(error)
                )

    async def _commit(self) -> NoReturn:
        while True:
            await self._offered.wait()
            self._offered.clear()
            pending = self._committer.pending
            if pending is None:
                continue
            await self._try(pending)
            await self._let_skipped_go()
            if self._committer.pending is not None:
                self._offered.set()

    async def _try(self, pending: TakenCheckpoint) -> None:
        """Try one commit; after a failure, wait for the pause before the next try."""
        site = self._site
        identity = CommitIdentity(site.node, site.incarnation, site.fence(), self._job.saver.member)
        began_ms = site.clock.now_ms()
        try:
            outcome = await self._committer.run_once(identity, site.new_id()[:16], COMMIT_QUIET_MS)
        except InvariantBroken:
            raise
        except BadCheckpoint as error:
            await self._damaged(pending, error)
            return
        except TfSupervisorError as error:
            await self._let_skipped_go()
            await self._committing.failed(error)
            return
        self._committing.over()
        if isinstance(outcome, Committed):
            await self._committed(outcome.record, site.clock.now_ms() - began_ms)
        elif outcome is not None:
            await self._refused(pending, outcome)

    async def _damaged(self, taken: TakenCheckpoint, error: BadCheckpoint) -> None:
        """Drop a taken copy that no longer matches its manifest. The program's own files are taken anew."""
        self._waiting_ms = None
        reason = f"what was taken of it was damaged before it was committed: {error}"
        self._cannot_use(Unusable(taken.manifest.prefix, reason))
        if self._site.mounted is not None:
            return
        try:
            await self._site.copies.drop(self._job.job_uuid, taken.manifest.ref)
        except TfSupervisorError as failure:
            self._site.sink.warning(
                "old local copies of checkpoints cannot be removed", job=self._job.job, reason=str(failure)
            )
        else:
            self._watcher = None

    async def _refused(self, taken: TakenCheckpoint, outcome: CommitRefused) -> None:
        reason = f"{outcome.reason.value}: {outcome.detail}"
        ref = str(taken.manifest.ref)
        if outcome.reason.may_pass:
            if (ref, reason) != self._put_off:
                self._site.sink.info(
                    "checkpoint not committed yet; trying again",
                    job=self._job.job,
                    checkpoint=ref,
                    reason=reason,
                )
            self._put_off = (ref, reason)
            await asyncio.sleep(AGAIN_S)
            return
        self._waiting_ms = None
        self._site.sink.warning("checkpoint not committed", job=self._job.job, checkpoint=ref, reason=reason)

    async def _committed(self, record: CommitRecord, took_ms: int) -> None:
        site, ref = self._site, record.ref
        self._waiting_ms = self._offered_ms if self._committer.pending is not None else None
        site.sink.info("checkpoint committed", job=self._job.job, checkpoint=str(ref), took_ms=took_ms)
        site.took(took_ms, self._seen_ms.pop(ref, 0))
        try:
            await site.copies.committed(self._job.job_uuid, ref, record.size)
        except TfSupervisorError as error:
            site.sink.warning(
                "old local copies of checkpoints cannot be removed", job=self._job.job, reason=str(error)
            )


async def base_of(parent: Path, generation: int) -> Manifest | None:
    """The base that is staged in a generation's directory; None without one."""
    try:
        return await asyncio.to_thread(read_base, parent, generation)
    except NotFound:
        return None


def watcher_of(
    commit: Commit,
    parent: Path,
    who: SavingJob,
    base: Manifest | None,
    clock: Clock,
    threads: Executor | None,
    last: int = -1,
) -> CheckpointWatcher | PlainWatcher:
    """The watcher of a directory that is no mount. `last`: the highest step of this generation's commits."""
    if not commit.patterns:
        return CheckpointWatcher(parent, who, commit.generation, base, clock, threads, last)
    return PlainWatcher(parent, who, commit.generation, base, commit.patterns, clock, threads, last)


async def newest_save(
    watcher: CheckpointWatcher | PlainWatcher, step: int, *, clean: bool
) -> TakenCheckpoint | None:
    """After the program's end: take all that is finished; returns the newest. See `PlainWatcher.look`."""
    newest: TakenCheckpoint | None = None
    while True:
        if isinstance(watcher, PlainWatcher):
            found = await watcher.look(step, final=True, clean=clean)
        else:
            found = await watcher.look(step, final=True)
        if isinstance(found, Idle):
            return newest
        if isinstance(found, TakenCheckpoint):
            newest = found
        elif isinstance(found, Unfinished):
            await asyncio.sleep(LOOK_S)


def _committer(commit: Commit, site: SaverSite) -> Committer:
    if site.mounted is None:
        return Committer(site.store, site.coordination, site.clock, commit.verify, site.threads)
    return MountedCommitter(site.mounted.live.backend, site.store, site.coordination, site.clock)
