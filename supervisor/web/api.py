"""`/api/v1`: the documents of `supervisorctl --output json` over HTTP, and a stream of news."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from supervisor.contract import codec
from supervisor.contract.errors import TfSupervisorError, UserError
from supervisor.contract.views.description import Description
from supervisor.contract.views.jobs import (
    CheckpointList,
    ClusterStatus,
    EventBatch,
    Explanation,
    TailChunk,
    TailRequest,
)
from supervisor.contract.views.nodes import GpuList, NodeList
from supervisor.web.source import Source, encoded, task_of
from supervisor.wire.failures import NotLeading
from supervisor.wire.http import JSON, Answer, Asked, Handler, Route

BASE = "/api/v1"
EVENT_STREAM = "text/event-stream"
NEWS_S = 1.0
MOST_LOG_BYTES = 1 << 20
LOG_BYTES = 16_384
_EVENTS = {
    "last": "the number of past events, 100 if left out",
    "after": "the `last` of an earlier answer: only events after it",
}


@dataclass(frozen=True, slots=True)
class Document:
    """A path of the API: the document that it answers with, and the parameters that it knows.

    `query`: name -> what it means; all are integers but `job`.
    """

    path: str
    method: str
    what: str
    kind: type
    answer: Callable[[Asked], Awaitable[object]]
    query: Mapping[str, str] = field(default_factory=dict)
    as_stream: bool = False


class Api:
    """The paths of the API over a source of documents."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.documents = (*self._of_jobs(), *self._of_nodes())

    def routes(self, elsewhere: Callable[[Asked], Answer | None], openapi: bytes) -> list[Route]:
        """Every path. `elsewhere`: as for Route."""
        found = [Route(BASE + each.path, each.method, _answering(each), elsewhere) for each in self.documents]

        async def describe(_: Asked) -> Answer:
            return Answer(openapi, JSON)

        return [
            *found,
            Route(f"{BASE}/stream", "Control.Events", self._stream, elsewhere),
            Route(f"{BASE}/openapi.json", "Http.Static", describe),
        ]

    def _of_jobs(self) -> tuple[Document, ...]:
        log = {
            "bytes": f"the last bytes of each attempt, {LOG_BYTES} if left out, at most {MOST_LOG_BYTES}",
            "follow": "1: a stream of server-sent events that goes on with new output",
        }
        source = self._source

        async def status(asked: Asked) -> ClusterStatus:
            return await source.status(asked.names.get("job", ""))

        async def explain(asked: Asked) -> Explanation:
            return await source.explain(asked.names["job"])

        async def describe(asked: Asked) -> Description:
            return await source.describe(asked.names["job"])

        async def checkpoints(asked: Asked) -> CheckpointList:
            return await source.checkpoints(asked.names["job"])

        return (
            Document("/jobs", "Control.Status", "all jobs (`status`)", ClusterStatus, status),
            Document("/jobs/{job}", "Control.Status", "a job (`status JOB`)", ClusterStatus, status),
            Document(
                "/jobs/{job}/incidents",
                "Control.Explain",
                "a job and its incidents (`explain JOB`)",
                Explanation,
                explain,
            ),
            Document(
                "/jobs/{job}/description",
                "Control.Describe",
                "a job's stored file (`describe JOB`)",
                Description,
                describe,
            ),
            Document(
                "/jobs/{job}/checkpoints",
                "Control.Checkpoints",
                "a job's checkpoints (`checkpoints JOB`)",
                CheckpointList,
                checkpoints,
            ),
            Document(
                "/jobs/{job}/events",
                "Control.Events",
                "a job's events (`events JOB`)",
                EventBatch,
                self._events,
                _EVENTS,
            ),
            Document(
                "/jobs/{job}/logs/{task}",
                "Control.Tail",
                "the output of a task, as ROLE:INDEX (`tail TASK`)",
                TailChunk,
                self._log,
                log,
                as_stream=True,
            ),
        )

    def _of_nodes(self) -> tuple[Document, ...]:
        source = self._source

        async def nodes(asked: Asked) -> NodeList:
            return await source.nodes(asked.names.get("node", ""))

        async def gpus(asked: Asked) -> GpuList:
            return await source.gpus(asked.names.get("node", ""))

        return (
            Document("/nodes", "Control.Nodes", "all nodes (`nodes`)", NodeList, nodes),
            Document("/nodes/{node}", "Control.Nodes", "a node", NodeList, nodes),
            Document("/nodes/{node}/gpus", "Control.Gpus", "the GPUs of a node (`gpus NODE`)", GpuList, gpus),
            Document("/gpus", "Control.Gpus", "all GPUs (`gpus`)", GpuList, gpus),
            Document("/events", "Control.Events", "events (`events`)", EventBatch, self._events, _EVENTS),
        )

    async def _events(self, asked: Asked) -> EventBatch:
        last, after = number(asked, "last", 100), number(asked, "after", -1)
        return await self._source.events(asked.names.get("job", ""), last, after)

    async def _log(self, asked: Asked) -> Answer:
        """The output of a task: a list of chunks, or a stream of them."""
        task = task_of(asked.names["job"], asked.names["task"])
        size = max(0, min(number(asked, "bytes", LOG_BYTES), MOST_LOG_BYTES))
        chunks = self._source.control.tail(
            TailRequest(str(task), follow=number(asked, "follow", 0) > 0, last_bytes=size)
        )
        if number(asked, "follow", 0):
            return Answer(_as_events(chunks), EVENT_STREAM)
        found = list[TailChunk]()
        async for chunk in chunks:
            found.append(chunk)
            if sum(len(each.data) for each in found) > 2 * MOST_LOG_BYTES:
                break
        await chunks.aclose()
        return Answer(encoded(tuple(found)), JSON)

    async def _stream(self, asked: Asked) -> Answer:
        """New events as they come and, with `?job=NAME`, that job whenever it has changed."""
        job = asked.query.get("job", "")
        batch = await self._source.events(job, number(asked, "last", 0))
        return Answer(self._news(asked, batch), EVENT_STREAM)

    async def _news(self, asked: Asked, batch: EventBatch) -> AsyncGenerator[bytes, None]:
        job, shown = asked.query.get("job", ""), b""
        try:
            while True:
                for event in batch.events:
                    yield message("event", codec.to_plain(event))
                if job:
                    async with asked.turn():
                        newest = message("job", codec.to_plain((await self._source.status(job)).jobs[0]))
                    if newest != shown:
                        shown = newest
                        yield newest
                yield b":\n\n"
                await asyncio.sleep(NEWS_S)
                batch = await self._source.events(job, after=batch.last)
        except TfSupervisorError as error:
            yield message("failure", failure_of(error))


