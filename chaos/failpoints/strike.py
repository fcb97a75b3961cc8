"""Runs that kill daemons at failpoints: on one cluster, under a job that has to be healthy again each time.

First every cause is tried, to see which points it leads to. Then each point is armed on all nodes, and its
cause repeated: whoever gets there first dies there. What starts daemons on a real machine starts it again.
A dozen strikes make one run, recorded as any other; all promises are checked when its job has ended.
"""

from __future__ import annotations

import json
import math
import random
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos import promises
from chaos.cluster import CommandFailed, Node
from chaos.failpoints.causes import CAUSES, Cause
from chaos.failpoints.directory import Directory, Strike
from chaos.faults.fault import Incidents, expects
from chaos.faults.kernel import now_ms
from chaos.faults.scene import DidNotBite, Job, Scene
from chaos.history.history import Incomplete, load
from chaos.history.lines import NotReadable
from chaos.history.recorder import record
from chaos.programs import STEPS, job_file
from chaos.runner.health import Health
from chaos.runner.record import Broken, Expected, FaultRun, Outcome, RunRecord, shape_document
from chaos.runner.run import NotHealthy
from chaos.runner.stage import Stage
from chaos.runner.steps import StepLog

STRIKES_OF_A_JOB = 12
"""A node on which daemons die again and again is at last taken for a bad one."""
SCENARIO = FAMILY = "failpoint"
HEALTHY_S = 40.0
STRUCK_S = 6.0
LINGER_S = 4.0
"""The light program saves every second or so: commits, collections and renewals all come in this time."""
TRIES = 3
"""So many causes are tried for a point to which the first one does not lead again."""
STOP_S = 60.0
CHECKED = promises.CHECKS.keys() - {"phases are the stopwatch's"}
"""That one begins with the one fault of a run; which of a dozen an incident came of, nobody can tell."""
LOOK_S = 0.02
NO_TIME, ILL, NOBODY = "there was no time", "the job was not well", "nobody came there again"
NOT_REACHED = "nothing that happens here leads there"
STRIKES = "strikes.json"

Say = Callable[[str], None]
Plan = Mapping[str, Sequence[str]]
"""Points, and the names of causes that lead to each."""


