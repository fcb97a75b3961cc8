"""The sight of the demonstration: the API's documents, events, loss and step log, kept fresh.

Everything comes from the same client as `supervisorctl`'s, but for the step log, which is the outside
stopwatch. A supervisor that dies is no error here: the client finds the next leader.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import re
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeVar

from examples.demo.steplog import StepLog
from supervisor.api.client import ControlClient
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import NotFound, TfSupervisorError, Unreachable
from supervisor.contract.incident import Outcome
from supervisor.contract.views.jobs import (
    ClusterStatus,
    EventsRequest,
    EventView,
    IncidentView,
    JobView,
    TailRequest,
    TaskView,
)
from supervisor.contract.views.nodes import NodeView

STATUS_EVERY_S = 0.15
STEPS_EVERY_S = 0.03
AGAIN_S = 0.2
TRAINERS = ("chief:0", "worker:0", "worker:1")
_LOSS = re.compile(r"step (\d+) loss ([0-9.]+)")


T = TypeVar("T")


async def beside(main: Coroutine[None, None, T], *background: Coroutine[None, None, NoReturn]) -> T:
    """Run `main` beside what never ends; the first error of any of them is raised, and all are ended."""
    work = asyncio.create_task(main)
    others: list[asyncio.Task[NoReturn]] = [asyncio.create_task(coroutine) for coroutine in background]
    try:
        await asyncio.wait([work, *others], return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            if task.done():
                task.result()
        return await work
    finally:
        work.cancel()
        for task in others:
            task.cancel()
        await asyncio.gather(work, *others, return_exceptions=True)


class PromiseBroken(TfSupervisorError):
    """A promise of the demonstration was not kept in time; the message says which."""


@dataclass(slots=True)
class Watch:
    """The present picture of one job, renewed by `looks`. `on_event` hears each event once."""

    client: ControlClient
    job: str
    step_log: StepLog
    on_event: Callable[[EventView], None] = field(default=lambda _: None)
    status_every_s: float = STATUS_EVERY_S
    status: ClusterStatus | None = None
    incidents: tuple[IncidentView, ...] = ()
    nodes: dict[str, NodeView] = field(default_factory=dict)
    losses: list[tuple[int, float]] = field(default_factory=list)

    def looks(self) -> tuple[Coroutine[None, None, NoReturn], ...]:
        """The loops that keep this fresh, to run beside the acts that look at it; see `beside`."""
        return self._look_at_steps(), self._look_at_cluster()

    def listens(self) -> tuple[Coroutine[None, None, NoReturn], ...]:
        """The same for the events and the loss, which only a story needs."""
        return self._follow_events(), self._follow_loss()

    @property
    def view(self) -> JobView | None:
        """The job as last seen; None before it was first seen."""
        jobs = self.status.jobs if self.status is not None else ()
        return next((job for job in jobs if job.name == self.job), None)

    @property
    def tasks(self) -> dict[str, TaskView]:
        """The job's tasks by `ROLE:INDEX`."""
        view = self.view
        return {} if view is None else {f"{task.role}:{task.index}": task for task in view.tasks}

    @property
    def pids(self) -> dict[str, int]:
        """The processes of the job's tasks, by `ROLE:INDEX`."""
        return {name: task.pid for name, task in self.tasks.items()}

    @property
    def step(self) -> int:
        """The newest global step that the program wrote."""
        newest = self.step_log.newest()
        return -1 if newest is None else newest.step

    @property
    def committed_step(self) -> int:
        """The step of the newest committed checkpoint; -1 without one."""
        view = self.view
        return -1 if view is None or view.newest_commit is None else view.newest_commit.step

    def healthy_since(self, ns: int) -> bool:
        """All tasks run, each trainer has stepped after `ns` (CLOCK_MONOTONIC), no incident is open."""
        view = self.view
        return (
            view is not None
            and view.phase is JobPhase.RUNNING
            and bool(view.tasks)
            and all(task.state == "running" and task.pid > 0 for task in view.tasks)
            and all(self.step_log.first_after(ns, task) is not None for task in TRAINERS)
            and not any(incident.outcome is Outcome.OPEN for incident in self.incidents)
        )

    async def until(self, condition: Callable[[], bool], what: str, deadline_s: float) -> None:
        """Wait for a condition; raises PromiseBroken at the deadline, or when the job has ended before."""
        deadline = time.monotonic() + deadline_s
        while not condition():
            view = self.view
            if view is not None and view.phase.ended:
                reason = f": {view.reason}" if view.reason else ""
                raise PromiseBroken(f"the job has {view.phase.value}{reason}, while waiting for {what}")
            if time.monotonic() > deadline:
                raise PromiseBroken(f"not seen within {deadline_s:g} s: {what}")
            await asyncio.sleep(STEPS_EVERY_S)

    async def _look_at_steps(self) -> NoReturn:
        while True:
            self.step_log.read()
            await asyncio.sleep(STEPS_EVERY_S)

    async def _look_at_cluster(self) -> NoReturn:
        while True:
            with suppress(Unreachable, NotFound):
                self.status = await self.client.status()
                self.nodes = {node.node: node for node in (await self.client.nodes()).nodes}
                self.incidents = (await self.client.explain(self.job)).incidents
            await asyncio.sleep(self.status_every_s)

    async def _follow_events(self) -> NoReturn:
        request = EventsRequest(follow=True, last=1000)
        while True:
            with suppress(Unreachable):
                async for batch in self.client.events(request):
                    request = replace(request, after=batch.last)
                    for event in batch.events:
                        self.on_event(event)
            await asyncio.sleep(AGAIN_S)

    async def _follow_loss(self) -> NoReturn:
        """The chief's own output, also where its task moves or the leader changes."""
        request = TailRequest(f"{self.job}/chief:0", follow=True)
        decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
        while True:
            with suppress(Unreachable, NotFound):
                async for chunk in self.client.tail(request):
                    request = replace(request, after=chunk.place)
                    *lines, rest = (rest + decoder.decode(base64.b64decode(chunk.data))).split("\n")
                    self._read_losses(lines)
            await asyncio.sleep(AGAIN_S)

    def _read_losses(self, lines: list[str]) -> None:
        for line in lines:
            match = _LOSS.search(line)
            if match is not None:
                self.losses.append((int(match[1]), float(match[2])))
