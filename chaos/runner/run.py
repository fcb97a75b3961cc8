"""One run: the job is healthy, faults come and go, it is healthy again; then every promise is checked."""

from __future__ import annotations

import random
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path

from chaos import promises
from chaos.cluster import CommandFailed
from chaos.faults.fault import Fault
from chaos.faults.kernel import now_ms
from chaos.faults.scene import DidNotBite, Scene
from chaos.history import recorder as history
from chaos.history.history import Incomplete
from chaos.history.lines import NotReadable
from chaos.programs import PROGRAMS
from chaos.runner.health import Health
from chaos.runner.record import Broken, Expected, FaultRun, Outcome, RunRecord, shape_document
from chaos.runner.stage import Stage
from chaos.runner.steps import StepLog
from chaos.runner.submit import job_of, submit
from chaos.scenarios import Scenario
from supervisor.contract.checkpoint import CheckpointRef

APART_S = 1.0
TARGET_S = 5.0
ORDERED = 0.3
"""The share of runs in which programs start when those that they need listen."""
STOP_S, STOP_AGAIN_S = 60.0, 0.5
ENDED = frozenset({"stopped", "failed", "succeeded"})
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Order:
    """The order for one run.

    Attributes:
        targets: fault's name -> its target in the run to repeat; the seed chooses all others.
        patience: bounds are so many times longer: for a machine that is busy with other work.
    """

    id: str
    scenario: Scenario
    seed: str
    program: str = "steps"
    targets: dict[str, str] = field(default_factory=dict)
    patience: float = 1.0


class NotHealthy(Exception):
    """The job was not healthy before anything was done to it: what follows would prove nothing."""


