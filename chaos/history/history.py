"""One run, as all recordings together tell it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from chaos.history import formats, lines
from chaos.history.formats import (
    CUT,
    FaultRecord,
    Leak,
    Left,
    RunRecord,
    StepLine,
    StoreLine,
    Transaction,
    Watched,
)
from chaos.history.lives import FOREVER, Life, lives, name_attempts
from chaos.history.past import Moment, State, moments, walk


class Incomplete(ValueError):
    """A recording has a hole: what is concluded from it would be worth nothing."""


@dataclass(slots=True)
class History:
    """The input of the checkers. Lists are in the order of time.

    Attributes:
        transactions: from etcd's own log; empty where that could not be read.
        watches: what each client of the product's API was sent.
        ended_ms: when the recording ended.
    """

    run: RunRecord = field(default_factory=RunRecord)
    moments: list[Moment] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    steps: list[StepLine] = field(default_factory=list)
    store: list[StoreLine] = field(default_factory=list)
    watches: dict[str, tuple[Watched, ...]] = field(default_factory=dict)
    left: tuple[Left, ...] = ()
    leaks: tuple[Leak, ...] = ()
    ended_ms: float = FOREVER

    def walk(self) -> Iterator[tuple[Moment, State]]:
        """Each change of etcd, with the state before it."""
        return walk(self.moments)

    def state_at(self, at_ms: float) -> State:
        """Etcd as it surely was by then."""
        state = State()
        for moment in self.moments:
            if moment.at_ms > at_ms:
                break
            state.apply(moment)
        return state

    def final(self) -> State:
        """Etcd at the end."""
        return self.state_at(FOREVER)

    def jobs(self) -> list[str]:
        """The jobs that the run is about: its own, or all without one."""
        if self.run.job:
            return [self.run.job]
        found = {line.key.split("/")[1] for moment in self.moments for line in moment.put("switches/")}
        return sorted(found)

    def of_job(self, job: str) -> list[StepLine]:
        """The lines of the step logs of a job's tasks."""
        return [line for line in self.steps if line.attempt.startswith(f"{job}/")]

    def faults_between(self, from_ms: float, to_ms: float) -> list[FaultRecord]:
        """The faults that may explain events in this span, with their recovery."""
        return [
            fault for fault in self.run.faults if fault.begin_ms <= to_ms and from_ms <= self.until_ms(fault)
        ]

    def until_ms(self, fault: FaultRecord) -> float:
        """The time until which a fault may have consequences."""
        healed = max(fault.heal_ms, self.run.healed_ms)
        if fault.heal_ms < 0:
            return FOREVER
        return max(self.run.converged_ms, healed + max(0.0, self.run.bound_ms))


def load(directory: Path) -> History:
    """Read a run's directory. Raises Incomplete, NotReadable, OSError."""
    changes = lines.read(formats.EtcdLine, directory / formats.ETCD)
    recorded = False
    for change in changes:
        if change.kind == CUT and recorded:
            raise Incomplete(f"etcd's history up to revision {change.revision} was compacted too early")
        recorded = recorded or change.kind != CUT
    run_file = directory / formats.RUN
    run = lines.parse(RunRecord, run_file.read_bytes()) if run_file.exists() else RunRecord()
    events = lines.read(formats.ProcessLine, directory / formats.PROCESSES)
    all_moments = moments(changes)
    seen = [line.at_ms for line in events] + [moment.at_ms for moment in all_moments]
    # The recording went on for as long as the run did; what was quiet then was quiet for all of it.
    ended_ms = max([*seen, run.ended_ms])
    found = lives(events, ended_ms)
    name_attempts(found, all_moments)
    return History(
        run=run,
        moments=all_moments,
        transactions=list(lines.read(Transaction, directory / formats.TRANSACTIONS)),
        lives=found,
        steps=sorted(lines.read(StepLine, directory / formats.STEPS), key=lambda line: line.at_ms),
        store=list(lines.read(StoreLine, directory / formats.STORE)),
        watches={path.name: lines.read(Watched, path) for path in sorted(directory.glob(formats.WATCHES))},
        left=lines.read(Left, directory / formats.LEFT),
        leaks=lines.read(Leak, directory / formats.LEAKS),
        ended_ms=ended_ms,
    )
