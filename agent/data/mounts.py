"""The data of jobs on this node: directories of this machine as they are, and mounts of those in HDFS.

A mount is served by a process of its own, which outlives the agent. Jobs share one if its source and its
reader, the user of their tasks, are the same: with a user of HDFS for each owner, each owner has its own.
The wish for a mount is a file below `PARENT/.data/.mounts`. Agents that share PARENT share its mounts: one
that no agent has wanted for `UNUSED_MS` is ended by any of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NoReturn

from agent.checkpoints.allowed import Places
from agent.checkpoints.healing import MountWatch
from agent.host.task_users import TaskUsers
from recovery.io.daemon_threads import DaemonThreads
from recovery.io.files import mapped_errors
from recovery.io.trees import remove_tree
from recovery.mount import control
from recovery.mount.control import MountState
from recovery.mount.record import MOUNTS, MountFiles, MountWish, Trouble, wished
from recovery.stores.open import Stores
from supervisor.adapters.failpoints import effect
from supervisor.adapters.files.hadoop import HadoopSettings
from supervisor.adapters.files.store_uri import Scheme, StoreUri, parse_record_uri
from supervisor.contract.boundaries import Clock, Logger
from supervisor.contract.errors import NotFound, Refused, StoreUnreachable, TfSupervisorError, UserError
from supervisor.contract.job.data import FILE, HDFS

DATA = ".data"
"""The directory of the mounts, below the parent of all jobs' directories."""

CALL_MS = 30_000
"""Milliseconds for which a program that reads waits for HDFS. Then its call fails."""

WAIT_S = 10.0
"""Seconds for which a plan waits for an answer before its leader is told that there is none yet."""

LOOK_S = 0.3
QUIET_S = 2.0
UNUSED_MS = 30_000
"""Milliseconds without a wish of any agent after which a mount is ended."""

THREADS = 4
FUSE = Path("/dev/fuse")
_ONLY = 0
"""The number of a mount among those in its directory, which has one."""


