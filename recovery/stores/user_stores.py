"""Stores in HDFS that are reached as the users whose jobs they keep: one process for each cluster and user.

The client library takes the user from the environment of its process. A process of its own also sees to it
that no connection of one user is ever used for another (decision 0059).
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import recovery
from recovery.stores.user_calls import StoreAnswer, StoreCall, receive, send
from supervisor.adapters.files.hadoop import PROXY_USER_VARIABLE, USER_VARIABLE, HadoopSettings
from supervisor.adapters.files.store_uri import StoreUri
from supervisor.contract.boundaries import Moved, StoredDirectory, StoredFile, unwatched
from supervisor.contract.errors import IncompatibleRecord, StoreUnreachable

MOST_USERS = 16
"""Processes at a time. One user more waits until one of them has nothing to do."""
IDLE_S = 300.0
SILENT_S = 60.0
"""A process that gives no sign of life for so long is ended. On a busy machine it takes a while to start."""
END_S = 5.0
_MODULE = "recovery.stores.user_process"
_ROOT = Path(recovery.__file__).resolve().parents[1]


class UserStores:
    """The processes of one daemon, at most MOST_USERS at a time; one without work ends after IDLE_S."""

    def __init__(self, hadoop: HadoopSettings) -> None:
        self._hadoop = replace(hadoop, proxy_users=False)
        self._processes: dict[tuple[str, str], _UserProcess] = {}
        self._idle = asyncio.Event()

    def open(self, place: StoreUri) -> UserStore:
        """The store of a place that names a user; connects to nothing."""
        return UserStore(self, place)

    async def process(self, place: StoreUri) -> _UserProcess:
        """The process for a place's cluster and user, which is then the one that was used last."""
        key = (place.authority, place.user)
        while True:
            living = {name: each for name, each in self._processes.items() if not each.over}
            self._processes = living
            found = living.pop(key, None)
            if found is not None or len(living) < MOST_USERS:
                living[key] = found or _UserProcess(place.user, self._hadoop, self._idle.set)
                return living[key]
            idle = next((each for each in living.values() if not each.busy), None)
            if idle is not None:
                idle.end()
            else:
                self._idle.clear()
                await self._idle.wait()

    async def close(self) -> None:
        """End all processes."""
        for each in self._processes.values():
            await each.close()


class UserStore:
    """`CheckpointStore` of a place, as its user: `HdfsStore` does the work, in that user's process."""

    def __init__(self, users: UserStores, place: StoreUri) -> None:
        self._users = users
        self._place = place

    async def connect(self) -> None:
        """Prove that the cluster takes this daemon for the user. Raises StoreUnreachable, Refused."""
        await self._call("connect")

    async def prepare(self) -> None:
        """See `CheckpointStore`."""
        await self._call("prepare")

    async def upload(self, source: str, path: str, moved: Moved = unwatched) -> StoredFile:
        """See `CheckpointStore`."""
        return _file(await self._call("upload", source, path, moved=moved))

    async def download(self, path: str, target: str, moved: Moved = unwatched) -> StoredFile:
        """See `CheckpointStore`."""
        return _file(await self._call("download", path, target, moved=moved))

    async def write_bytes(self, path: str, data: bytes) -> None:
        """See `CheckpointStore`."""
        await self._call("write_bytes", path, data=data)

    async def read_bytes(self, path: str, limit: int) -> bytes:
        """See `CheckpointStore`."""
        return (await self._call("read_bytes", path, limit=limit))[1]

    async def crc32c(self, path: str, moved: Moved = unwatched) -> int:
        """See `CheckpointStore`."""
        return (await self._call("crc32c", path, moved=moved))[0].crc32c

    async def list(self, path: str) -> StoredDirectory:
        """See `CheckpointStore`."""
        found = (await self._call("list", path))[0].directory
        assert found is not None
        return found

    async def rename(self, source: str, target: str) -> None:
        """See `CheckpointStore`."""
        await self._call("rename", source, target)

    async def delete_tree(self, path: str) -> None:
        """See `CheckpointStore`."""
        await self._call("delete_tree", path)

    async def delete_file(self, path: str) -> None:
        """See `CheckpointStore`."""
        await self._call("delete_file", path)

    async def _call(
        self, method: str, *paths: str, data: bytes = b"", limit: int = 0, moved: Moved = unwatched
    ) -> tuple[StoreAnswer, bytes]:
        process = await self._users.process(self._place)
        call = StoreCall(0, str(self._place), method, paths, limit)
        answer, came = await process.call(call, data, moved)
        answer.check()
        return answer, came


