"""Waiting for a job, for `wait` and `run`, and the exit codes of a job's end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisor.cli.progress import RewrittenLine
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import Unreachable, UserError
from supervisor.contract.views.jobs import JobView

if TYPE_CHECKING:
    from supervisor.api.client import ControlClient

JOB_FAILED, JOB_STOPPED, TIMED_OUT, ENDED_OTHERWISE, JOB_PARKED, JOB_UNSAVED = 10, 11, 12, 13, 16, 17
PHASES = ("running", "succeeded", "failed", "stopped", "ended")
GOALS = f"{', '.join(PHASES)} or step=N"
_POLL_S = 0.1
_OUTAGE_S = 60.0


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of a wait: a phase, or a step."""

    text: str
    step: int = -1

    @classmethod
    def parse(cls, text: str) -> Goal:
        """Read one of GOALS; raises UserError."""
        if text in PHASES:
            return cls(text)
        number = text.removeprefix("step=")
        if text.startswith("step=") and number.isascii() and number.isdigit() and len(number) < 16:
            return cls(text, int(number))
        raise UserError(f"{f'--for {text!r}: use' if text else 'write --for with one of'} {GOALS}")

    def reached(self, job: JobView) -> bool:
        """Whether the job is at the goal, or has passed it."""
        if self.step >= 0:
            return job.step >= self.step
        if self.text == "running":
            all_up = bool(job.tasks) and all(task.state == "running" for task in job.tasks)
            return job.phase is JobPhase.SUCCEEDED or (job.phase is JobPhase.RUNNING and all_up)
        return job.phase.ended if self.text == "ended" else job.phase.value == self.text

    def result(self, job: JobView) -> int | None:
        """The exit code; None while the job may still reach the goal."""
        if self.reached(job):
            return 0
        if not job.phase.ended:
            return None
        return ENDED_OTHERWISE if job.phase is JobPhase.SUCCEEDED else end_code(job)


def end_code(job: JobView) -> int:
    """The exit code of a job that has ended."""
    codes = {JobPhase.FAILED: JOB_FAILED, JobPhase.STOPPED: JOB_STOPPED, JobPhase.PARKED: JOB_PARKED}
    return codes.get(job.phase, JOB_UNSAVED if job.uncommitted else 0)


async def wait_for(
    client: ControlClient, name: str, goal: Goal, timeout_s: float | None, show: Callable[[JobView], None]
) -> tuple[int, JobView | None]:
    """Poll until the goal is reached, out of reach, or `timeout_s` is over: exit code and last view.

    If no leader answers for a minute, it raises Unreachable.
    """
    started = time.monotonic()
    answered = started
    job: JobView | None = None
    while True:
        try:
            job = (await client.status(name)).jobs[0]
            answered = time.monotonic()
        except Unreachable:
            if time.monotonic() - answered > _OUTAGE_S:
                raise
        if job is not None:
            show(job)
            code = goal.result(job)
            if code is not None:
                return code, job
        left_s = _POLL_S if timeout_s is None else timeout_s - (time.monotonic() - started)
        if left_s <= 0:
            return TIMED_OUT, job
        await asyncio.sleep(min(_POLL_S, left_s))


class StatusLine(RewrittenLine):
    """A line on the terminal with a job's state."""

    def show(self, job: JobView) -> None:
        """Show the job's phase, generation and step, and the reason for waiting."""
        line = f"{job.name}: {job.phase.value}, generation {job.generation}"
        if job.step >= 0:
            line += f", step {job.step}"
        if job.waiting_for:
            line += f", waiting for {job.waiting_for}"
        self.write(line)
