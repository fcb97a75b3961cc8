"""The saver's node: watch a generation's directory, commit what is finished, drain at the end (rule 7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from agent.boundaries import Fence
from agent.core.instructions import Commit
from recovery.checkpoints.commit_rule import CommitIdentity, Committed
from recovery.checkpoints.manifest import Manifest
from recovery.checkpoints.watch_rule import Idle, Unfinished, Unusable
from recovery.commit import Committer
from recovery.outbox import CheckpointWatcher, SavingJob, TakenCheckpoint, prune_outbox
from recovery.plain_outbox import PlainWatcher
from recovery.stage import read_base
from supervisor.contract.boundaries import CheckpointStore, Clock, Coordination, Sink
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.errors import NotFound, TfSupervisorError

LOOK_S = 0.1
AGAIN_S = 0.3
COMMIT_MS = 60_000
KEPT_COPIES = 2


@dataclass(frozen=True, slots=True)
class SaverSite:
    """Where and as whom a saver works."""

    node: str
    incarnation: str
    parent: Path
    store: CheckpointStore
    coordination: Coordination
    clock: Clock
    sink: Sink
    fence: Fence
    new_id: Callable[[], str]
    newest_step: Callable[[], int]


@dataclass(frozen=True, slots=True)
class _Ending:
    """An attempt of the saver is dead; `clean`: it ended by itself, without an error."""

    clean: bool


class Saver:
    """Commits of one generation, from `start` until `stop`."""

    def __init__(self, commit: Commit, site: SaverSite) -> None:
        self._job = commit
        self._site = site
        self._committer = Committer(site.store, site.coordination, site.clock)
        self._offered = asyncio.Event()
        self._watcher: CheckpointWatcher | PlainWatcher | None = None
        self._copies: list[CheckpointRef] = []
        self._ending: _Ending | None = None
        self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to watch and to commit."""
        loop = asyncio.get_running_loop()
        self._ending = None
        self._tasks = [loop.create_task(self._watch()), loop.create_task(self._commit())]

    def stop(self) -> None:
        """Commit no more. What is interrupted leaves nothing that counts."""
        self._stopped = True
        self._cancel()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def drain(self, timeout_ms: int, *, clean: bool) -> None:
        """The program is dead: commit the newest that it finished, or give up when time is out.

        Its next attempt may save in the same generation: until `stop` it is watched for that.
        """
        deadline_ms = self._site.clock.now_ms() + timeout_ms
        self._ending = _Ending(clean)
        watch, commit = self._tasks
        await asyncio.wait({watch}, timeout=timeout_ms / 1000)
        while self._committer.pending is not None and self._site.clock.now_ms() < deadline_ms:
            if commit.done():
                break  # stopped meanwhile: the generation is over
            await asyncio.wait({commit}, timeout=LOOK_S / 5)
        pending = self._committer.pending
        if pending is not None or not watch.done():
            what = str(pending.manifest.ref) if pending else "the last save"
            self._site.sink.warning("commit given up", job=self._job.job, checkpoint=what)
        self._cancel()
        await asyncio.wait(self._tasks)
        if not self._stopped:
            self.start()

    async def _watch(self) -> None:
        site = self._site
        watcher = self._watcher = self._watcher or await self._new_watcher()
        said = ""
        while True:
            final = self._ending is not None
            try:
                found = await self._look(watcher)
                said = ""
            except TfSupervisorError as error:
                if str(error) != said:
                    said = str(error)
                    site.sink.warning("cannot take checkpoints", job=self._job.job, reason=said)
                found = None
            if isinstance(found, TakenCheckpoint):
                self._offer(found)
                continue
            if isinstance(found, Unusable):
                site.sink.warning("unusable checkpoint", job=self._job.job, reason=str(found))
            if final and isinstance(found, Idle):
                return
            await asyncio.sleep(LOOK_S)

    async def _new_watcher(self) -> CheckpointWatcher | PlainWatcher:
        site, generation = self._site, self._job.generation
        who = SavingJob(self._job.job_uuid, self._job.job, site.node, site.incarnation)
        base = await self._base()
        if not self._job.patterns:
            return CheckpointWatcher(site.parent, who, generation, base, site.clock)
        return PlainWatcher(site.parent, who, generation, base, self._job.patterns, site.clock)

    async def _look(
        self, watcher: CheckpointWatcher | PlainWatcher
    ) -> TakenCheckpoint | Idle | Unfinished | Unusable:
        ending = self._ending
        if isinstance(watcher, CheckpointWatcher):
            return await watcher.look(final=ending is not None)
        clean = ending is not None and ending.clean
        return await watcher.look(self._site.newest_step(), final=ending is not None, clean=clean)

    async def _base(self) -> Manifest | None:
        try:
            return await asyncio.to_thread(read_base, self._site.parent, self._job.generation)
        except NotFound:
            return None

    def _offer(self, taken: TakenCheckpoint) -> None:
        skipped = self._committer.offer(taken)
        if skipped is not None:
            ref = str(skipped.manifest.ref)
            self._site.sink.info("commit skipped for a newer one", job=self._job.job, checkpoint=ref)
        self._offered.set()

    async def _commit(self) -> NoReturn:
        site = self._site
        while True:
            await self._offered.wait()
            self._offered.clear()
            pending = self._committer.pending
            if pending is None:
                continue
            identity = CommitIdentity(site.node, site.incarnation, site.fence())
            deadline_ms = site.clock.now_ms() + COMMIT_MS
            began_ms = site.clock.now_ms()
            try:
                outcome = await self._committer.run_once(identity, site.new_id()[:16], deadline_ms)
            except TfSupervisorError as error:
                self._refused(pending, str(error))
            else:
                if isinstance(outcome, Committed):
                    await self._committed(outcome.record.ref, site.clock.now_ms() - began_ms)
                elif outcome is not None:
                    self._refused(pending, f"{outcome.reason.value}: {outcome.detail}")
            if self._committer.pending is not None:
                await asyncio.sleep(AGAIN_S)
                self._offered.set()

    def _refused(self, taken: TakenCheckpoint, reason: str) -> None:
        ref = str(taken.manifest.ref)
        self._site.sink.warning("not committed", job=self._job.job, checkpoint=ref, reason=reason)

    async def _committed(self, ref: CheckpointRef, took_ms: int) -> None:
        self._site.sink.info("committed", job=self._job.job, checkpoint=str(ref), took_ms=took_ms)
        self._copies = [*self._copies, ref][-KEPT_COPIES:]
        waiting = self._committer.pending
        keep = [*self._copies, *([waiting.manifest.ref] if waiting is not None else [])]
        await asyncio.to_thread(prune_outbox, self._site.parent, keep)
