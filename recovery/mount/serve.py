"""The process that serves one mount: libfuse on its main thread, all work on one loop beside it.

Like the tasks it outlives the agent that started it. It ends when it is unmounted or gets a signal.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import NoReturn

from recovery.mount.backends.backend import Backend
from recovery.mount.filesystem import MountedFiles
from recovery.mount.kernel import MountOptions, Operations, mount
from recovery.mount.live import LiveDirectory
from recovery.mount.open import open_own_backend
from recovery.mount.points import prepare_point, take_away
from recovery.mount.record import MountBeat, MountFiles, MountWish, start_ticks
from supervisor.adapters import failpoints
from supervisor.adapters.clock import BootClock
from supervisor.adapters.telemetry import configure_logging, get_logger
from supervisor.contract.boundaries import Logger
from supervisor.contract.errors import TfSupervisorError

BEAT_S = 0.3
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
        self._main = threading.get_ident()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="work", daemon=True)

    def run(self) -> None:
        """Mount and serve; returns when it is over. Raises OSError, RuntimeError, TfSupervisorError."""
        wish, directory = self._wish, Path(self._wish.directory)
        self._thread.start()
        mounted, backend = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        options = MountOptions(
            source=f"{wish.uri}/{wish.live}".replace(",", "_"),
            answer_s=wish.call_ms / 1000 + 1,
            flush_s=wish.flush_ms / 1000,
            user=wish.user or (os.geteuid(), os.getegid()),
            allow_other=os.geteuid() == 0,
        )
        prepare_point(directory)
        try:
            mount(self._operations(mounted, options), str(directory), options)
        finally:
            self._ready = False
            asyncio.run_coroutine_threadsafe(mounted.finish(), self._loop).result(options.answer_s)
            asyncio.run_coroutine_threadsafe(backend.close(), self._loop).result(options.answer_s)
            self._loop.call_soon_threadsafe(self._loop.stop)
            take_away(directory)

    def _operations(self, mounted: MountedFiles, options: MountOptions) -> Operations:
        return Operations(mounted, self._loop, options, self._now_ready, self._now_failed)

    def _now_ready(self) -> None:
        self._ready = True

    def _now_failed(self) -> None:
        try:
            self._files.write_failed(self._clock.now_ms())
        except TfSupervisorError as error:
            self._sink.warning("cannot note that the store has failed a program", reason=str(error))

    async def _open(self) -> tuple[MountedFiles, Backend]:
        wish = self._wish
        backend = open_own_backend(wish.uri, wish.hadoop, wish.call_ms)
        mounted = MountedFiles(LiveDirectory(backend, wish.live), self._files.spool, self._sink)
        self._tasks = [asyncio.create_task(self._beat()), asyncio.create_task(mounted.keep_flushing())]
        return mounted, backend

    async def _beat(self) -> NoReturn:
        pid = os.getpid()
        ticks, began_ms = start_ticks(pid), self._clock.now_ms()
        while True:
            now_ms = self._clock.now_ms()
            self._files.write_beat(MountBeat(pid, ticks, now_ms, self._wish.live, ready=self._ready))
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
            sink.error("the checkpoint directory is not mounted", directory=wish.directory, reason=str(error))
            return 1
        finally:
            tee.close()
    return 0
