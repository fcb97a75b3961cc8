"""Runs that kill daemons at failpoints: on one cluster, under a job that has to be healthy again each time.

First causes are tried, to see which points each leads to. Then each point is armed on all nodes, and its
cause repeated: the first daemon at the point dies there. Its keeper starts it again, as on a real machine. A
dozen strikes, or causes, make one run, recorded as any other; all promises are checked when its job has
ended.
"""

from __future__ import annotations

import math
import random
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos import promises
from chaos.cluster import CommandFailed, Node
from chaos.failpoints.causes import Cause
from chaos.failpoints.directory import Directory, Strike
from chaos.failpoints.grounds import Ground
from chaos.failpoints.kept import ILL, NO_TIME, NOBODY, Plan, Survey
from chaos.faults.fault import Incidents, expects
from chaos.faults.kernel import now_ms
from chaos.faults.scene import DidNotBite, Scene
from chaos.history.history import Incomplete, load
from chaos.history.lines import NotReadable
from chaos.history.recorder import record
from chaos.programs import STEPS
from chaos.runner.health import Health
from chaos.runner.record import Broken, Expected, FaultRun, Outcome, RunRecord, shape_document
from chaos.runner.run import NotHealthy
from chaos.runner.stage import Stage
from chaos.runner.steps import StepLog
from chaos.runner.submit import job_of, submit

STRIKES_OF_A_JOB = 12
"""A node on which daemons die again and again is at last taken for a bad one."""
SCENARIO = FAMILY = "failpoint"
CAUSE = "cause"
HEALTHY_S = 40.0
STRUCK_S = 6.0
LINGER_S = 4.0
"""The light program saves every second or so: commits, collections and renewals all come in this time."""
TRIES = 3
"""The most causes that are tried for a point to which the first one does not lead again."""
STOP_S = 60.0
CHECKED = promises.CHECKS.keys() - {"phases are the stopwatch's"}
"""That promise needs a run with one fault: of a dozen, the fault behind an incident is unknown."""
LOOK_S = 0.02
SURVEY_SHARE = 0.4
"""The largest share of the time for the survey of causes."""

Say = Callable[[str], None]


