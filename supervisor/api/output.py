"""`tail`: the output of all attempts of a task, in their order, from all nodes that have some.

What no node that answers has comes from the job's store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace

from supervisor.api import views
from supervisor.api.agents import Agents, address_of
from supervisor.api.stored_output import LogOpener, StoredOutput, missing
from supervisor.contract.errors import NotFound, TfSupervisorError, Unreachable
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.views.jobs import (
    OutputList,
    OutputPlace,
    OutputsRequest,
    ReadRequest,
    TailChunk,
    TailRequest,
)
from supervisor.control.decide.facts.history import check_task
from supervisor.control.decide.snapshot import JobState, Snapshot

ALL_BYTES = 1 << 40
LIST_S = 2.0
READ_S = 3.0
WAIT_MS = 1_000
POLL_S = 0.2
SIGN_OF_LIFE_S = 1.0


@dataclass(slots=True)
class OutputTail:
    """One request. `snapshot` raises once this supervisor no longer leads; the client then asks the next
    one.
    """

    request: TailRequest
    snapshot: Callable[[], Snapshot]
    agents: Agents
    open_logs: LogOpener
    _stored: StoredOutput = field(init=False)
    _place: OutputPlace = field(init=False)
    _job_uuid: str = ""
    _last_bytes: int = 0
    _since_ms: int = 0
    _last_lines: int = 0
    _said: set[str] = field(default_factory=set)
    _shown: bool = False

    def __post_init__(self) -> None:
        self._stored = StoredOutput(self.open_logs, TaskId.parse(self.request.task))
        self._place = self.request.after
        self._last_bytes = ALL_BYTES if self._place.attempt else self.request.last_bytes
        self._since_ms = self.request.since_ms
        self._last_lines = 0 if self._place.attempt else self.request.last_lines

    async def chunks(self) -> AsyncGenerator[TailChunk, None]:
        """New output, signs of life, and notes about missing output.

        Raises NotFound: no such job or task, or, without `follow`, no output at all.
        """
        self._job_uuid = self._job().switch.value.job_uuid
        if self.request.stacks:
            async for chunk in self._stacks():
                yield chunk
            return
        while True:
            before = self._place
            async for chunk in self._all_known():
                yield chunk
            if not self.request.follow:
                if not self._shown:
                    raise NotFound(
                        f"{self.request.task} has not run, or its output is removed or cannot be reached"
                    )
                return
            # Whatever comes from now on is shown whole.
            self._last_bytes, self._since_ms, self._last_lines = ALL_BYTES, 0, 0
            async for chunk in self._until_next():
                yield chunk
            if self._place == before:
                # The newest attempt is on a node that does not answer: they are asked again, not at once.
                await asyncio.sleep(POLL_S)
                yield TailChunk(self._place, "")

    async def _stacks(self) -> AsyncGenerator[TailChunk, None]:
        await self._stored.look(self._job())
        async for chunk in self._stored.stacks(self._job()):
            self._shown = True
            yield chunk
        if not self._shown:
            why = self._stored.trouble or "a dump is made where a task may hang"
            raise NotFound(f"no stacks of {self.request.task} are stored: {why}")

    async def _all_known(self) -> AsyncGenerator[TailChunk, None]:
        """Every attempt from the present place on, each to its end."""
        nodes, silent = await self._find()
        stored = self._stored.attempts
        for node in sorted(silent):
            note = f"{node} does not answer: what it holds of {self.request.task} is not shown"
            here = {attempt for attempt, place in nodes.items() if place == node}
            if note not in self._said and not (here and here <= stored):
                yield self._note(note)
        for attempt in sorted(nodes.keys() | stored):
            if self._place.attempt and attempt < AttemptId.parse(self._place.attempt):
                continue
            node = nodes.get(attempt, "")
            if node and node not in silent:
                async for chunk in self._rest_of(attempt, node):
                    yield chunk
            elif attempt in stored:
                async for chunk in self._stored_rest_of(attempt, node):
                    yield chunk

    async def _rest_of(self, attempt: AttemptId, node: str) -> AsyncGenerator[TailChunk, None]:
        """An attempt's output to its present end; at least one chunk, even if it is empty."""
        begins = self._place.attempt != str(attempt)
        if begins:
            self._place = OutputPlace(str(attempt))
        while True:
            try:
                chunk = await self._read(node, 0)
            except (NotFound, Unreachable) as error:
                if attempt in self._stored.attempts:
                    async for chunk in self._stored_rest_of(attempt, node):
                        yield chunk
                elif isinstance(error, Unreachable):
                    why = self._stored.trouble or "the job's store has nothing of it"
                    yield self._note(f"the rest of {attempt} cannot be read now: {error}; {why}")
                return
            self._shown = True
            if chunk.data or begins:
                self._place, begins = chunk.place, False
                yield chunk
            if not chunk.data:
                return

    async def _stored_rest_of(self, attempt: AttemptId, node: str) -> AsyncGenerator[TailChunk, None]:
        """The rest of an attempt's output, as far as the job's store has it; and a note on what it lacks."""
        if self._place.attempt != str(attempt):
            self._place = OutputPlace(str(attempt))
        stored, job = self._stored, self._job()
        begin = (job, self._place, self._last_bytes, self._since_ms, self._last_lines)
        async for chunk in stored.rest_of(*begin, timed=self.request.merged):
            self._shown, self._place = True, chunk.place
            node = chunk.node
            yield chunk
        if stored.trouble:
            told = missing(self.snapshot(), node, stored.until_ms) if stored.until_ms else stored.trouble
            note = f"{attempt}: {told}"
            if note not in self._said:
                self._shown = True
                yield self._note(note)

    async def _until_next(self) -> AsyncGenerator[TailChunk, None]:
        """Follow the newest attempt; returns when there is a newer one to look for."""
        loop = asyncio.get_running_loop()
        spoke = loop.time()
        while True:
            job = self._job()
            if job.switch.value.job_uuid != self._job_uuid:
                # Submitted afresh: another job of the same name.
                self._job_uuid, self._place = job.switch.value.job_uuid, OutputPlace()
                return
            newest = max(self._reported(job), default=None)
            if newest is not None and (
                not self._place.attempt or newest > AttemptId.parse(self._place.attempt)
            ):
                return
            chunk = None
            if self._place.attempt:
                chunk = await self._next_piece(job)
            elif "waiting" not in self._said:
                self._said.add("waiting")
                chunk = TailChunk(self._place, "", note=f"{self.request.task} has not started yet")
            if chunk is not None and (chunk.data or chunk.note):
                self._place = chunk.place
                spoke = loop.time()
                yield chunk
                continue
            if loop.time() - spoke >= SIGN_OF_LIFE_S:
                spoke = loop.time()
                yield TailChunk(self._place, "")
            await asyncio.sleep(POLL_S)

    async def _next_piece(self, job: JobState) -> TailChunk | None:
        """New output of the present attempt, a note, or nothing."""
        attempt = AttemptId.parse(self._place.attempt)
        node = self._reported(job).get(attempt, "")
        try:
            chunk = await self._read(node, WAIT_MS)
        except NotFound:
            return None
        except Unreachable as error:
            said = f"waiting for {node}, where {attempt} runs: {error}"
            return None if said in self._said else self._note(said)
        self._said.discard(next((s for s in self._said if s.startswith(f"waiting for {node},")), ""))
        return chunk

    def _note(self, text: str) -> TailChunk:
        self._said.add(text)
        return TailChunk(self._place, "", note=text)

    async def _read(self, node: str, wait_ms: int) -> TailChunk:
        if not node:
            raise NotFound("it is not known where this attempt ran")
        address = address_of(self.snapshot(), node)
        request = ReadRequest(
            *(self._job_uuid, self._place, self._last_bytes, wait_ms, self.request.merged),
            *(self._since_ms, self._last_lines),
        )
        return replace(await self.agents.ask(address, "Read", request, TailChunk, READ_S), node=node)

    async def _find(self) -> tuple[dict[AttemptId, str], set[str]]:
        """Attempts with output on a disk -> node; and the nodes that did not answer."""
        snap = self.snapshot()
        nodes = [name for name, picture in snap.nodes.items() if picture.incarnation is not None]
        if self.request.merged:
            told = set(self._reported(self._job()).values())
            nodes = [name for name in nodes if name in told]
        *answers, _ = await asyncio.gather(
            *(self._ask(snap, node) for node in nodes), self._stored.look(self._job())
        )
        found = self._reported(self._job())
        silent = set()
        for node, answer in zip(nodes, answers, strict=True):
            if answer is None:
                silent.add(node)
            else:
                found |= {AttemptId.parse(text): node for text in answer.attempts}
        return found, silent

    async def _ask(self, snap: Snapshot, node: str) -> OutputList | None:
        request = OutputsRequest(self._job_uuid, self.request.task)
        try:
            return await self.agents.ask(address_of(snap, node), "Outputs", request, OutputList, LIST_S)
        except TfSupervisorError:
            return None

    def _reported(self, job: JobState) -> dict[AttemptId, str]:
        """Attempts with a record in etcd -> node."""
        task = TaskId.parse(self.request.task)
        return {attempt: held.value.node for attempt, held in job.attempts.items() if attempt.task == task}

    def _job(self) -> JobState:
        task = TaskId.parse(self.request.task)
        job = views.find_job(self.snapshot(), task.job)
        check_task(job, task)
        return job