@dataclass(slots=True)
class Strikes:
    """`strikes.json`: the points at which daemons were killed, and of the others, why not."""

    struck: list[str] = field(default_factory=list)
    missed: dict[str, str] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Replace DIRECTORY/strikes.json."""
        (directory / STRIKES).write_text(json.dumps(asdict(self), indent=1) + "\n")

    def by_reason(self) -> dict[str, list[str]]:
        """The points that were missed, by why."""
        found: dict[str, list[str]] = {}
        for point, why in sorted(self.missed.items()):
            found.setdefault(why, []).append(point)
        return found


class Bout:
    """One job, and the strikes while it trains: from its submission to its end inside a `with` block.

    `record` is its `run.json`; the outcome is in it once the block is left.
    """

    def __init__(self, stage: Stage, directory: Path, say: Say, patience: float = 1.0) -> None:
        self._stage, self._directory, self._say, self._patience = stage, directory, say, patience
        directory.mkdir(parents=True)
        stage.number += 1
        job = Job(stage.operator, f"bout-{stage.number}", directory / "steplog", directory / "control")
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
        job, home = self._scene.job, self._directory
        self.record.began_ms, self.record.wall_s = now_ms(), time.time()
        self._recorder.__enter__()
        try:
            document = job_file(
                STEPS, job.name, {"STEP_LOG": str(job.step_log), "CHAOS_CONTROL": str(job.control)}
            )
            (home / "job.yaml").write_text(json.dumps(document))
            job.operator.ctl("submit", str(home / "job.yaml"))
            if why := self._health.wait(self.record.began_ms, None, self._bound_s):
                raise NotHealthy(f"before any strike: {why}")
        except BaseException:
            self._recorder.__exit__(None, None, None)
            raise
        view = job.view()
        self.record.job_uuid = view.uuid if view is not None else ""
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
        points = sorted({fault.name for fault in self.record.faults})
        self.record.replay = shlex.join(["python", "-m", "chaos.failpoints", "strike", *points])
        if error is None and self.record.faults:
            # Also of causes that led to no strike.
            first, last = self.record.faults[0], self.record.faults[-1]
            first.begin_ms = min(first.begin_ms, self._caused_ms)
            last.damages, last.program_faults = tuple(self._scene.damages), self._program_faults
            self._judge()
            self.record.write(self._directory)

    def survey(self, cause: Cause) -> frozenset[str]:
        """Every point that daemons have reached by this cause."""
        for each in self._directories():
            each.forget_reached()
        self._do(cause)
        time.sleep(LINGER_S)
        self._settle()
        return frozenset[str]().union(*(each.reached() for each in self._directories()))

    def strike(self, point: str, cause: Cause) -> bool:
        """Kill whoever comes to this point first; False when nobody does."""
        directories = self._directories()
        before = {each for directory in directories for each in directory.struck()}
        begin_ms = now_ms()
        for directory in directories:
            directory.arm(point)
        try:
            self._do(cause)
            evidence = self._wait_struck(point, before)
        finally:
            for directory in directories:
                directory.disarm()
        if not evidence:
            self._settle()
            return False
        done = FaultRun(point, FAMILY, cause.name, Expected.of(expects(Incidents.ANY)), 0, begin_ms)
        done.evidence, done.in_force_ms, done.heal_ms = evidence, now_ms(), now_ms()
        self.record.faults.append(done)
        self._settle()
        took_s = (now_ms() - done.heal_ms) / 1000
        self._say(f"{point} ({cause.name}): {evidence}, healthy again after {took_s:.1f} s {self._ill}")
        return True

    def _do(self, cause: Cause) -> None:
        """A daemon that dies in the middle of it makes it fail, which is no matter."""
        self._caused_ms = min(self._caused_ms, now_ms())
        self._program_faults += cause.program_faults
        with suppress(DidNotBite, CommandFailed, OSError):
            cause.do(self._scene)

    def _wait_struck(self, point: str, before: set[Strike]) -> str:
        deadline = time.monotonic() + STRUCK_S * self._patience
        while time.monotonic() < deadline:
            for node in self._nodes():
                for each in Directory(node.failpoints).struck():
                    if each.point == point and each not in before:
                        return f"process {each.pid} of {node.name} killed itself at {point}"
            time.sleep(LOOK_S)
        return ""

    def _settle(self) -> None:
        """Until the job is healthy again, steps, and commits."""
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
    """Strikes on a stage, in bouts; `directory` gets one run for each. `missed`: points of the plan that were
    not struck, and why.
    """

    def __init__(
        self,
        stage: Stage,
        directory: Path,
        say: Say,
        causes: Sequence[Cause] = CAUSES,
        patience: float = 1.0,
    ) -> None:
        self._stage, self._directory, self._say, self._patience = stage, directory, say, patience
        self._causes = {cause.name: cause for cause in causes}
        self.missed: dict[str, str] = {}

    def survey(self, until_s: float = math.inf) -> Plan:
        """For each point that a cause leads to, its causes in their order. None is tried after `until_s`."""
        found: dict[str, list[str]] = {}
        with self._bout("survey") as bout:
            for cause in self._causes.values():
                if time.monotonic() > until_s:
                    break
                reached = bout.survey(cause)
                for point in sorted(reached):
                    found.setdefault(point, []).append(cause.name)
                self._say(f"{cause.name}: {cause.text}: {len(reached)} points")
        return found

    def strike(self, plan: Plan, until_s: float = math.inf) -> Iterator[RunRecord]:
        """Strike at each point of the plan; one record for each bout, as it ends.

        No strike begins after `until_s` (of `time.monotonic`); `missed` says what was left out.
        """
        left = list(plan.items())
        number = 0
        while left and time.monotonic() < until_s:
            number += 1
            with self._bout(f"bout-{number:03}") as bout:
                while left and bout.well and time.monotonic() < until_s:
                    self._strike_somehow(bout, *left.pop(0), len(left))
            if bout.record.faults:
                yield bout.record
        self.missed |= {point: NO_TIME for point, _ in left}

    def _strike_somehow(self, bout: Bout, point: str, names: Sequence[str], left: int) -> None:
        for name in names[:TRIES]:
            if not bout.well:
                self.missed[point] = ILL
                return
            if bout.strike(point, self._causes[name]):
                self._say(f"{left} points to go")
                return
        self.missed[point] = NOBODY

    def _bout(self, name: str) -> Bout:
        return Bout(self._stage, self._directory / name, self._say, self._patience)