class Bout:
    """One job, and the strikes while it trains: from its submission to its end inside a `with` block.

    `record` is its `run.json`; the outcome is in it once the block is left. A cause without a strike counts
    as a fault that was not in force, if the job did not survive it.
    """

    def __init__(
        self, stage: Stage, ground: Ground, directory: Path, say: Say, patience: float = 1.0
    ) -> None:
        self._stage, self._ground = stage, ground
        self._directory, self._say, self._patience = directory, say, patience
        directory.mkdir(parents=True)
        stage.number += 1
        job = job_of(stage.operator, f"bout-{stage.number}", directory)
        self._scene = Scene(stage.cluster, job, random.Random(stage.number))
        self._health = Health(self._scene, StepLog(job.step_log))
        self._recorder = record(stage.cluster, directory, job.step_log, job.name)
        self._ill = ""
        self._caused_ms, self._program_faults = math.inf, 0
        self.record = RunRecord(
            directory.name,
            SCENARIO,
            "0",
            STEPS.name,
            shape_document(stage.shape),
            job.name,
            patience,
            bound_ms=self._bound_s * 1000,
        )

    @property
    def _bound_s(self) -> float:
        return HEALTHY_S * self._patience

    @property
    def well(self) -> bool:
        """Whether the job may be struck at again."""
        return not self._ill and len(self.record.faults) < STRIKES_OF_A_JOB

    def __enter__(self) -> Self:
        job = self._scene.job
        self.record.began_ms, self.record.wall_s = now_ms(), time.time()
        self._recorder.__enter__()
        try:
            submit(job, STEPS, self._directory, self._stage.shape, self._ground.job)
            self._ill = self._health.wait(self.record.began_ms, None, self._bound_s)
        except BaseException:
            self._recorder.__exit__(None, None, None)
            raise
        view = job.view()
        self.record.job_uuid = view.uuid if view is not None else ""
        if not self._ill:
            self.record.healthy_ms = now_ms()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(CommandFailed):
            self._scene.job.operator.ctl("stop", self._scene.job.name)
        self._health.wait_end(frozenset({"stopped", "failed", "succeeded"}), STOP_S * self._patience)
        self._recorder.survey()
        self._recorder.__exit__(None, None, None)
        self.record.ended_ms = now_ms()
        points = sorted({fault.name for fault in self.record.faults if fault.family == FAMILY})
        self.record.replay = shlex.join(["python", "-m", "chaos.failpoints", "strike", *points])
        if error is None and self.record.faults:
            # Also of causes that led to no strike.
            first, last = self.record.faults[0], self.record.faults[-1]
            first.begin_ms = min(first.begin_ms, self._caused_ms)
            last.damages, last.program_faults = tuple(self._scene.damages), self._program_faults
            self._judge()
            self.record.write(self._directory)
        elif error is None and self._ill:
            self.record.why = f"{NotHealthy.__name__}: before any strike: {self._ill}"
            self.record.write(self._directory)

    def survey(self, cause: Cause) -> frozenset[str]:
        """Every point that daemons have reached by this cause."""
        for each in self._directories():
            each.forget_reached()
        done = self._fault(cause.name, CAUSE, cause)
        self._do(cause)
        time.sleep(LINGER_S)
        done.in_force_ms = done.heal_ms = now_ms()
        self.record.faults.append(done)
        self._settle()
        found = frozenset[str]().union(*(each.reached() for each in self._directories()))
        done.evidence = f"{len(found)} points were reached {self._ill}".rstrip()
        return found

    def strike(self, points: Sequence[str], cause: Cause) -> frozenset[str]:
        """Kill whoever comes to each of these points first; those to which somebody came."""
        directories = self._directories()
        before = {each for directory in directories for each in directory.struck()}
        tried = {point: self._fault(point, FAMILY, cause) for point in points}
        for directory in directories:
            for point in points:
                directory.arm(point)
        try:
            self._do(cause)
            evidence = self._wait_struck(points, before)
        finally:
            for directory in directories:
                directory.disarm()
        healed_ms = now_ms()
        for point, said in evidence.items():
            done = tried[point]
            done.evidence, done.in_force_ms, done.heal_ms = said, healed_ms, healed_ms
            self.record.faults.append(done)
            self._say(f"{point} ({cause.name}): {said}")
        self._settle()
        if evidence:
            self._say(f"healthy again after {(now_ms() - healed_ms) / 1000:.1f} s {self._ill}".rstrip())
        elif self._ill:
            self.record.faults += tried.values()
        return frozenset(evidence)

    @staticmethod
    def _fault(name: str, family: str, cause: Cause) -> FaultRun:
        return FaultRun(name, family, cause.name, Expected.of(expects(Incidents.ANY)), 0, now_ms())

    def _do(self, cause: Cause) -> None:
        """A daemon that dies in the middle of it makes it fail, which is no matter."""
        self._caused_ms = min(self._caused_ms, now_ms())
        self._program_faults += cause.program_faults
        with suppress(DidNotBite, CommandFailed, OSError):
            cause.do(self._scene)

    def _wait_struck(self, points: Sequence[str], before: set[Strike]) -> dict[str, str]:
        found: dict[str, str] = {}
        deadline = time.monotonic() + STRUCK_S * self._patience
        while len(found) < len(points) and time.monotonic() < deadline:
            for node in self._nodes():
                for each in Directory(node.failpoints).struck():
                    if each.point in points and each not in before:
                        found[each.point] = f"process {each.pid} of {node.name} killed itself at {each.point}"
            time.sleep(LOOK_S)
        return found

    def _settle(self) -> None:
        """Wait until the job is healthy again, steps, and commits."""
        since_ms, commit = self._health.mark()
        self.record.healed_ms = since_ms
        with suppress(CommandFailed):
            for node in self._cordoned():
                self._scene.job.operator.ctl("uncordon", node)
        self._ill = self._health.wait(since_ms, commit, self._bound_s)
        self.record.converged_ms = -1.0 if self._ill else now_ms()
        self.record.steps_after = self._health.log.since(since_ms)

    def _cordoned(self) -> list[str]:
        body = self._scene.job.operator.ctl("nodes")
        assert isinstance(body, dict)
        return [each["node"] for each in body["nodes"] if each["state"] == "cordoned"]

    def _judge(self) -> None:
        found = self.record
        found.write(self._directory)
        try:
            violations = promises.check_history(load(self._directory), sorted(CHECKED))
            found.violations = [Broken(*astuple(each)) for each in violations]
        except (NotReadable, Incomplete) as error:
            found.why = str(error)
            return
        if not self._recorder.whole:
            found.why = "a recording has a hole: nothing can be said of these strikes"
            return
        if self._ill:
            found.violations.append(Broken("converges", self._ill, now_ms()))
        first = next(iter(found.violations), None)
        found.outcome = Outcome.PASSED if first is None else Outcome.BROKEN
        found.why = "" if first is None else f"{first.promise}: {first.text}"

    def _directories(self) -> list[Directory]:
        return [Directory(node.failpoints) for node in self._nodes()]

    def _nodes(self) -> list[Node]:
        return [node for node in self._stage.cluster.nodes.values() if node.kind != "etcd"]


