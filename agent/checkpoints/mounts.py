"""The mounts of one node: `CHECKPOINT_DIR` of a job with `checkpoint.mode: mounted`.

Each is served by a process of its own, which outlives the agent like the tasks. The wish for a mount is a
file below `PARENT/.mounts`. By it any agent of this machine that shares PARENT, and any successor, finds the
mount, heals it when its process has died or hangs, and ends it when its generation is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import NoReturn

from agent.checkpoints.healing import MountWatch
from agent.host.task_users import TaskUsers
from recovery.commit.outbox import generation_directory
from recovery.io.files import mapped_errors
from recovery.io.trees import remove_tree
from recovery.mount.control import MountState
from recovery.mount.layout import live_path
from recovery.mount.live import LiveDirectory
from recovery.mount.open import open_backend
from recovery.mount.points import points_below, remove_point
from recovery.mount.record import MOUNTS, MountFiles, MountWish, mounts_home, wished
from recovery.stores.open import Stores
from supervisor.adapters.failpoints import effect
from supervisor.adapters.files.hadoop import HadoopSettings
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Clock, Coordination, KeyValue, Logger
from supervisor.contract.desired import JobSwitch
from supervisor.contract.errors import StoreUnreachable, TfSupervisorError

LOOK_S = 0.3
QUIET_S = 2.0
"""Seconds between looks while nothing is mounted. Whoever mounts looks at it until it serves."""
READY_MS = 30_000
_GENERATION = "g"


class NodeMounts(MountWatch):
    """Keeps this node's mounts in the wished state, from `open` until `close`.

    `users`: the users of tasks, if they are others than the agent's.
    """

    def __init__(
        self,
        parent: Path,
        coordination: Coordination,
        stores: Stores,
        hadoop: HadoopSettings,
        clock: Clock,
        sink: Logger,
        users: TaskUsers | None = None,
    ) -> None:
        super().__init__(clock, sink)
        self._users = users
        self._parent = parent
        self._coordination = coordination
        self._stores = stores
        self._hadoop = hadoop
        self._lives: dict[tuple[str, str], LiveDirectory] = {}
        self._ending = asyncio.Lock()

    def live(self, uri: str, generation: int, plan_id: str) -> LiveDirectory:
        """The directory in the store that a generation's mounts show. Raises UserError."""
        path = live_path(generation, plan_id)
        if (uri, path) not in self._lives:
            self._lives[uri, path] = LiveDirectory(open_backend(uri, self._stores), path)
        return self._lives[uri, path]

    async def mount(self, job: str, job_uuid: str, generation: int, uri: str, plan_id: str) -> None:
        """Mount a generation's directory, unless it is mounted. The live directory must exist.

        Raises Refused (this node cannot mount), StoreUnreachable (not mounted in time).
        """
        parent = self._parent / job_uuid
        directory = generation_directory(parent, generation)
        live = live_path(generation, plan_id)
        user = await asyncio.to_thread(self._users.of, job_uuid) if self._users is not None else None
        wish = MountWish(job, job_uuid, generation, uri, live, str(directory), hadoop=self._hadoop, user=user)
        files = MountFiles(parent, generation)
        async with self._ending:
            await asyncio.to_thread(self._healer.wish, files, wish)
        limit_ms = self._clock.now_ms() + READY_MS
        while (state := await asyncio.to_thread(self._healer.heal, files, wish)) is not MountState.SERVING:
            if self._clock.now_ms() > limit_ms:
                raise StoreUnreachable(f"{directory} is not mounted: {state.value}; see {files.log_path}")
            await asyncio.sleep(LOOK_S / 3)

    def failed_ms(self, job_uuid: str, generation: int) -> int:
        """The time at which a mount last failed its programs, by EIO or by its absence; -1: never."""
        return self._healer.failed_ms(MountFiles(self._parent / job_uuid, generation))

    async def end_but(self, job_uuid: str, keep: Collection[int]) -> None:
        """End all mounts of a job except those of these generations. Raises StoreUnreachable, Refused."""
        parent = self._parent / job_uuid
        async with self._ending:
            await asyncio.to_thread(self._end_but, parent, frozenset(keep))
        for key in [each for each in self._lives if not keep]:
            del self._lives[key]

    async def _run(self) -> NoReturn:
        while True:
            wishes = await asyncio.to_thread(self._wished)
            for wish in wishes:
                await self._look_after(wish)
            if self._is_time_to_retire():
                await self._retire()
            await asyncio.sleep(LOOK_S if wishes else QUIET_S)

    async def _look_after(self, wish: MountWish) -> None:
        files = MountFiles(self._parent / wish.job_uuid, wish.generation)
        async with self._ending:
            try:
                if await asyncio.to_thread(files.read_wish) == wish:
                    await asyncio.to_thread(self._healer.heal, files, wish)
            except TfSupervisorError as error:
                self._sink.error(
                    "a checkpoint directory is not mounted; trying again",
                    job=wish.job,
                    directory=wish.directory,
                    reason=str(error),
                )

    async def _retire(self) -> None:
        """End mounts that no generation needs, including those of agents that are gone."""
        for wish in await asyncio.to_thread(self._wished):
            try:
                found = await self._coordination.get(keys.switch(wish.job))
                if _is_needed(wish, found):
                    continue
                async with self._ending:
                    await asyncio.to_thread(self._end, self._parent / wish.job_uuid, wish.generation)
                self._sink.info(
                    "checkpoint directory unmounted: no generation needs it",
                    job=wish.job,
                    directory=wish.directory,
                )
            except TfSupervisorError as error:
                self._sink.warning(
                    "a checkpoint directory is not unmounted yet; trying again",
                    job=wish.job,
                    reason=str(error),
                )

    def _wished(self) -> tuple[MountWish, ...]:
        found: list[MountWish] = []
        for home in sorted((self._parent / MOUNTS).glob("*")):
            found += wished(self._parent / home.name)
        return tuple(found)

    def _end_but(self, parent: Path, keep: frozenset[int]) -> None:
        for generation in {wish.generation for wish in wished(parent)} - keep:
            self._end(parent, generation)
        kept = {generation_directory(parent, generation) for generation in keep}
        for point in points_below(parent):
            if point not in kept and point.name.startswith(_GENERATION):
                remove_point(point)
        if not keep:
            home = mounts_home(parent)
            with mapped_errors(f"remove {home}"), effect("mounts.remove"):
                remove_tree(home)

    def _end(self, parent: Path, generation: int) -> None:
        self._healer.end(MountFiles(parent, generation), generation_directory(parent, generation))


def _is_needed(wish: MountWish, found: KeyValue | None) -> bool:
    """Whether the job's switch, or a plan before it is in force, may still want this generation."""
    if found is None:
        return False
    switch = codec.decode(JobSwitch, found.value)
    return (
        switch.job_uuid == wish.job_uuid and not switch.phase.ended and switch.generation <= wish.generation
    )