async def _as_events(chunks: AsyncGenerator[TailChunk, None]) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in chunks:
            yield message("chunk", codec.to_plain(chunk))
    except TfSupervisorError as error:
        yield message("failure", failure_of(error))
    finally:
        await chunks.aclose()


def message(event: str, data: object) -> bytes:
    """A server-sent event with a document in one line of JSON."""
    return f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def failure_of(error: TfSupervisorError) -> dict[str, str]:
    """What a stream ends with."""
    leader = error.leader if isinstance(error, NotLeading) else ""
    return {"error": type(error).__name__, "message": str(error), "leader": leader}


def number(asked: Asked, name: str, default: int) -> int:
    """An integer among the parameters; raises UserError."""
    text = asked.query.get(name)
    if text is None:
        return default
    try:
        value = int(text[:20])
    except ValueError as error:
        raise UserError(f"{name}={text[:40]!r} is no number") from error
    return value


async def body_of(document: object) -> bytes:
    """A document as JSON. The jobs of a cluster are turned one by one: at once they would hold up beats."""
    if not isinstance(document, ClusterStatus) or len(document.jobs) < 2:
        return encoded(document)
    head, _, tail = encoded(replace(document, jobs=())).partition(b'"jobs": []')
    jobs = list[bytes]()
    for job in document.jobs:
        jobs.append(json.dumps(codec.to_plain(job), separators=(",", ":")).encode())
        await asyncio.sleep(0)
    return head + b'"jobs": [\n' + b",\n".join(jobs) + b"]" + tail


def text_of(chunk: TailChunk) -> bytes:
    """The output in a chunk."""
    return base64.b64decode(chunk.data)


def _answering(document: Document) -> Handler:
    async def handler(asked: Asked) -> Answer:
        found = await document.answer(asked)
        return found if isinstance(found, Answer) else Answer(await body_of(found), JSON)

    return handler