class Run:
    """One run on a stage. `directory` is its own, and empty."""

    def __init__(self, stage: Stage, order: Order, directory: Path, say: Say) -> None:
        # Tasks are told of it, whose working directory is another.
        directory = directory.resolve()
        self._stage, self._order, self._directory, self._say = stage, order, directory, say
        self._program = PROGRAMS[order.program]
        self._random = random.Random(order.seed)
        self._unwell = ""
        self._patience = order.patience * self._program.patience
        stage.number += 1
        directory.mkdir(parents=True, exist_ok=True)
        name = f"{self._program.name}-{stage.number}"
        job = job_of(stage.operator, name, directory)
        self._scene = Scene(stage.cluster, job, self._random)
        self._health = Health(self._scene, StepLog(job.step_log))
        self.record = RunRecord(
            order.id,
            order.scenario.name,
            order.seed,
            order.program,
            shape_document(stage.shape),
            name,
            self._patience,
        )
        self.record.replay = shlex.join(["python", "-m", "chaos", "replay", str(directory)])

    def perform(self) -> RunRecord:
        """Perform the run; the record has its outcome, also after an error."""
        record = self.record
        record.began_ms, record.wall_s = now_ms(), time.time()
        try:
            self._recorded()
            record.ended_ms = now_ms()
            self._judge()
        except (DidNotBite, NotHealthy) as error:
            record.why = f"{type(error).__name__}: {error}"
        except (OSError, AssertionError, CommandFailed, NotReadable, Incomplete) as error:
            record.why = f"the run itself failed: {type(error).__name__}: {error}"
        record.ended_ms = now_ms()
        if record.outcome is not Outcome.PASSED:
            self._keep_logs()
        record.write(self._directory)
        return record

    def _recorded(self) -> None:
        """Everything is recorded from before the job is there until nothing of it should be."""
        job = self._scene.job
        with history.record(self._stage.cluster, self._directory, job.step_log, job.name) as recorder:
            try:
                self._play()
            finally:
                with self._phase("stop"):
                    self._stop()
                    recorder.survey()
        if not recorder.whole:
            raise DidNotBite("a recording has a hole: nothing can be said of this run")

    def _play(self) -> None:
        record, health, job = self.record, self._health, self._scene.job
        with self._phase("healthy"):
            # By a draw of its own: the others are those of runs before there was this one.
            ordered = random.Random(f"order {self._order.seed}").random() < ORDERED
            how = ", in order" if ordered else ""
            self._say(f"submit {job.name}{how}, and wait until every task steps and something is committed")
            submit(job, self._program, self._directory, self._stage.shape, ordered=ordered)
            if why := health.wait(record.began_ms, None, self._program.first_steps_s * self._order.patience):
                raise NotHealthy(f"before any fault: {why}")
            view = job.view()
            record.job_uuid = view.uuid if view is not None else ""
            record.healthy_ms = now_ms()
            self._scene.tasks()
        chosen, count = self._order.scenario.choose(self._random, self._stage.available())
        with self._phase("faults"):
            faults = self._inject(chosen, count)
        record.healed_ms, before = health.mark()
        with self._phase("converge"):
            self._converge(faults, before)

    def _inject(self, faults: Sequence[Fault], count: int) -> list[Fault]:
        """Enter so many, one after the other; leave each when its time is over, also after an error.

        Returns those. One of more than `count` that finds nothing to be done to is left out.
        """
        inside: list[tuple[float, FaultRun, AbstractContextManager[str]]] = []
        entered: list[Fault] = []
        try:
            for left, fault in zip(reversed(range(len(faults))), faults, strict=True):
                if entered:
                    time.sleep(self._random.uniform(0.0, APART_S))
                try:
                    targets = self._wait_targets(fault)
                except DidNotBite as error:
                    if len(entered) + left < count:
                        raise
                    self._say(f"left out {fault.name}: {error}")
                    continue
                inside.append(self._enter(fault, targets))
                entered.append(fault)
                if len(entered) == count:
                    break
            for until_s, _, _ in sorted(inside, key=lambda each: each[0]):
                time.sleep(max(0.0, until_s - time.monotonic()))
                self._leave(inside)
        finally:
            self._leave(inside, everything=True)
        return entered

    def _wait_targets(self, fault: Fault) -> list[str]:
        """The targets that the fault can have, waiting while another fault in force leaves none."""
        return self._scene.wait(
            f"something to do {fault.name} to", lambda: self._targets(fault), TARGET_S * self._patience
        )

    def _enter(
        self, fault: Fault, targets: Sequence[str]
    ) -> tuple[float, FaultRun, AbstractContextManager[str]]:
        asked = self._order.targets.get(fault.name, "")
        chosen = self._random.choice(targets)
        target = asked if asked in targets else chosen
        hold_s = self._random.uniform(*fault.hold_s)
        done = FaultRun(
            fault.name, fault.family.value, target, Expected.of(fault.expects), fault.expects.program_faults
        )
        self.record.faults.append(done)
        self._say(f"inject {fault.name} ({fault.text}): {target}")
        context = fault.inject(self._scene, target)
        done.begin_ms = now_ms()
        done.evidence = context.__enter__()
        done.in_force_ms = now_ms()
        self._say(f"in force: {done.evidence}; held for {hold_s:.1f} s")
        return time.monotonic() + hold_s, done, context

    def _targets(self, fault: Fault) -> list[str] | None:
        with suppress(DidNotBite):
            return sorted(fault.targets(self._scene)) or None
        return None

    def _leave(
        self,
        inside: list[tuple[float, FaultRun, AbstractContextManager[str]]],
        *,
        everything: bool = False,
    ) -> None:
        for entry in [*inside]:
            until_s, done, context = entry
            if everything or until_s <= time.monotonic():
                inside.remove(entry)
                context.__exit__(None, None, None)
                done.heal_ms = now_ms()
                self._say(f"healed {done.name}")
        for done in self.record.faults:
            done.damages = tuple(self._scene.damages)

    def _converge(self, faults: Sequence[Fault], before: CheckpointRef | None) -> None:
        record, health = self.record, self._health
        bound_s = max(fault.bound_s for fault in faults) * self._patience
        record.bound_ms = bound_s * 1000
        ends = frozenset[str]().union(*(fault.expects.ends for fault in faults))
        why = health.wait_end(ends, bound_s) if ends else health.wait(record.healed_ms, before, bound_s)
        if why:
            self._say(f"not healthy again within {bound_s:g} s: {why}")
            self._unwell = why
            return
        record.converged_ms = now_ms()
        record.steps_after = health.log.since(record.healed_ms)
        self._say(
            f"healthy again {(record.converged_ms - record.healed_ms) / 1000:.1f} s after the heal, "
            f"{record.steps_after} steps"
        )

    def _stop(self) -> None:
        """The end of the job: what is left of it then is left behind."""
        deadline = time.monotonic() + STOP_S * self._patience
        # It is refused while nobody leads, and when the job has ended by itself.
        while self._health.wait_end(ENDED, 0.0) and time.monotonic() < deadline:
            with suppress(CommandFailed):
                self._stage.operator.ctl("stop", self._scene.job.name)
                self._health.wait_end(ENDED, deadline - time.monotonic())
                return
            time.sleep(STOP_AGAIN_S)

    def _keep_logs(self) -> None:
        """Copy the logs of the cluster's daemons: the cluster's own directory is removed later."""
        for log in sorted((self._stage.cluster.root / "nodes").glob("*/*.log")):
            target = self._directory / "logs" / log.parent.name
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(log, target)

    def _judge(self) -> None:
        record = self.record
        record.write(self._directory)
        with self._phase("check"):
            found = promises.check(self._directory)
        record.violations += [Broken(*astuple(violation)) for violation in found]
        if self._unwell and all(violation.promise != "converges" for violation in found):
            record.violations.append(Broken("converges", self._unwell, now_ms()))
        ends = any(done.expects.ends for done in record.faults)
        if record.violations:
            first = record.violations[0]
            record.outcome, record.why = Outcome.BROKEN, f"{first.promise}: {first.text}"
        elif not ends and not record.steps_after:
            record.why = "no step was made afterwards"
        else:
            record.outcome, record.why = Outcome.PASSED, ""

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began_ms = now_ms()
        try:
            yield
        finally:
            self.record.phases[name] = now_ms() - began_ms
