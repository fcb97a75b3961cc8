"""The secrets of a supervisor's configuration, each read anew when a task needs it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from supervisor.adapters.operator_command import run
from supervisor.contract.errors import Refused, Unreachable
from supervisor.contract.secret import MOST_BYTES, Source, value_objection

COMMAND_S = 10.0
MOST_COMMANDS = 8
MOST_FILES = 4
_MOST_READ = MOST_BYTES + len("\r\n")


class SecretSources:
    """Reads secrets. Concurrent requests for one secret share one read.

    Attributes:
        sources: name -> source. A change applies from the next request on.
    """

    def __init__(self, sources: Mapping[str, Source] | None = None) -> None:
        self.sources: Mapping[str, Source] = sources or {}
        self._reading: dict[Source, asyncio.Task[str]] = {}
        self._room = asyncio.Semaphore(MOST_COMMANDS)
        self._threads = ThreadPoolExecutor(MOST_FILES, "secrets")

    def objection(self, name: str, owner: str, group: str) -> str:
        """The reason why a job of this owner and group may not use a secret; empty if it may."""
        source = self.sources.get(name)
        if source is None:
            return f"there is no secret {name!r}; an operator adds it to `secrets` in the supervisors' files"
        if not source.serves(owner, group):
            whose = owner or "nobody known"
            return f"jobs of {whose} may not use the secret {name!r}; an operator adds them to its `allow`"
        return ""

    async def read(self, name: str) -> str:
        """The present value. Raises Refused for an unknown name, Unreachable if the value cannot be read.

        No error contains a part of a value.
        """
        source = self.sources.get(name)
        if source is None:
            raise Refused(f"there is no secret {name!r}")
        task = self._reading.get(source)
        if task is None:
            task = self._reading[source] = asyncio.create_task(self._read(source))
            task.add_done_callback(lambda done: self._over(source, done))
        try:
            return await asyncio.shield(task)
        except Unreachable as error:
            raise Unreachable(f"the secret {name!r} cannot be read now: {error}") from error

    def _over(self, source: Source, task: asyncio.Task[str]) -> None:
        del self._reading[source]
        if not task.cancelled():
            task.exception()  # it was told to whoever still waits

    async def _read(self, source: Source) -> str:
        if source.file:
            # Not by the loop's own threads: a file system that hangs must hold up nothing else.
            raw = await asyncio.get_running_loop().run_in_executor(self._threads, _read_file, source.file)
        else:
            raw = await self._run(source.command)
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        if why := value_objection(raw):
            raise Unreachable(why)
        return raw.decode()

    async def _run(self, command: tuple[str, ...]) -> bytes:
        async with self._room:
            try:
                ended = await run(command, COMMAND_S, kept=_MOST_READ + 1)
            except Refused as error:
                raise Unreachable(str(error)) from error
        if ended.code != 0:
            raise Unreachable(f"{command[0]} has ended with code {ended.code}; run it by hand to see why")
        return ended.output


def _read_file(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise Unreachable(f"others on this machine can read {path}; run: chmod 600 {path}")
            return file.read(_MOST_READ + 1)
    except OSError as error:
        raise Unreachable(f"cannot read {path}: {error.strerror}") from error
