"""The agent's own small API: a task's output, for a supervisor to pass on (service `Node`)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

from agent.logs import AttemptFiles
from supervisor.contract.errors import NotFound, UserError
from supervisor.contract.ids import TaskId
from supervisor.contract.views import TailChunk, TailRequest
from supervisor.wire.rpc import Guard, Server, stream

SERVICE = "tfsup.v1.Node"
CHUNK_BYTES = 64 * 1024
LONGEST_TAIL_BYTES = 64 << 20
POLL_S = 0.1
SIGN_OF_LIFE_POLLS = 10


class NodeApi:
    """Serves `Tail` from this node's files until closed."""

    def __init__(self, listen: str, guard: Guard, files: AttemptFiles) -> None:
        self._files = files
        handler = stream(TailRequest, guard, self._tail)
        self._server = Server(listen, guard, {SERVICE: {"Tail": handler}})

    async def open(self) -> None:
        """Listen. Raises Conflict, UserError."""
        await self._server.start()

    async def close(self) -> None:
        """End all streams."""
        await self._server.close()

    async def _tail(self, request: TailRequest) -> AsyncIterator[TailChunk]:
        task = TaskId.parse(request.task)
        if not 0 <= request.last_bytes <= LONGEST_TAIL_BYTES:
            raise UserError(f"last_bytes must be 0 to {LONGEST_TAIL_BYTES}")
        current = self._files.newest(task)
        if current is None:
            raise NotFound(f"{task} has not run on this node, or its output has been removed")
        reader = _OutputReader(*current, request.last_bytes)
        quiet = 0
        while True:
            chunk = await asyncio.to_thread(reader.read)
            if chunk:
                quiet = 0
                yield TailChunk(reader.attempt, base64.b64encode(chunk).decode())
                continue
            latest = self._files.newest(task)
            if latest is not None and latest[0] != reader.attempt:
                reader = _OutputReader(*latest, LONGEST_TAIL_BYTES)
                continue
            if not request.follow:
                return
            quiet += 1
            if quiet % SIGN_OF_LIFE_POLLS == 0:
                yield TailChunk(reader.attempt, "")
            await asyncio.sleep(POLL_S)


class _OutputReader:
    """Reads an attempt's output from `last_bytes` before its end on, across rotations."""

    def __init__(self, attempt: str, path: Path, last_bytes: int) -> None:
        self.attempt = attempt
        self._path = path
        self._back = last_bytes
        self._inode = 0
        self._offset = 0

    def read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                status = self._path.stat()
                if self._inode == 0:
                    self._offset = max(0, status.st_size - self._back)
                elif status.st_ino != self._inode:
                    self._offset = 0
                self._inode = status.st_ino
                file.seek(self._offset)
                data = file.read(CHUNK_BYTES)
        except FileNotFoundError:
            return b""
        self._offset += len(data)
        return data
