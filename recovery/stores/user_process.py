"""`python -m recovery.stores.user_process USER FD`: reaches HDFS as one user, for one daemon.

The library takes the user from the environment of its process, each time that it connects: so each user has a
process of its own (decision 0059). It ends when the daemon closes the socket, or dies.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from recovery.stores.hdfs_errors import not_as_user
from recovery.stores.open import Stores
from recovery.stores.user_calls import StoreAnswer, StoreCall, failed, receive, send
from supervisor.adapters import failpoints
from supervisor.adapters.files.hadoop import HadoopSettings
from supervisor.adapters.files.store_uri import parse_uri
from supervisor.contract.containment import contained
from supervisor.contract.errors import Refused, UserError

THREADS = 16
BEAT_S = 0.5
_LOG = "error,hdfs_native::hdfs::connection=debug"
_OVERHEARD = b"hdfs_native::hdfs::connection]"
_ENDED = re.compile(
    rb"ResponseHeaderProto \{ call_id: 4294967293, status: Fatal,"
    rb'.*? error_msg: Some\("((?:[^"\\]|\\.)*)"\)'
)
"""The answer to what a client says of itself when it connects: to call -3."""


class UserProcess:
    """Serves the calls of one daemon until it hangs up."""

    def __init__(self, user: str, hadoop: HadoopSettings, writer: asyncio.StreamWriter) -> None:
        self._user = user
        self._writer = writer
        self._stores = Stores(hadoop, ThreadPoolExecutor(THREADS, "store"))
        self._works: dict[int, asyncio.Task[None]] = {}
        self._refused: dict[int, str] = {}
        self._lock = threading.Lock()
        self._moved: dict[int, int] = {}

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Take calls. Raises IncompleteReadError at the end, ConnectionError."""
        beating = asyncio.create_task(self._beat())
        try:
            while True:
                call, data = await receive(reader, StoreCall)
                if call.method:
                    self._works[call.number] = asyncio.create_task(self._serve(call, data))
                elif call.number in self._works:
                    self._works[call.number].cancel()
        finally:
            works = [beating, *self._works.values()]
            for each in works:
                each.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            await self._stores.close()

    def refuse(self, text: str) -> None:
        """A NameNode has ended a connection and said why: no call that waits for it will be answered."""
        for number, work in self._works.items():
            self._refused[number] = text
            work.cancel()

    async def _serve(self, call: StoreCall, data: bytes) -> None:
        errors: list[Exception] = []
        answer, came = StoreAnswer(call.number, done=True), b""
        try:
            with contained(errors.append):
                answer, came = await self._perform(call, data)
        except asyncio.CancelledError:
            if call.number not in self._refused:
                raise
            text = not_as_user(call.uri, self._user, self._refused[call.number])
            errors.append(Refused(text))
        finally:
            self._refused.pop(call.number, None)
            del self._works[call.number]
        for error in errors:
            answer = failed(call.number, error)
        self._tell_moved(call.number)
        send(self._writer, answer, came)

    async def _perform(self, call: StoreCall, data: bytes) -> tuple[StoreAnswer, bytes]:
        number, moved = call.number, partial(self._add, call.number)
        store, done = self._stores.open(call.uri), StoreAnswer(call.number, done=True)
        match call.method, call.paths:
            case "prepare", ():
                await store.prepare()
            case "upload", (source, path):
                return StoreAnswer(number, done=True, file=await store.upload(source, path, moved)), b""
            case "download", (path, target):
                return StoreAnswer(number, done=True, file=await store.download(path, target, moved)), b""
            case "write_bytes", (path,):
                await store.write_bytes(path, data)
            case "read_bytes", (path,):
                return done, await store.read_bytes(path, call.limit)
            case "crc32c", (path,):
                return StoreAnswer(number, done=True, crc32c=await store.crc32c(path, moved)), b""
            case "list", (path,):
                return StoreAnswer(number, done=True, directory=await store.list(path)), b""
            case "rename", (source, target):
                await store.rename(source, target)
            case "delete_tree", (path,):
                await store.delete_tree(path)
            case "delete_file", (path,):
                await store.delete_file(path)
            case "connect", ():
                await self._stores.client(parse_uri(call.uri)).info("/")
            case _:
                raise UserError(f"a store has no {call.method}({', '.join(call.paths)})")
        return done, b""

    def _add(self, number: int, more: int) -> None:
        with self._lock:
            self._moved[number] = self._moved.get(number, 0) + more

    def _tell_moved(self, number: int) -> None:
        with self._lock:
            moved = self._moved.pop(number, 0)
        if moved:
            send(self._writer, StoreAnswer(number, moved))

    async def _beat(self) -> None:
        while True:
            for number in tuple(self._works):
                self._tell_moved(number)
            send(self._writer, StoreAnswer(0))
            await asyncio.sleep(BEAT_S)


async def _serve(user: str, connection: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    hadoop, _ = await receive(reader, HadoopSettings)
    hadoop.put_into_environment()
    os.environ["RUST_LOG"] = _LOG
    process, loop = UserProcess(user, hadoop, writer), asyncio.get_running_loop()
    _overhear(lambda text: loop.call_soon_threadsafe(process.refuse, text))
    await process.run(reader)


def _overhear(tell: Callable[[str], object]) -> None:
    """Tell why a NameNode ends a connection: the library's errors do not say it, and its log does.

    The log goes to standard error. What else comes there is passed on.
    """
    readable, writable = os.pipe()
    shown = os.dup(2)
    os.dup2(writable, 2)
    os.close(writable)
    threading.Thread(target=_listen, args=(readable, shown, tell), daemon=True).start()


def _listen(readable: int, shown: int, tell: Callable[[str], object]) -> None:
    with os.fdopen(readable, "rb") as lines:
        for line in lines:
            if _OVERHEARD not in line:
                os.write(shown, line)
            elif found := _ENDED.search(line):
                tell(found[1].decode(errors="replace").replace('\\"', '"'))


def main(user: str, descriptor: int) -> None:
    """Serve until the daemon hangs up; that alone ends it, and no signal to all processes of a unit."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    failpoints.arm(os.environ)
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        asyncio.run(_serve(user, socket.socket(fileno=descriptor)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
    # Threads that wait for an HDFS which does not answer must not hold the end up.
    os._exit(0)
