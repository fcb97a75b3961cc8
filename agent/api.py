"""The agent's own API (`Node`): output of tasks, signals, commands and saves, called by a supervisor for
its clients.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncGenerator
from itertools import chain
from pathlib import Path

from agent.logs import reading
from agent.logs.task_logs import AttemptFiles
from agent.operate import Operator
from supervisor.contract.errors import NotFound, UserError
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.views.jobs import (
    SAVE_S,
    Accepted,
    ExecChunk,
    ExecRequest,
    OutputList,
    OutputPlace,
    OutputsRequest,
    ReadRequest,
    SaveRequest,
    SignalRequest,
    TailChunk,
)
from supervisor.wire.audit import Auditor
from supervisor.wire.gate import Policy
from supervisor.wire.rpc import Guard, Method, Server, stream, unary

SERVICE = "tfsup.v1.Node"
LONGEST_TAIL_BYTES = 1 << 40
LONGEST_WAIT_MS = 2_000
POLL_S = 0.05
_UUID = re.compile(r"[0-9A-Za-z-]{1,64}")


class NodeApi:
    """Serves this node's outputs and, with an operator, signals and commands, until closed."""

    def __init__(
        self,
        listen: str,
        guard: Guard,
        files: AttemptFiles,
        operator: Operator,
        auditor: Auditor | None = None,
        policy: Policy | None = None,
    ) -> None:
        self._files = files
        self._operator = operator
        methods: dict[str, Method] = {
            "Outputs": unary(OutputsRequest, self._outputs),
            "Read": unary(ReadRequest, self._read),
            "Signal": unary(SignalRequest, self._signal),
            "Exec": stream(ExecRequest, self._exec),
            "Save": unary(SaveRequest, self._save),
        }
        self._server = Server(listen, guard, {SERVICE: methods}, policy, auditor)

    async def open(self) -> None:
        """Listen. Raises Conflict, UserError."""
        await self._server.start()

    async def close(self) -> None:
        """End all streams."""
        await self._server.close()

    async def _outputs(self, request: OutputsRequest) -> OutputList:
        task = TaskId.parse(request.task)
        found = await asyncio.to_thread(self._files.on_disk, _checked(request.job_uuid), task)
        return OutputList(tuple(str(attempt) for attempt in found))

    async def _read(self, request: ReadRequest) -> TailChunk:
        attempt = AttemptId.parse(request.after.attempt)
        if not 0 <= request.last_bytes <= LONGEST_TAIL_BYTES or request.after.offset < 0:
            raise UserError(f"last_bytes must be 0 to {LONGEST_TAIL_BYTES}, and no offset below 0")
        directory = Path(self._files.directory(_checked(request.job_uuid), attempt))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(request.wait_ms, LONGEST_WAIT_MS) / 1000
        while True:
            # Asked before the read: what was written before the end is then found.
            more = self._files.is_followed(attempt)
            piece, times = await asyncio.to_thread(_piece, directory, request)
            if piece.data or not more or loop.time() >= deadline:
                break
            await asyncio.sleep(POLL_S)
        if not piece.data and not await asyncio.to_thread(directory.is_dir):
            raise NotFound(f"{attempt} has not run on this node, or its output has been removed")
        at = piece.place
        place = OutputPlace(str(attempt), at.file, at.offset, at.mark)
        data = base64.b64encode(piece.data).decode()
        return TailChunk(place, data, cut=piece.cut, times=tuple(chain.from_iterable(times)))

    async def _signal(self, request: SignalRequest) -> Accepted:
        return self._operator.signal(request)

    async def _save(self, request: SaveRequest) -> Accepted:
        task = TaskId.parse(request.task)
        return Accepted(task.job, await self._files.save(task, SAVE_S))

    def _exec(self, request: ExecRequest) -> AsyncGenerator[ExecChunk, None]:
        return self._operator.run(request)


def _piece(directory: Path, request: ReadRequest) -> tuple[reading.Piece, tuple[tuple[int, int], ...]]:
    after, last_bytes = request.after, request.last_bytes
    if after.file:
        piece = reading.read_after(directory, reading.Place(after.file, after.offset, after.mark))
    else:
        if request.since_ms:
            last_bytes = min(last_bytes, reading.bytes_since(directory, request.since_ms))
        if request.last_lines > 0:
            last_bytes = min(last_bytes, reading.bytes_of_lines(directory, request.last_lines))
        piece = reading.read_end(directory, last_bytes)
    return reading.with_times(piece, directory) if request.timed and piece.data else (piece, ())


def _checked(job_uuid: str) -> str:
    """A checked UUID: it becomes part of a path."""
    if not _UUID.fullmatch(job_uuid):
        raise UserError(f"{job_uuid!r} is not the UUID of a job")
    return job_uuid
