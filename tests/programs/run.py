"""One run of a shape, as a generator that yields whenever it waits: several of them share one cluster.

Asserted: every kill is one incident of the expected scope; nothing else is restarted; a restart begins from a
checkpoint; the job succeeds and its result is right; `status` knows the right step, or none; the newest save
is committed, by the node of the task that saves; nothing is advised; its outputs are in the store.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from supervisor.contract import codec
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.incident import Outcome
from supervisor.contract.views.jobs import CheckpointList, CheckpointView, IncidentView, JobView
from tests.examples.cases import Victim
from tests.examples.harness import WAIT_S, Cluster, Job, NotAsPromised
from tests.programs.shapes import NO_STEP, Shape

_POLL_S = 0.2
_NOT_FAILURES = ("submitted", "operator")
_SOME_OUTPUT = 2


@dataclass(frozen=True, slots=True)
class Run:
    """A run that went as promised."""

    shape: Shape
    incidents: tuple[IncidentView, ...]
    step: int
    commits: int
    result: str


Play = Generator[None, None, Run]


def play(cluster: Cluster, shape: Shape, victims: Sequence[Victim]) -> Play:
    """Run a shape with these kills. Yields None while it waits, and the run at last.

    Raises:
        NotAsPromised: something was not as the module says; the message tells the job's story.
    """
    job = cluster.submit(shape.file, name=shape.name)
    try:
        return (yield from _play(job, shape, victims))
    finally:
        if not job.view().phase.ended:
            cluster.ctl("stop", job.name)


def _play(job: Job, shape: Shape, victims: Sequence[Victim]) -> Play:
    wait = _Waiting(job, time.monotonic() + WAIT_S)
    incidents: list[IncidentView] = []
    for victim in victims:
        yield from wait.until(partial(_trains, job, shape), f"a save before {victim} is killed")
        base = job.view().newest_commit
        kill = job.kill(victim.role, victim.index)
        known = len(incidents)
        yield from wait.until(partial(_is_over, job, known), f"the recovery from {kill}")
        incidents = list(job.incidents())
        _check_incident(job, shape, victim, incidents[-1])
        view = job.view()
        if victim.scope.value == "all" and base is not None and view.base is None:
            raise NotAsPromised(f"restarted from scratch, though {base} is committed\n{job.story()}")
    yield from wait.until(lambda view: view.phase.ended, "its end", ended=True)
    yield from wait.until(partial(_outputs_are_stored, job, shape), "its outputs in the store", ended=True)
    return _checked(job, shape, len(victims))


@dataclass(frozen=True, slots=True)
class _Waiting:
    job: Job
    deadline: float

    def until(self, true: Callable[[JobView], bool], what: str, *, ended: bool = False) -> Iterator[None]:
        while True:
            view = self.job.view()
            if true(view):
                return
            if view.phase.ended and not ended:
                raise NotAsPromised(f"ended ({view.reason}) while waiting for {what}\n{self.job.story()}")
            if time.monotonic() > self.deadline:
                raise NotAsPromised(f"in vain: {what}\n{self.job.story()}")
            yield


def _trains(job: Job, shape: Shape, view: JobView) -> bool:
    """All tasks run, and there is a commit that this generation made; or some output, if nothing is saved."""
    if view.phase is not JobPhase.RUNNING or any(task.state != "running" for task in view.tasks):
        return False
    if not shape.saver:
        return job.output(shape.role).count("\n") >= _SOME_OUTPUT
    return view.newest_commit is not None and view.newest_commit != view.base


def _is_over(job: Job, known: int, view: JobView) -> bool:
    incidents = job.incidents()
    if len(incidents) > known + 1:
        raise NotAsPromised(f"one kill became {len(incidents) - known} incidents\n{job.story()}")
    return len(incidents) > known and incidents[-1].outcome is not Outcome.OPEN


def _outputs_are_stored(job: Job, shape: Shape, view: JobView) -> bool:
    """A node sends what is left when an attempt has ended; the job does not wait for it."""
    if not shape.outputs or view.phase is not JobPhase.SUCCEEDED:
        return True
    shown = job.cluster.ctl("outputs", job.name)
    return all(path in shown for path in shape.outputs)


def _check_incident(job: Job, shape: Shape, victim: Victim, incident: IncidentView) -> None:
    wanted = (victim.scope.value, f"{job.name}/{victim.role}:{victim.index}", Outcome.RECOVERED)
    if (incident.scope, incident.task, incident.outcome) != wanted:
        raise NotAsPromised(f"wanted {wanted}, not {incident}\n{job.story()}")


def _checked(job: Job, shape: Shape, kills: int) -> Run:
    view = job.view()
    problems = []
    if view.phase is not JobPhase.SUCCEEDED:
        problems.append(f"{view.phase.value}: {view.reason}")
    incidents = job.incidents()
    if len(incidents) != kills:
        problems.append(f"{len(incidents)} incidents of {kills} kills")
    if not kills and view.generation != 1:
        problems.append(f"generation {view.generation} without a failure")
    output = job.output(shape.role)
    found = re.search(shape.result, output, re.MULTILINE)
    if found is None:
        problems.append(f"no {shape.result!r} in the output")
    commits = _commits(job)
    # Where a program prints no step, the numbers of its saves stand for it.
    saved = {commit.ref.step for commit in commits} if shape.last_step == NO_STEP else set()
    if view.step not in shape.last_step and view.step not in saved:
        problems.append(f"status says step {view.step}, not {shape.last_step}")
    problems += _problems_with_commits(shape, view, commits)
    problems += [f"it is advised: {advice}" for advice in view.advice]
    if problems:
        raise NotAsPromised("; ".join(problems) + f"\n{job.story()}")
    assert found is not None
    return Run(shape, incidents, view.step, len(commits), found[0])


def _problems_with_commits(shape: Shape, view: JobView, commits: Sequence[CheckpointView]) -> list[str]:
    if not shape.saver:
        return [f"{len(commits)} commits of a program that saves nothing"] if commits else []
    if not commits:
        return ["nothing was committed"]
    problems = []
    newest = max(commits, key=lambda commit: (commit.ref.generation, commit.ref.step))
    node = next(task.node for task in view.tasks if f"{task.role}:{task.index}" == shape.saver)
    if newest.node != node:
        problems.append(f"the newest commit is of {newest.node}, but {shape.saver} runs on {node}")
    if shape.last_save and newest.ref.step not in shape.last_save:
        problems.append(f"the newest commit has step {newest.ref.step}, not {shape.last_save}")
    return problems


def _commits(job: Job) -> tuple[CheckpointView, ...]:
    return codec.from_plain(CheckpointList, job.cluster.document("checkpoints", job.name)).checkpoints


def side_by_side(
    plays: Sequence[tuple[str, Callable[[], Play]]], at_once: int
) -> dict[str, Run | TfSupervisorError]:
    """Run these, so many at a time; each ends with its run or with what went wrong."""
    waiting, running = list(plays), dict[str, Play]()
    done: dict[str, Run | TfSupervisorError] = {}
    while waiting or running:
        while waiting and len(running) < at_once:
            name, begin = waiting.pop(0)
            running[name] = begin()
        for name, steps in list(running.items()):
            try:
                next(steps)
            except StopIteration as end:
                done[name] = end.value
            except TfSupervisorError as error:
                done[name] = error
            if name in done:
                del running[name]
        time.sleep(_POLL_S)
    return done
