"""The process that serves one mount: libfuse on its main thread, all work on one loop beside it.

Like the tasks it outlives the agent that started it. It ends when it is unmounted or gets a signal.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from recovery.mount.backends.backend import Backend
from recovery.mount.data import KEPT_S, DataFiles
from recovery.mount.filesystem import MountedFiles
from recovery.mount.kernel import MountOptions, Operations, ReadOperations, mount, read_further_ahead
from recovery.mount.live import LiveDirectory
from recovery.mount.open import open_own_backend
from recovery.mount.points import prepare_point, take_away
from recovery.mount.record import MountAnswer, MountBeat, MountFiles, MountWish, Trouble, start_ticks
from supervisor.adapters import failpoints
from supervisor.adapters.clock import BootClock
from supervisor.adapters.telemetry import configure_logging, get_logger
from supervisor.contract.boundaries import Logger
from supervisor.contract.containment import contained
from supervisor.contract.errors import TfSupervisorError

BEAT_S = 0.3
ASKED_S = 0.05
ORPHAN_MS = 120_000
"""Milliseconds without an agent after which the mount ends. The tasks are dead long before."""

SERVED_ELSEWHERE = 75
"""Exit status: another process holds the lock."""


class Server:
    """The server of one mount."""

    def __init__(self, files: MountFiles, wish: MountWish, sink: Logger) -> None:
        self._files = files
        self._wish = wish
        self._sink = sink
        self._clock = BootClock()
        self._ready = False
        self._operations: ReadOperations | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._main = threading.get_ident()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="work", daemon=True)

    def run(self) -> None:
        """Mount and serve; returns when it is over. Raises OSError, RuntimeError, TfSupervisorError."""
        wish, directory = self._wish, Path(self._wish.directory)
        self._thread.start()
        try:
            mounted, backend = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        except TfSupervisorError as error:
            asked_ms = self._files.asked_ms()
            if wish.data and asked_ms is not None:
                self._files.write_answer(MountAnswer(asked_ms, Trouble.REFUSED, str(error)))
            raise
        options = MountOptions(
            # libfuse takes a comma for the end of an option, and a backslash before it for its own.
            source=re.sub(r"[,\\]", "_", wish.uri if wish.data else f"{wish.uri}/{wish.live}"),
            answer_s=wish.call_ms / 1000 + 1,
            flush_s=wish.flush_ms / 1000,
            user=wish.user or (os.geteuid(), os.getegid()),
            allow_other=os.geteuid() == 0,
            kept_s=KEPT_S if wish.data else None,
        )
        prepare_point(directory)
        self._operations = self._made(mounted, options)
        try:
            mount(self._operations, str(directory), options)
        finally:
            self._ready = False
            asyncio.run_coroutine_threadsafe(mounted.finish(), self._loop).result(options.answer_s)
            asyncio.run_coroutine_threadsafe(backend.close(), self._loop).result(options.answer_s)
            self._loop.call_soon_threadsafe(self._loop.stop)
            take_away(directory)

    def _made(self, files: MountedFiles | DataFiles, options: MountOptions) -> ReadOperations:
        rest = (self._loop, options, self._now_ready, self._now_failed)
        return ReadOperations(files, *rest) if isinstance(files, DataFiles) else Operations(files, *rest)

    def _now_ready(self) -> None:
        self._ready = True

    def _now_failed(self) -> None:
        try:
            self._files.write_failed(self._clock.now_ms())
        except TfSupervisorError as error:
            self._sink.warning("cannot note that the store has failed a program", reason=str(error))

    async def _open(self) -> tuple[MountedFiles | DataFiles, Backend]:
        wish = self._wish
        if wish.data:
            backend = open_own_backend(wish.uri, wish.hadoop, wish.call_ms, list_ms=wish.call_ms)
            data = DataFiles(backend, self._loop, self._sink)
            self._tasks += [asyncio.create_task(self._beat()), asyncio.create_task(self._answer(data))]
            return data, backend
        backend = open_own_backend(wish.uri, wish.hadoop, wish.call_ms)
        mounted = MountedFiles(LiveDirectory(backend, wish.live), self._files.spool, self._sink)
        self._tasks += [asyncio.create_task(self._beat()), asyncio.create_task(mounted.keep_flushing())]
        return mounted, backend

    async def _answer(self, data: DataFiles) -> NoReturn:
        """Look at the source whenever an agent asks, and let the kernel read ahead once it is mounted."""
        answered_ms, deep = -1, False
        while True:
            asked_ms = self._files.asked_ms()
            if asked_ms is not None and asked_ms > answered_ms:
                answer = await data.answer(asked_ms)
                with contained(lambda error: self._sink.warning("cannot answer an agent", reason=str(error))):
                    self._files.write_answer(answer)
                    answered_ms = asked_ms
            if self._ready and not deep:
                read_further_ahead(self._wish.directory)
                deep = True
            await asyncio.sleep(ASKED_S)

    async def _beat(self) -> NoReturn:
        pid = os.getpid()
        ticks, began_ms = start_ticks(pid), self._clock.now_ms()
        while True:
            now_ms = self._clock.now_ms()
            stalled = self._operations is not None and self._operations.stalled
            beat = MountBeat(pid, ticks, now_ms, self._wish.live, ready=self._ready, stalled=stalled)
            # An agent that misses it replaces this process; where its files are gone, so is the wish.
            with suppress(TfSupervisorError):
                self._files.write_beat(beat)
            orphan = now_ms - max(self._files.wanted_ms() or 0, began_ms) > ORPHAN_MS
            if self._ready and (orphan or self._files.read_wish() is None):
                # To the thread that libfuse waits on: another one would not wake it.
                signal.pthread_kill(self._main, signal.SIGTERM)
            await asyncio.sleep(BEAT_S)


def main(parent: Path, generation: int) -> int:
    """Serve the wish, unless another process does so already; returns the exit status."""
    failpoints.arm(os.environ)
    files = MountFiles(parent, generation)
    with files.lock() as mine:
        if not mine:
            return SERVED_ELSEWHERE
        wish = files.read_wish()
        if wish is None:
            return 0
        wish.hadoop.put_into_environment()
        tee = configure_logging(files.log_path, console=False)
        sink = get_logger("mount", job=wish.job, generation=wish.generation)
        try:
            Server(files, wish, sink).run()
        except (TfSupervisorError, OSError, RuntimeError) as error:
            sink.error("the directory is not mounted", directory=wish.directory, reason=str(error))
            return 1
        finally:
            tee.close()
    return 0