def _file(answered: tuple[StoreAnswer, bytes]) -> StoredFile:
    found = answered[0].file
    assert found is not None
    return found


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A call whose end is awaited."""

    end: asyncio.Future[tuple[StoreAnswer, bytes]]
    moved: Moved


class _UserProcess:
    """The process of one user. `over`: it takes no more calls. `idle` is called when it has no work."""

    def __init__(self, user: str, hadoop: HadoopSettings, idle: Callable[[], None]) -> None:
        self.over = False
        self._user = user
        self._idle = idle
        self._waiting: dict[int, _Waiting] = {}
        self._last = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._listening: asyncio.Task[None] | None = None
        self._started = self._loop.create_task(self._start(hadoop))

    @property
    def busy(self) -> bool:
        """Whether somebody waits for it."""
        return bool(self._waiting)

    async def call(self, call: StoreCall, data: bytes, moved: Moved) -> tuple[StoreAnswer, bytes]:
        """Have it done there, under a number of its own. Raises StoreUnreachable when the process ends."""
        if self._timer is not None:
            self._timer.cancel()
        self._last += 1
        number, waiting = self._last, _Waiting(self._loop.create_future(), moved)
        self._waiting[number] = waiting
        try:
            writer = await asyncio.shield(self._started)
            try:
                send(writer, replace(call, number=number), data)
                return await waiting.end
            except asyncio.CancelledError:
                send(writer, StoreCall(number, call.uri))
                raise
        finally:
            del self._waiting[number]
            if not self._waiting:
                self._timer = self._loop.call_later(IDLE_S, self.end)
                self._idle()

    def end(self) -> None:
        """Hang up, once it has started; the process ends by that."""
        # One that is over already waits for the child's end, which is not to be cut short.
        if self._listening is not None and not self.over:
            self._listening.cancel()
        self.over = True

    async def close(self) -> None:
        """Hang up, and wait for the end."""
        await asyncio.gather(self._started, return_exceptions=True)
        self.end()
        if self._timer is not None:
            self._timer.cancel()
        if self._listening is not None:
            await asyncio.gather(self._listening, return_exceptions=True)

    async def _start(self, hadoop: HadoopSettings) -> asyncio.StreamWriter:
        here, there = socket.socketpair()
        user = {PROXY_USER_VARIABLE: self._user, USER_VARIABLE: self._user}
        env = {**os.environ, **user, "PYTHONPATH": str(_ROOT)}
        try:
            with there:
                child = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", _MODULE, self._user, str(there.fileno())),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    pass_fds=(there.fileno(),),
                    env=env,
                    start_new_session=True,
                )
        except OSError as error:
            here.close()
            self.over = True
            raise StoreUnreachable(
                f"cannot start the process that reaches HDFS as {self._user}: {error}"
            ) from error
        reader, writer = await asyncio.open_connection(sock=here)
        send(writer, hadoop)
        listening = self._loop.create_task(self._listen(reader, writer, child))
        # A task that is cancelled before it has begun would neither hang up nor wait for the child.
        await asyncio.sleep(0)
        self._listening = listening
        if self.over:
            listening.cancel()
        return writer

    async def _listen(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, child: asyncio.subprocess.Process
    ) -> None:
        why = "has ended"
        try:
            while True:
                async with asyncio.timeout(SILENT_S):
                    answer, data = await receive(reader, StoreAnswer)
                waiting = self._waiting.get(answer.number)
                if waiting is None:
                    continue
                if answer.moved:
                    waiting.moved(answer.moved)
                if answer.done and not waiting.end.done():
                    waiting.end.set_result((answer, data))
        except TimeoutError:
            why = f"gave no sign of life for {SILENT_S:g} s"
            with suppress(ProcessLookupError):
                child.kill()
        except (asyncio.IncompleteReadError, ConnectionError, IncompatibleRecord):
            pass  # the next call starts another
        finally:
            self.over = True
            text = f"the process that reaches HDFS as {self._user} {why}; its calls may have taken effect"
            for each in self._waiting.values():
                if not each.end.done():
                    each.end.set_exception(StoreUnreachable(text))
            writer.close()
            await _ended(child)


async def _ended(child: asyncio.subprocess.Process) -> None:
    """It ends by itself once the daemon has hung up."""
    for _ in range(2):
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await child.wait()
                return
        with suppress(ProcessLookupError):
            child.kill()