class DataMounts(MountWatch):
    """`JobData` of an agent, from `open` until `close`.

    `users`: the users of tasks, if they are others than the agent's. `places`: which owner may read where.
    `contained`: tasks are in containers, which are shown directories of this machine below `stores` alone.

    Attributes:
        mounted: the kinds of places that are mounted. Tasks read the others where they are.
    """

    def __init__(
        self,
        parent: Path,
        stores: Stores,
        hadoop: HadoopSettings,
        clock: Clock,
        sink: Logger,
        users: TaskUsers | None = None,
        places: Places | None = None,
        *,
        contained: bool = False,
    ) -> None:
        super().__init__(clock, sink)
        self.mounted = frozenset({Scheme.HDFS})
        self._home = parent / DATA
        self._stores = stores
        self._hadoop = hadoop
        self._users = users
        self._places = places
        self._contained = contained
        self._threads = DaemonThreads(THREADS, "data")
        self._used: frozenset[tuple[str, str]] = frozenset()
        self._wishes: dict[tuple[str, str], MountWish] = {}
        self._making: list[MountWish] = []
        self._asked_ms: dict[Path, int] = {}
        self._looks: dict[str, asyncio.Future[None]] = {}
        self._stalled: frozenset[tuple[str, str]] = frozenset()
        self._stalled_ms: dict[tuple[str, str], int] = {}
        self._began_ms = clock.now_ms()
        self._changing = asyncio.Lock()

    async def ensure(self, job: str, job_uuid: str, data: Mapping[str, str]) -> None:
        """See `JobData`."""
        for name, uri in data.items():
            try:
                await self._ensure(job, job_uuid, uri)
            except TfSupervisorError as error:
                text = str(error).removeprefix("checkpoint.uri ")
                raise type(error)(f"data.{name}: {text}") from error

    def directories(self, job_uuid: str, data: Mapping[str, str]) -> dict[str, str]:
        """See `JobData`."""
        return {name: self._directory(job_uuid, uri) for name, uri in data.items()}

    def binds(self, job_uuid: str, data: Mapping[str, str]) -> dict[str, str]:
        """See `JobData`."""
        found = {}
        for name, uri in data.items():
            place = parse_record_uri(uri)
            mounted = place.scheme in self.mounted
            found[name] = str(_point(self._wish(job_uuid, uri)).parent) if mounted else place.path
        return found

    def sign(self, job_uuid: str, data: Mapping[str, str], name: str) -> str:
        """See `JobData`."""
        for uri in data.values():
            if parse_record_uri(uri).scheme in self.mounted:
                return f"{self._wish(job_uuid, uri).directory}/{name}"
        return ""

    def keep(self, used: frozenset[tuple[str, str]]) -> None:
        """See `JobData`."""
        self._used = frozenset(each for each in used if parse_record_uri(each[1]).scheme in self.mounted)
        self._wishes = {each: wish for each, wish in self._wishes.items() if each in self._used}
        self._stalled_ms = {each: at_ms for each, at_ms in self._stalled_ms.items() if each in self._used}

    def failed(self, job_uuid: str) -> tuple[int, str]:
        """See `JobData`."""
        latest = (-1, "")
        for each in self._used:
            if each[0] == job_uuid:
                failed_ms = self._healer.failed_ms(_files(self._wish(*each)))
                latest = max(latest, (failed_ms, str(parse_record_uri(each[1]))))
        return latest

    def waited_ms(self, job_uuid: str) -> int:
        """See `JobData`."""
        now_ms = self._clock.now_ms()
        ages_ms = [now_ms - at_ms for (job, _), at_ms in self._stalled_ms.items() if job == job_uuid]
        return min(ages_ms, default=-1)

    async def _ensure(self, job: str, job_uuid: str, uri: str) -> None:
        place = self._stores.place(uri)
        if self._places is not None:
            await self._places.check(job, job_uuid, uri)
        if place.scheme not in self.mounted:
            try:
                async with asyncio.timeout(WAIT_S):
                    await asyncio.shield(self._looking(place))
            except TimeoutError as error:
                raise StoreUnreachable(f"{place.path} gives no answer on this node") from error
            return
        self._stores.open(uri)  # as whom it is reached must agree with this daemon's configuration
        wish = await asyncio.to_thread(self._wish, job_uuid, uri)
        self._making.append(wish)
        try:
            await self._mount(place, wish)
        finally:
            self._making.remove(wish)

    def _looking(self, place: StoreUri) -> asyncio.Future[None]:
        """The one look at a directory of this machine. A directory that hangs keeps one thread, not all."""
        found = self._looks.get(place.path)
        if found is None:
            loop = asyncio.get_running_loop()
            found = loop.run_in_executor(self._threads, self._look_at, place)
            self._looks[place.path] = found
            found.add_done_callback(partial(self._looked, place.path))
        return found

    def _looked(self, path: str, look: asyncio.Future[None]) -> None:
        del self._looks[path]
        if not look.cancelled():
            look.exception()  # for a look that nobody waits for any more

    def _look_at(self, place: StoreUri) -> None:
        _look(place.path)
        if self._contained:
            self._stores.check_links(place)

    async def _mount(self, place: StoreUri, wish: MountWish) -> None:
        files, point = _files(wish), _point(wish)
        async with self._changing:
            await asyncio.to_thread(self._make, point)
            await asyncio.to_thread(self._healer.wish, files, wish)
            if point not in self._asked_ms:
                self._asked_ms[point] = self._clock.now_ms()
                await asyncio.to_thread(files.write_ask, self._asked_ms[point])
        limit_ms = self._clock.now_ms() + int(WAIT_S * 1000)
        while True:
            async with self._changing:
                state = await asyncio.to_thread(self._healer.heal, files, wish)
            answer = await asyncio.to_thread(files.read_answer)
            if answer is not None and answer.asked_ms >= self._asked_ms.get(point, 0):
                serves = state is MountState.SERVING
                if serves or answer.trouble is not Trouble.NONE:
                    self._asked_ms.pop(point, None)
                if answer.trouble is Trouble.ABSENT:
                    raise NotFound(f"{place} {answer.reason}")
                if answer.trouble is Trouble.REFUSED:
                    raise Refused(f"{place} cannot be read: {answer.reason}")
                if answer.trouble is Trouble.AWAY:
                    raise StoreUnreachable(f"{place}: {answer.reason}")
                if serves:
                    return
            if self._clock.now_ms() > limit_ms:
                last = (
                    f"; the last answer was: {answer.reason}" if answer is not None and answer.reason else ""
                )
                raise StoreUnreachable(f"{place}: no answer within {WAIT_S:g} s ({state.value}){last}")
            await asyncio.sleep(LOOK_S / 6)

    async def _run(self) -> NoReturn:
        while True:
            used = self._used
            try:
                self._note_stalled(frozenset([each for each in used if await self._look_after(*each)]))
                if self._is_time_to_retire():
                    await self._retire()
            except TfSupervisorError as error:
                self._sink.error("the data of a job is not looked after; trying again", reason=str(error))
            await asyncio.sleep(LOOK_S if used else QUIET_S)

    def _note_stalled(self, stalled: frozenset[tuple[str, str]]) -> None:
        for job_uuid, uri in stalled - self._stalled:
            self._sink.warning(
                "tasks wait for their data: its store does not answer", job=job_uuid, source=uri
            )
        for job_uuid, uri in self._stalled - stalled:
            self._sink.info("tasks wait for their data no more", job=job_uuid, source=uri)
        self._stalled = stalled

    async def _look_after(self, job_uuid: str, uri: str) -> bool:
        """Heal a mount that tasks of this node use; returns whether one of them waits for its store."""
        wish = await asyncio.to_thread(self._wish, job_uuid, uri)
        files = _files(wish)
        try:
            async with self._changing:
                if await asyncio.to_thread(files.read_wish) != wish:
                    await asyncio.to_thread(self._make, _point(wish))
                    await asyncio.to_thread(self._healer.wish, files, wish)
                state = await asyncio.to_thread(self._healer.heal, files, wish)
            beat = await asyncio.to_thread(files.read_beat)
        except TfSupervisorError as error:
            self._sink.error("the data of a job is not mounted; trying again", source=uri, reason=str(error))
            return False
        stalled = state is MountState.SERVING and beat is not None and beat.stalled
        if stalled:
            self._stalled_ms[job_uuid, uri] = self._clock.now_ms()
        return stalled

    async def _retire(self) -> None:
        """End mounts that no agent has wanted for a while."""
        mine = [self._wishes.get(each) for each in self._used]
        for wish in await asyncio.to_thread(self.wished):
            files, point = _files(wish), _point(wish)
            if wish in mine or wish in self._making:
                continue
            async with self._changing:
                # An agent that has only begun may not know yet what its predecessor's tasks use.
                wanted_ms = await asyncio.to_thread(files.wanted_ms)
                if self._clock.now_ms() - max(wanted_ms or 0, self._began_ms) < UNUSED_MS:
                    continue
                try:
                    await asyncio.to_thread(self._end, files, point)
                except TfSupervisorError as error:
                    self._sink.error(
                        "data is not unmounted; trying again", directory=str(point), reason=str(error)
                    )
                    continue
            self._asked_ms.pop(point, None)
            self._sink.info("the data of a job is unmounted: no task needs it", directory=str(point))

    def _end(self, files: MountFiles, point: Path) -> None:
        self._healer.end(files, point)
        with mapped_errors(f"remove {point.parent}"), effect("data.remove"):
            point.parent.rmdir()
            remove_tree(files.home)

    def wished(self) -> tuple[MountWish, ...]:
        """All mounts below PARENT, of any agent."""
        homes = sorted((self._home / MOUNTS).glob("*"))
        return tuple(wish for home in homes for wish in wished(self._home / home.name))

    def _directory(self, job_uuid: str, uri: str) -> str:
        place = parse_record_uri(uri)
        return self._wish(job_uuid, uri).directory if place.scheme in self.mounted else place.path

    def _make(self, point: Path) -> None:
        """Make the directories above a mount, which tasks of any user must be able to pass."""
        with mapped_errors(f"make {point.parent}"), effect("data.make"):
            point.parent.mkdir(parents=True, exist_ok=True)
            for each in (self._home, point.parent):
                each.chmod(0o711)

    def _wish(self, job_uuid: str, uri: str) -> MountWish:
        """The mount of a source for the user of a job's tasks. Its directory follows from the two."""
        known = self._wishes.get((job_uuid, uri))
        if known is None:
            user = self._users.of(job_uuid) if self._users is not None else None
            key = hashlib.sha256(f"{uri} {user}".encode()).hexdigest()[:16]
            known = MountWish(
                *("", key, _ONLY, uri, "", str(self._home / key / "data")),
                call_ms=CALL_MS,
                hadoop=self._hadoop,
                user=user,
                data=True,
            )
            self._wishes[job_uuid, uri] = known
        return known


def shown_kinds() -> tuple[str, ...]:
    """The kinds of places whose directories this agent can show to tasks."""
    try:
        control.require_fuse()
        can_mount = FUSE.exists()
    except Refused:
        can_mount = False
    return (FILE, HDFS) if can_mount else (FILE,)


def _point(wish: MountWish) -> Path:
    return Path(wish.directory)


def _files(wish: MountWish) -> MountFiles:
    return MountFiles(_point(wish).parent, _ONLY)


def _look(path: str) -> None:
    """Raise NotFound, Refused for a path that is no directory here."""
    with mapped_errors(f"read {path}"):
        try:
            with os.scandir(path) as entries:
                next(entries, None)
        except NotADirectoryError as error:
            raise UserError(f"{path} is a file on this node; name its directory") from error
        except FileNotFoundError as error:
            raise NotFound(f"{path} does not exist on this node") from error