class Striker:
    """Strikes on a ground's stage, in bouts; `directory` gets one run for each.

    `at_once`: so many points at most that have a cause in common are armed together.

    Attributes:
        missed: points of the plan that were not struck, and why.
        surveyed: the runs that tried causes alone.
    """

    def __init__(
        self,
        stage: Stage,
        ground: Ground,
        directory: Path,
        say: Say,
        patience: float = 1.0,
        at_once: int = 1,
    ) -> None:
        self._stage, self._ground = stage, ground
        self._directory, self._say, self._patience = directory, say, patience
        self._at_once = at_once
        self._causes = {cause.name: cause for cause in ground.all_causes(stage)}
        self.missed: dict[str, str] = {}
        self.surveyed: list[RunRecord] = []

    def survey(self, until_s: float = math.inf) -> tuple[Plan, bool]:
        """Try the causes; returns point -> the causes that lead to it, and whether all were tried.

        Causes in the directory are not tried again. At least one cause is tried if none was, and no other
        after the survey's share of the time until `until_s` (of `time.monotonic`).
        """
        known = Survey.read(self._directory, self._ground.name)
        left = [cause for name, cause in self._causes.items() if name not in known.reached]
        begun_s = time.monotonic()
        share_s = begun_s + (until_s - begun_s) * SURVEY_SHARE
        while left and (time.monotonic() < share_s or not known.reached):
            with self._bout("survey") as bout:
                while left and bout.well and (time.monotonic() < share_s or not known.reached):
                    cause = left.pop(0)
                    reached = bout.survey(cause)
                    known.take(cause.name, reached)
                    self._say(f"{cause.name}: {cause.text}: {len(reached)} points")
            self.surveyed.append(bout.record)
            if not bout.record.faults:
                break
        return known.plan(self._causes), not left

    def strike(self, plan: Plan, until_s: float = math.inf) -> Iterator[RunRecord]:
        """Strike at each point of the plan; one record for each bout, as it ends.

        Once there was one, no strike begins after `until_s` (of `time.monotonic`); `missed` says what was
        left out.
        """
        left = {point: list(names[:TRIES]) for point, names in plan.items()}
        struck = False
        while left and (time.monotonic() < until_s or not struck):
            with self._bout("bout") as bout:
                while left and bout.well and (time.monotonic() < until_s or not struck):
                    struck |= self._strike_some(bout, left)
            if bout.record.faults or not bout.well:
                yield bout.record
            if not bout.record.faults and not bout.well:
                # Another job of this cluster would fare no better.
                self.missed |= dict.fromkeys(left, ILL)
                return
        self.missed |= dict.fromkeys(left, NO_TIME)

    def _strike_some(self, bout: Bout, left: dict[str, list[str]]) -> bool:
        """Some of those that are left, which then are no more or have a cause less; if any was struck."""
        name = next(iter(left.values()))[0]
        points = [point for point, names in left.items() if name in names][: self._at_once]
        struck = bout.strike(points, self._causes[name])
        for point in points:
            left[point].remove(name)
            if point in struck or not left[point]:
                del left[point]
                if point not in struck:
                    self.missed[point] = NOBODY
        self._say(f"{len(left)} points to go")
        return bool(struck)

    def _bout(self, kind: str) -> Bout:
        return Bout(self._stage, self._ground, self._fresh(kind), self._say, self._patience)

    def _fresh(self, kind: str) -> Path:
        """A run's directory that is not there yet."""
        taken = (path.name.rpartition("-")[2] for path in self._directory.glob(f"{kind}-*"))
        number = 1 + max((int(each) for each in taken if each.isdigit()), default=0)
        return self._directory / f"{kind}-{number:03}"
