"""The pages: from the leader's documents to HTML, whole for a browser's request, in parts for its stream.

A page's template has blocks named as its parts. A stream renders them every second, and sends those that have
changed. Everything in a template is escaped.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from supervisor.adapters.neutral import neutralise
from supervisor.api import views
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import NotFound, TfSupervisorError
from supervisor.contract.incident import Cause, Outcome
from supervisor.contract.views.jobs import EventView, JobView, TailRequest
from supervisor.contract.views.nodes import GpuView, NodeView
from supervisor.contract.views.tones import TONES
from supervisor.control.decide.snapshot import JobState, Snapshot
from supervisor.web import drawings, sentences
from supervisor.web.api import EVENT_STREAM, message, number
from supervisor.web.samples import Samples, table
from supervisor.web.source import Source, task_of
from supervisor.wire.failures import NotLeading
from supervisor.wire.http import Answer, Asked

HTML = "text/html; charset=utf-8"
LIVE_S = 1.0
PAGE_SIZE = 50
LAST_EVENTS, LAST_INCIDENTS = 12, 20
MOST_SHARED = 64
LOG_BYTES = 8_192

Values = dict[str, object]


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        # Names and messages may be of a program that wants to mislead.
        finalize=lambda value: neutralise(value) if type(value) is str else value,
    )
    made.filters.update(
        {
            "tone": lambda word: TONES.get(str(word), "calm"),
            "seconds": sentences.seconds,
            "counted": sentences.counted,
            "headline": sentences.headline,
            "sentences": sentences.sentences,
            "story": sentences.story,
            "goodput": sentences.goodput,
            "pieces": drawings.pieces_of,
            "size": size,
            "part": lambda text: quote(str(text), safe=""),
            "told": lambda name: str(name).replace("_", " "),
        }
    )
    made.globals |= {"link": link, "iso": iso, "clock": clock}
    made.globals["m"] = made.get_template("macros.html").module
    return made


@dataclass(frozen=True, slots=True)
class View:
    """A page: its template, the parts that a stream keeps fresh, and the values that both show."""

    template: str
    parts: tuple[str, ...]
    values: Callable[[Asked], Awaitable[Values]]


@dataclass(slots=True)
class Pages:
    """Renders the pages of a source of documents."""

    source: Source
    samples: Samples
    _jinja: Environment = field(default_factory=_environment)
    _shared: dict[str, tuple[float, dict[str, str], Values]] = field(default_factory=dict)

    async def show(self, view: View, asked: Asked) -> Answer:
        """A whole page or, with `?live=1`, the stream of its parts. Raises NotLeading."""
        self.samples.begin()
        if asked.query.get("live"):
            return Answer(self._live(view, asked), EVENT_STREAM)
        return self.page(view.template, await view.values(asked), asked)

    def page(self, template: str, values: Mapping[str, object], asked: Asked, status: int = 200) -> Answer:
        """A page from a template."""
        common = {"cluster": self.source.cluster, "path": asked.path}
        html = self._jinja.get_template(template).render({**common, **values})
        return Answer(html.encode(errors="replace"), HTML, status)

    def failure(self, error: TfSupervisorError, asked: Asked, status: int) -> Answer:
        """The page that tells an error."""
        values: Values = {"title": "not found" if status == 404 else "no answer", "message": str(error)}
        return self.page("failure.html", values | {"again": status == 503}, asked, status)

    async def _live(self, view: View, asked: Asked) -> AsyncGenerator[bytes, None]:
        """The parts of a page, whenever they change, until this supervisor leads no more."""
        key = f"{asked.path}?{urlencode(sorted(asked.query.items()))}"
        shown: dict[str, str] = {}
        yield b"retry: 1000\n\n"
        while True:
            try:
                parts, values = await self._fresh(key, view, asked)
            except NotLeading as error:
                yield message("moved", {"message": str(error)})
                return
            except TfSupervisorError as error:
                yield message("gone", {"message": str(error)})
                return
            news = {name: html for name, html in parts.items() if shown.get(name) != html}
            shown = parts
            if news:
                yield message("parts", news)
            if "job" in values:
                samples = self.samples.of(asked.names["job"])
                yield message("samples", table(samples[-1:]))
            yield b":\n\n"
            await asyncio.sleep(LIVE_S)

    async def _fresh(self, key: str, view: View, asked: Asked) -> tuple[dict[str, str], Values]:
        """The parts of a page, made at most once a period for all who look at it."""
        if made := self._made(key):
            return made
        async with asked.turn():
            # Another viewer may have been before.
            return self._made(key) or await self._make(key, view, asked)

    def _made(self, key: str) -> tuple[dict[str, str], Values] | None:
        made = self._shared.get(key)
        return made[1:] if made is not None and time.monotonic() - made[0] < 0.9 * LIVE_S else None

    async def _make(self, key: str, view: View, asked: Asked) -> tuple[dict[str, str], Values]:
        now, values = time.monotonic(), await view.values(asked)
        template = self._jinja.get_template(view.template)
        context = template.new_context({"cluster": self.source.cluster, "path": asked.path, **values})
        parts = {name: "".join(template.blocks[name](context)) for name in view.parts}
        self._shared.pop(key, None)
        self._shared[key] = (now, parts, values)
        while len(self._shared) > MOST_SHARED:
            del self._shared[next(iter(self._shared))]
        return parts, values

    def views(self) -> dict[str, tuple[str, View]]:
        """Path -> the method whose right it needs, and the page."""
        return {
            "/": (
                "Control.Nodes",
                View("cluster.html", ("summary", "nodes", "trouble", "events"), self._cluster),
            ),
            "/jobs": ("Control.Status", View("jobs.html", ("jobs",), self._jobs)),
            "/jobs/{job}": (
                "Control.Explain",
                View("job.html", ("state", "timeline", "tasks", "checkpoints", "story", "events"), self._job),
            ),
            "/jobs/{job}/logs/{task}": ("Control.Tail", View("log.html", (), self._log)),
            "/nodes/{node}": ("Control.Nodes", View("node.html", ("node", "events"), self._node)),
            "/events": ("Control.Events", View("events.html", ("events",), self._events)),
        }

    async def _cluster(self, _: Asked) -> Values:
        snap = self.source.snapshot()
        status = views.cluster_status(snap, self.source.cluster, self.source.service.leader(), ())
        states = states_of(snap)
        gpus: dict[str, list[GpuView]] = {}
        for gpu in (await self.source.gpus()).gpus:
            gpus.setdefault(gpu.node, []).append(gpu)
        troubled = [
            name
            for name, state in states.items()
            if state in _TROUBLED or snap.jobs[name].switch.value.uncommitted
        ]
        batch = await self.source.events(last=LAST_EVENTS)
        return {
            "status": status,
            "etcd": self.source.service.etcd_lines(),
            "nodes": (await self.source.nodes()).nodes,
            "gpus": gpus,
            "counts": counts(states),
            "states": states,
            "troubled": [views.shown_job(snap, name) for name in sorted(troubled)[:PAGE_SIZE]],
            "more_troubled": max(0, len(troubled) - PAGE_SIZE),
            "events": batch.events[::-1],
        }

    async def _jobs(self, asked: Asked) -> Values:
        snap = self.source.snapshot()
        states = states_of(snap)
        text, wanted = asked.query.get("q", "")[:80], asked.query.get("state", "")[:20]
        names = [
            name
            for name, state in sorted(states.items())
            if text.lower() in name.lower() and wanted in ("", state)
        ]
        picked = drawings.picked(names, number(asked, "page", 1), PAGE_SIZE)
        shown = list[JobView]()
        for name in picked.names:
            shown.append(views.shown_job(snap, name))
            await asyncio.sleep(0)
        return {
            "jobs": shown,
            "picked": picked,
            "q": text,
            "state": wanted,
            "states": states,
            "counts": counts(states),
            "total": len(states),
        }

    async def _job(self, asked: Asked) -> Values:
        name = asked.names["job"]
        explanation = await self.source.explain(name)
        snap = self.source.snapshot()
        job, incidents = explanation.job, explanation.incidents
        begin, end = asked.query.get("from"), asked.query.get("to")
        line = drawings.time_line(
            incidents,
            snap.wall_ms,
            number(asked, "from", 0) if begin else None,
            number(asked, "to", 0) if end else None,
        )
        known = (await self.source.checkpoints(name)).checkpoints if name in snap.jobs else ()
        batch = await self.source.events(name, LAST_EVENTS) if name in snap.jobs else None
        return {
            "job": job,
            "state": state_of(snap.jobs[name]) if name in snap.jobs else job.phase.value,
            "incidents": incidents[::-1][:LAST_INCIDENTS],
            "left_out": max(0, len(incidents) - LAST_INCIDENTS),
            "line": line,
            "checkpoints": known,
            "lineage": drawings.lineage(known),
            "events": batch.events[::-1] if batch is not None else (),
            "log_task": asked.query.get("task", ""),
            "samples": json.dumps(table(self.samples.of(name))),
        }

    async def _log(self, asked: Asked) -> Values:
        task = task_of(asked.names["job"], asked.names["task"])
        size_ = max(0, min(number(asked, "bytes", LOG_BYTES), 1 << 18))
        pieces = list[tuple[str, bytes]]()
        notes = list[str]()
        try:
            async for chunk in self.source.control.tail(TailRequest(str(task), last_bytes=size_)):
                notes += [chunk.note] if chunk.note else []
                pieces.append((chunk.attempt, base64.b64decode(chunk.data)))
        except NotFound as error:
            notes.append(str(error))
        attempts: dict[str, bytes] = {}
        for attempt, data in pieces:
            attempts[attempt] = attempts.get(attempt, b"") + data
        return {
            "task": task,
            "notes": notes,
            "attempts": {each: neutralise(data) for each, data in attempts.items() if each},
        }

    async def _node(self, asked: Asked) -> Values:
        name = asked.names["node"]
        (node,) = (await self.source.nodes(name)).nodes
        try:
            gpus = await self.source.gpus(name)
        except NotFound:
            gpus = None
        batch = await self.source.events(last=1_000)
        return {
            "node": node,
            "gpus": gpus.gpus if gpus is not None else (),
            "reports": gpus.nodes if gpus is not None else (),
            "events": [each for each in batch.events if is_about(each, node)][-LAST_EVENTS:][::-1],
        }

    async def _events(self, asked: Asked) -> Values:
        job = asked.query.get("job", "")
        batch = await self.source.events(job, number(asked, "last", 200))
        return {"events": batch.events[::-1], "job_name": job}


RECOVERING = "recovering"
_STATES = (RECOVERING, *(phase.value for phase in JobPhase))
_TROUBLED = (RECOVERING, JobPhase.FAILED.value, JobPhase.PARKED.value, JobPhase.WAITING.value)


def states_of(snap: Snapshot) -> dict[str, str]:
    """The phase of each job, and `recovering` of those with an incident that is not over."""
    known = {name: state_of(job) for name, job in snap.jobs.items()}
    return known | dict.fromkeys(snap.aside, JobPhase.PARKED.value)


def state_of(job: JobState) -> str:
    """The phase of a job, or `recovering`: a restart is prepared, or is not over."""
    phase = job.switch.value.shown_phase
    open_ = any(
        held.value.outcome is Outcome.OPEN and held.value.cause is not Cause.SUBMITTED
        for held in job.incidents.values()
    )
    ahead = open_ or job.next_plan is not None or job.switch.value.closing is not None
    return RECOVERING if ahead and phase is JobPhase.RUNNING else phase.value


def counts(states: Mapping[str, str]) -> dict[str, int]:
    """How many jobs are in each state, for the states that some are in."""
    found = Counter(states.values())
    return {state: found[state] for state in _STATES if state in found}


def is_about(event: EventView, node: NodeView) -> bool:
    """Whether an event names a node."""
    named = rf"(?<![\w.-]){re.escape(node.node)}(?![\w-])"
    return node.node in event.fields.values() or re.search(named, event.text) is not None


def link(path: str, **query: object) -> str:
    """A path with the parameters that are not empty."""
    given = {name: str(value) for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(given)}" if given else path


def iso(wall_ms: int) -> str:
    """A moment, for programs."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")


def clock(wall_ms: int) -> str:
    """A moment, for people; a script turns it into local time."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def size(count: int) -> str:
    """`3.1 MiB`."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
