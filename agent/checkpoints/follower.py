"""Fetching each new commit to a node that runs an evaluator or a TensorBoard without the saver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from agent.core.instructions import FollowCommits
from agent.retry_log import require_sound
from recovery.commit.follow import Follower, saved_here
from recovery.commit.outbox import generation_directory
from recovery.commit.stage import Stager
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Clock, Coordination, Logger
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.errors import BadCheckpoint, TfSupervisorError

LOOK_S = 0.5
BRING_QUIET_MS = 60_000


class CommitFollower:
    """Fetches the commits of one generation, from `start` until `stop`."""

    def __init__(
        self,
        what: FollowCommits,
        parent: Path,
        stager: Stager,
        coordination: Coordination,
        clock: Clock,
        sink: Logger,
        new_id: Callable[[], str],
    ) -> None:
        self._what = what
        self._parent = parent
        self._follower = Follower(stager, parent, what.generation)
        self._coordination = coordination
        self._clock = clock
        self._sink = sink
        self._new_id = new_id
        self._last: CheckpointRef | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, make: Callable[[], None]) -> None:
        """Begin to fetch commits, after `make` has made their directory; `make` blocks."""
        self._task = asyncio.get_running_loop().create_task(self._run(make))

    def stop(self) -> None:
        """Stop fetching."""
        if self._task is not None:
            self._task.cancel()

    def check(self) -> None:
        """Raise the unexpected error that ended the background work."""
        if self._task is not None:
            require_sound((self._task,))

    async def _run(self, make: Callable[[], None]) -> NoReturn:
        try:
            await asyncio.to_thread(make)
        except TfSupervisorError as error:
            self._sink.error(
                "the directory for a follower's checkpoints cannot be made",
                job=self._what.job,
                reason=str(error),
            )
        if not self._what.brings:
            await asyncio.Event().wait()
        directory = generation_directory(self._parent, self._what.generation)
        if await asyncio.to_thread(_holds_anything, directory):
            # It was staged when the generation was prepared; one that has moved here finds nothing yet.
            self._last = self._what.base
        said = ""
        while True:
            try:
                await self._look()
                said = ""
            except TfSupervisorError as error:
                if str(error) != said:
                    said = str(error)
                    self._sink.warning(
                        "a new checkpoint is not copied to this node yet; trying again",
                        job=self._what.job,
                        reason=said,
                    )
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        listing = await self._coordination.list(keys.commits_of(self._what.job))
        records = [codec.decode(CommitRecord, entry.value) for entry in listing.entries]
        wanted = [record for record in records if self._is_new(record)]
        if not wanted or await asyncio.to_thread(saved_here, self._parent, self._what.generation):
            return
        newest = max(wanted, key=lambda record: record.ref)
        try:
            await self._follower.bring(newest, f"follow-{self._new_id()[:8]}", BRING_QUIET_MS)
        except BadCheckpoint:
            # Reading it again and again would not mend it; the next one comes.
            self._last = newest.ref
            raise
        self._last = newest.ref
        self._sink.info(
            "a new checkpoint was copied to this node", job=self._what.job, checkpoint=str(newest.ref)
        )

    def _is_new(self, record: CommitRecord) -> bool:
        what = self._what
        mine = record.job_uuid == what.job_uuid and record.state is CommitState.COMMITTED
        ours = record.ref.generation == what.generation or record.ref == what.base
        return mine and ours and (self._last is None or record.ref > self._last)


def _holds_anything(directory: Path) -> bool:
    try:
        return any(directory.iterdir())
    except OSError:
        return False
