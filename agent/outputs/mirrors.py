"""Copies of the outputs of all tasks of a job, on each node with a task that reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from concurrent.futures import Executor
from functools import partial

from agent.boundaries import StoreOpener
from agent.outputs.directories import OutputFiles
from agent.retry_log import Tell, Trouble, raise_it, require_sound
from recovery.io.deadline import Motion, while_moving
from recovery.io.files import mapped_errors
from recovery.outputs.bring import Mirror
from recovery.outputs.note import OutputState
from recovery.outputs.stored import members_of
from supervisor.contract.boundaries import Clock, Logger
from supervisor.contract.containment import contained
from supervisor.contract.errors import TfSupervisorError

LOOK_S = 5.0
QUIET_MS = 20_000


class Mirrors:
    """One mirror for all reading tasks of a job on this node.

    Two mirrors would replace each other's growing files, and a reader with an open file would see no more of
    it.

    Attributes:
        look_s: interval of looks at the store.
    """

    def __init__(
        self, files: OutputFiles, opener: StoreOpener, clock: Clock, sink: Logger, threads: Executor | None
    ) -> None:
        self.look_s = LOOK_S
        self._files = files
        self._opener = opener
        self._clock = clock
        self._sink = sink
        self._threads = threads
        self._works: dict[str, asyncio.Task[None]] = {}

    def begin(self, state: OutputState) -> None:
        """Keep copies up to date for a reading task, from now on."""
        before = self._works.get(state.job_uuid)
        if before is None or before.done() or before.cancelling():
            work = self._follow(state.job, state.job_uuid, state.uri, before)
            self._works[state.job_uuid] = asyncio.get_running_loop().create_task(work)

    def keep(self, states: Collection[OutputState]) -> None:
        """End mirrors without a reading task. `states`: those of all tasks of this node."""
        read = {state.job_uuid for state in states if state.follow and not state.over}
        for uuid in self._works.keys() - read:
            self._works[uuid].cancel()
            if self._works[uuid].done():
                del self._works[uuid]

    def check(self, tell: Tell = raise_it) -> None:
        """Report each mirror that has ended by an error, once."""
        for job_uuid in [uuid for uuid, work in self._works.items() if work.done()]:
            with contained(partial(tell, job_uuid)):
                require_sound((self._works.pop(job_uuid),))

    async def close(self) -> None:
        """End all mirrors."""
        for work in self._works.values():
            work.cancel()
        await asyncio.gather(*self._works.values(), return_exceptions=True)

    async def _follow(self, job: str, uuid: str, uri: str, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        files, target, mirror = self._files, self._files.copies(uuid), None
        what = f"reading outputs of {job}"
        trouble = Trouble("outputs of other tasks are not copied to this node", job, self._clock, self._sink)
        while True:
            try:
                store = self._opener(uri)
                if mirror is None:
                    with mapped_errors(f"keep copies of outputs below {target}"):
                        await asyncio.to_thread(partial(files.make_copies, uuid, empty=True))
                    user = await asyncio.to_thread(files.user, uuid)
                    mirror = Mirror(store, uuid, target, files.notes(uuid), self._threads, user)
                motion = Motion(self._clock)
                async with while_moving(motion, self._clock, QUIET_MS, what):
                    await mirror.look(await members_of(store, uuid), motion)
                trouble.over()
            except TfSupervisorError as error:
                await trouble.failed(error)
            await asyncio.sleep(self.look_s)
