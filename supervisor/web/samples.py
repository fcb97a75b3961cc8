"""The steps of all running tasks over the last minutes, for the plots of the page.

The leader keeps no past steps. This does, from the first request on, and loses them with the process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from supervisor.contract.ids import AttemptId
from supervisor.control.decide.snapshot import Snapshot
from supervisor.wire.failures import NotLeading

PERIOD_S = 2.0
MOST = 300
"""Samples of a job: ten minutes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The tasks of a job at a moment: by member, the step (-1: none yet) and the rate."""

    wall_ms: int
    tasks: dict[str, tuple[int, float]]


@dataclass(slots=True)
class Samples:
    """The last samples of each job. `snapshot` raises NotLeading."""

    snapshot: Callable[[], Snapshot]
    of_jobs: dict[str, deque[Sample]] = field(default_factory=dict)
    _running: asyncio.Task[NoReturn] | None = None

    def of(self, job: str) -> list[Sample]:
        """The samples of a job, oldest first."""
        return list(self.of_jobs.get(job, ()))

    def begin(self) -> None:
        """Take samples from now on, until the loop ends."""
        if self._running is None:
            self._running = asyncio.create_task(self._run())

    async def _run(self) -> NoReturn:
        while True:
            try:
                self.take(self.snapshot())
            except NotLeading:
                self.of_jobs.clear()
            await asyncio.sleep(PERIOD_S)

    def take(self, snap: Snapshot) -> None:
        """Take one sample of each job that runs."""
        found: dict[str, dict[str, tuple[int, float]]] = {}
        for node in snap.nodes.values():
            for name, beat in node.beat.tasks.items() if node.beat is not None else ():
                attempt = AttemptId.parse(name)
                job = snap.jobs.get(attempt.task.job)
                if job is not None and attempt.generation == job.switch.value.generation and not beat.ended:
                    found.setdefault(job.name, {})[attempt.task.member] = (beat.step, round(beat.rate, 3))
        for name, tasks in found.items():
            self.of_jobs.setdefault(name, deque(maxlen=MOST)).append(Sample(snap.wall_ms, tasks))
        for name in self.of_jobs.keys() - snap.jobs.keys():
            del self.of_jobs[name]


def table(samples: list[Sample]) -> dict[str, object]:
    """Samples as columns, as the plot wants them: seconds, and for each member its steps and its rates."""
    members = sorted({member for sample in samples for member in sample.tasks})
    nothing = (-1, -1.0)
    rows = [[sample.tasks.get(member, nothing) for sample in samples] for member in members]
    return {
        "seconds": [sample.wall_ms / 1000 for sample in samples],
        "members": members,
        "steps": [[step if step >= 0 else None for step, _ in row] for row in rows],
        "rates": [[rate if rate >= 0 else None for _, rate in row] for row in rows],
    }
