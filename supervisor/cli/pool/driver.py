"""The progress that a driver of Spark shows, its interrupts, and a check of the data that it may replace."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from supervisor.api.client import ControlClient
from supervisor.api.description import description
from supervisor.cli.terminal import neutralise
from supervisor.contract.errors import Conflict, FitsNowhere, NotFound
from supervisor.contract.job.spec import JobRecord
from supervisor.contract.views.description import CLUSTER, ROOM, SCALE, Description
from supervisor.contract.views.jobs import JobView, SubmitMode, SubmitRequest

SAY_S = 15.0
"""How often progress is told while nothing but the step changes."""


class Progress:
    """Tells a job's progress: each change, and the step now and then."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._state: tuple[object, ...] = ()
        self._said = 0.0

    def show(self, job: JobView) -> None:
        """Tell what is new."""
        state = (job.phase, job.generation, job.waiting_for)
        if state == self._state and time.monotonic() < self._said + SAY_S:
            return
        self._state, self._said = state, time.monotonic()
        step = f", step {job.step}" if job.step >= 0 else ""
        waits = f", waiting for {job.waiting_for}" if job.waiting_for else ""
        self._tell(f"{job.name}: {job.phase.value}, generation {job.generation}{step}{waits}")


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """Let an interrupt be a KeyboardInterrupt alone: pyspark's handler cancels all jobs, the agents' too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def require_free(client: ControlClient, request: SubmitRequest) -> None:
    """Raise Conflict if there is a job whose data may not be replaced: one that is not over, or any.

    It may have another name and the same store. Raises UserError for a job that the cluster would refuse.
    """
    # The nodes of its pool are not there yet.
    with suppress(FitsNowhere):
        await client.validate(request)
    name = request.spec.name
    try:
        job = (await client.status(name)).jobs[0]
    except NotFound:
        return
    if not job.phase.ended or request.mode is SubmitMode.NEW:
        raise Conflict(
            f"there is a job {name}, which is {job.phase.value}, so its data is not replaced: choose "
            "another name, or once it has ended say resume=True or fresh=True"
        )


async def is_there(client: ControlClient, request: SubmitRequest) -> bool:
    """Whether the job to resume is not over: it waits for nodes, as its driver was killed.

    False also if the job of that name has another file, or another program.
    """
    if request.mode is not SubmitMode.RESUME:
        return False
    try:
        job = (await client.status(request.spec.name)).jobs[0]
        there = await client.describe(request.spec.name)
    except NotFound:
        return False
    asked = description(JobRecord(request.spec, job.uuid, 0, given=request.given), {})
    return not job.phase.ended and _values(asked, there) == _values(there, there)


def _values(file: Description, there: Description) -> dict[tuple[str, ...], str]:
    """The values of a job's file, without those that the cluster or `scale` has set for the one there."""
    theirs = {each.path for each in there.fields if each.source in (SCALE, ROOM, CLUSTER)}
    return {each.path: each.value for each in file.fields if each.path not in theirs}


def print_line(line: str) -> None:
    """Print a line about progress to standard error."""
    sys.stderr.write(f"{neutralise(line)}\n")
