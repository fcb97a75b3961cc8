"""A driver of Spark: the progress that it shows, its interrupts, the jobs and data that it meets."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from supervisor.api.client import ControlClient
from supervisor.api.description import REDACTED, description
from supervisor.cli.jobs.follow import Goal, wait_for
from supervisor.cli.terminal import neutralise
from supervisor.contract.errors import Conflict, FitsNowhere, NotFound, TfSupervisorError
from supervisor.contract.job.spec import JobRecord, JobSpec
from supervisor.contract.views.description import CLUSTER, ROOM, SCALE, Description
from supervisor.contract.views.jobs import JobView, SubmitMode, SubmitRequest
from supervisor.engines.spark.nodes import PoolNodes

SAY_S = 15.0
"""How often progress is told while nothing but the step changes."""
STOP_S = 60.0
"""How long a job that is interrupted may take to save and stop."""


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


def goes_on(spec: JobSpec, unwritten: Collection[str]) -> str:
    """A line about a job that is followed, and about the data that is not written for it."""
    uris = ", ".join(spec.data[each] for each in unwritten)
    stays = f". Its data stays, and `data=` is not written: {uris}" if uris else ""
    return f"{spec.name} is not over, and goes on{stays}"


async def is_there(client: ControlClient, request: SubmitRequest) -> bool:
    """Whether the job to resume is not over: it waits for nodes, as its driver was killed.

    Raises Conflict if the job of that name has another file, or another program, or values that cannot be
    compared because they are hidden.
    """
    name = request.spec.name
    if request.mode is not SubmitMode.RESUME:
        return False
    try:
        job = (await client.status(name)).jobs[0]
        there = await client.describe(name)
    except NotFound:
        return False
    if job.phase.ended:
        return False
    asked = _values(description(JobRecord(request.spec, job.uuid, 0, given=request.given), {}), there)
    known = _values(there, there)
    differ = [path for path in asked | known if asked.get(path) != known.get(path)]
    hidden = [path for path in known if path not in differ and REDACTED in known[path]]
    for paths, why in ((differ, "in its job file or program these differ"), (hidden, "these are hidden")):
        if paths:
            fields = ", ".join(sorted(".".join(path) for path in paths)[:5])
            raise Conflict(
                f"job {name} is {job.phase.value}, and may be another one than this: {why}: {fields}. "
                f"Stop it (`supervisorctl stop {name}`), and run this again"
            )
    return True


async def stop_interrupted(
    connect: Callable[[], ControlClient], nodes: PoolNodes, name: str, *, submitted: bool
) -> str:
    """Stop a job whose driver is interrupted; returns what came of it.

    A job that this driver is not known to have submitted goes on while the pool has agents of another
    driver: it may be that one's.
    """
    try:
        if not submitted and (others := await nodes.others()):
            return (
                f"{name} is not stopped, as it may be another driver's, which has agents in this pool "
                f"({', '.join(others[:5])}): `supervisorctl stop {name}` stops it"
            )
        async with connect() as client:
            await client.stop(name, save=True)
            code, job = await wait_for(client, name, Goal("stopped"), STOP_S, lambda _: None)
    except NotFound:
        return f"{name} was not submitted yet"
    except TfSupervisorError as error:
        return f"{name} is not known to have stopped: {error}; see `supervisorctl status {name}`"
    if code or job is None:
        return f"{name} has not stopped within {STOP_S:g} s; see `supervisorctl status {name}`"
    where = f"step {job.newest_commit.step}" if job.newest_commit is not None else "the beginning"
    return f"{name} has stopped; with resume=True it goes on from {where}"


def _values(file: Description, there: Description) -> dict[tuple[str, ...], str]:
    """The values of a job's file, without those that the cluster or `scale` has set for the one there."""
    theirs = {each.path for each in there.fields if each.source in (SCALE, ROOM, CLUSTER)}
    return {each.path: each.value for each in file.fields if each.path not in theirs}


def print_line(line: str) -> None:
    """Print a line about progress to standard error."""
    sys.stderr.write(f"{neutralise(line)}\n")
