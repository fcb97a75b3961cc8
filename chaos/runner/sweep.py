"""Many runs: what a seed chooses, on a cluster that is kept until a promise is broken."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from chaos.cluster import Shape
from chaos.duration import shown
from chaos.programs import DIGITS
from chaos.runner.record import Outcome, RunRecord
from chaos.runner.run import Order, Run
from chaos.runner.screen import Screen
from chaos.runner.stage import Stage
from chaos.runner.timeline import timeline
from chaos.scenarios import PAIR, Scenario

SWEEP = "sweep.json"
RUNS_ON_A_CLUSTER = 30
PAIR_EVERY = 4


@dataclass(frozen=True, slots=True)
class Sweep:
    """The order for a sweep: many runs.

    Attributes:
        for_s: no run begins after so long.
        most: so many runs at most; 0: no limit.
        digits: the share of runs with the real TensorFlow program, if that can have the fault.
        once: each scenario runs once; the time is still a limit.
    """

    directory: Path
    shape: Shape
    seed: int
    for_s: float
    scenarios: tuple[Scenario, ...]
    program: str = "steps"
    digits: float = 0.0
    most: int = 0
    once: bool = False
    patience: float = 1.0


@dataclass(slots=True)
class Summary:
    """The results of a sweep; `DIRECTORY/sweep.json`."""

    seed: int
    runs: list[dict[str, object]] = field(default_factory=list)
    counts: dict[str, dict[Outcome, int]] = field(default_factory=dict)
    outcomes: dict[Outcome, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    took_s: float = 0.0

    def take(self, record: RunRecord, directory: Path) -> None:
        """Count one run."""
        self.outcomes[record.outcome] = self.outcomes.get(record.outcome, 0) + 1
        for fault in record.faults:
            row = self.counts.setdefault(fault.name, {})
            row[record.outcome] = row.get(record.outcome, 0) + 1
        self.runs.append(
            {
                "directory": directory.name,
                "scenario": record.scenario,
                "seed": record.seed,
                "program": record.program,
                "faults": [fault.name for fault in record.faults],
                "outcome": record.outcome.value,
                "why": record.why,
                "violations": [asdict(broken) for broken in record.violations],
                "replay": record.replay,
            }
        )

    @property
    def exit_code(self) -> int:
        """1: a promise was broken; 3: a run proved nothing; 0: all passed."""
        if self.outcomes.get(Outcome.BROKEN):
            return 1
        return 3 if self.outcomes.get(Outcome.ERROR) or not self.runs else 0

    def document(self) -> str:
        """The summary as JSON."""
        body: dict[str, object] = {
            "seed": self.seed,
            "took_s": round(self.took_s, 1),
            "outcomes": {outcome.value: count for outcome, count in self.outcomes.items()},
            "faults": {
                name: {outcome.value: count for outcome, count in row.items()}
                for name, row in sorted(self.counts.items())
            },
            "missing": self.missing,
            "skipped": self.skipped,
            "runs": self.runs,
        }
        return json.dumps(body, indent=1)


class Sweeper:
    """Carries out a sweep."""

    def __init__(self, sweep: Sweep, screen: Screen) -> None:
        self._sweep, self._screen = sweep, screen
        self.summary = Summary(sweep.seed)
        self._kept = ExitStack()
        self._stage: Stage | None = None
        self._began_s = 0.0

    def perform(self) -> Summary:
        """Run until the time is over, or all is done."""
        sweep, summary = self._sweep, self.summary
        self._began_s = time.monotonic()
        sweep.directory.mkdir(parents=True, exist_ok=True)
        left = {scenario.name for scenario in sweep.scenarios}
        try:
            for number, scenario in enumerate(self.planned(), 1):
                if self._left_s() < 0:
                    summary.skipped = sorted(left)
                    break
                left.discard(scenario.name)
                self._one(number, scenario, len(left))
                summary.took_s = time.monotonic() - self._began_s
                self._write()
                if number == sweep.most:
                    break
        finally:
            self._kept.close()
            self._screen.close()
        summary.took_s = time.monotonic() - self._began_s
        self._write()
        return summary

    def _left_s(self) -> float:
        return self._sweep.for_s - (time.monotonic() - self._began_s)

    def _write(self) -> None:
        (self._sweep.directory / SWEEP).write_text(self.summary.document() + "\n")

    def _one(self, number: int, scenario: Scenario, kinds_left: int) -> None:
        sweep, screen = self._sweep, self._screen
        stage = self._on_stage(scenario.shape(sweep.shape))
        self.summary.missing |= stage.missing()
        if not scenario.possible(stage.available()):
            return
        seed = f"{sweep.seed}/{number}"
        name = f"{number:04}-{scenario.name}"
        screen.title(f"{name} ({kinds_left} kinds and {shown(max(0.0, self._left_s()))} to go)")
        order = Order(name, scenario, seed, self.program(seed, scenario), patience=sweep.patience)
        directory = sweep.directory / name
        record = Run(stage, order, directory, screen.say).perform()
        self.summary.take(record, directory)
        screen.done(record)
        if record.outcome is not Outcome.PASSED:
            screen.failure(record, timeline(record, directory))
            self._leave_stage()

    def program(self, seed: str, scenario: Scenario) -> str:
        """The program of a scenario's run; the seed chooses it."""
        chosen = random.Random(f"{seed}/program").random() < self._sweep.digits
        return DIGITS.name if chosen and scenario.fits(DIGITS) else self._sweep.program

    def _on_stage(self, shape: Shape) -> Stage:
        stage = self._stage
        if stage is not None and (stage.number >= RUNS_ON_A_CLUSTER or stage.shape != shape):
            self._leave_stage()
            stage = None
        if stage is None:
            self._screen.title("start a cluster")
            stage = self._stage = self._kept.enter_context(Stage(shape, self._sweep.directory))
        return stage

    def _leave_stage(self) -> None:
        self._kept.close()
        self._stage = None

    def planned(self) -> Iterator[Scenario]:
        """Each once; or shuffled by the seed, again and again, with pairs among them."""
        rng = random.Random(self._sweep.seed)
        known = [each for each in self._sweep.scenarios if each.name != PAIR]
        pairs = [each for each in self._sweep.scenarios if each.name == PAIR]
        if self._sweep.once:
            yield from self._shuffled(rng, [*known, *pairs])
            return
        count = 0
        while known or pairs:
            for scenario in self._shuffled(rng, known) or pairs:
                count += 1
                yield scenario
                if pairs and count % PAIR_EVERY == 0:
                    yield pairs[0]

    def _shuffled(self, rng: random.Random, scenarios: Sequence[Scenario]) -> list[Scenario]:
        """One cluster after the other, as each takes a while to start; which is first, the seed says, too:
        otherwise a short sweep would always leave out the same ones.
        """
        found: dict[str, list[Scenario]] = {}
        for scenario in rng.sample(scenarios, len(scenarios)):
            found.setdefault(repr(scenario.shape(self._sweep.shape)), []).append(scenario)
        return [scenario for group in found.values() for scenario in group]
