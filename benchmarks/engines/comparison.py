"""A comparison with another tool: its command line, its course, and its document."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from benchmarks.engines.losses import (
    INTERRUPTED,
    LOST,
    NODE,
    Losses,
    Tool,
    Watcher,
    rows,
    say,
    times_faster,
)
from benchmarks.engines.spark_nodes import kill_family
from benchmarks.support.figures import machine
from benchmarks.support.quiet import Quiet
from examples.demo.job import Training
from examples.demo.steplog import StepLog
from examples.demo.watch import PromiseBroken
from supervisor.contract.errors import TfSupervisorError

ROOT = Path(__file__).resolve().parents[2]
ENDLESS = 100_000_000
SAVE_STEPS = 100


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line."""

    kills: int
    node_kills: int
    patience_s: float
    most_s: float
    step_delay_ms: float
    state: Path
    quiet: Quiet

    @property
    def plan(self) -> dict[str, int]:
        """The number of losses of each kind."""
        return {what: self.node_kills if what == NODE else self.kills for what in LOST}


class Application(ABC):
    """The part of a `Tool` that is the same for each job that a command of another tool has submitted."""

    def __init__(self, directory: Path, training: Training) -> None:
        self.step_log = StepLog(training.step_log)
        self._directory = directory
        self._training = training
        self._command = self._submit()

    @abstractmethod
    def _submit(self) -> subprocess.Popen[bytes]:
        """Start the command, which lasts as long as the application."""

    def settled(self) -> bool:
        """The other tools do not say."""
        return True

    def ended(self) -> bool:
        """Whether the application has ended."""
        return self._command.poll() is not None

    def resubmit(self) -> bool:
        """End the application, and submit it again, at once."""
        self.close()
        self._command = self._submit()
        return True

    def close(self) -> None:
        """End the command with all that it has started on this machine."""
        kill_family(self._command.pid)
        self._command.wait()


Sides: TypeAlias = Sequence[tuple[str, Callable[[Losses], None]]]
"""The name of each side, the other tool first, and the run that fills in its losses."""


def compare(flags: Flags, tool: str, sides: AbstractContextManager[Sides]) -> int:
    """Lose everything under both, and print the figures; exit code 1: one failed, 130: interrupted.

    `tool`: the other tool, with its version. `sides` has what both need while they run.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    info, theirs, own, code = machine(), Losses(), Losses(), 0
    shutil.rmtree(flags.state, ignore_errors=True)
    try:
        with sides as both:
            for (name, run), losses in zip(both, (theirs, own), strict=True):
                try:
                    run(losses)
                except TfSupervisorError as error:
                    say(f"{name}: {error}")
                    code = 1
    except KeyboardInterrupt:
        say(INTERRUPTED)
        code = 130
    print(json.dumps(_report(info, flags, tool, theirs, own), indent=2))
    return code


def parse(arguments: Sequence[str] | None, name: str, state: Path, patience_s: float) -> Flags:
    """The flags that comparisons have in common."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.engines.{name}")
    parser.add_argument("--kills", type=int, default=3, help="of a worker and of the ps (%(default)s)")
    parser.add_argument("--node-kills", type=int, default=3, help="losses of a node (%(default)s)")
    parser.add_argument(
        "--patience-s",
        type=float,
        default=patience_s,
        help="wait so long for a tool to do something itself, then submit the job again (%(default)s)",
    )
    parser.add_argument(
        "--most-s",
        type=float,
        default=150.0,
        help="begin no loss of the other tool's job later than this, and of ours half as late (%(default)s)",
    )
    parser.add_argument("--step-delay-ms", type=float, default=10.0, help="pause of each replica")
    parser.add_argument("--quiet-s", type=float, default=0.0, help="wait this long for an idle moment")
    parser.add_argument("--state", type=Path, default=state, help="scratch directory (%(default)s)")
    given = parser.parse_args(arguments)
    return Flags(
        kills=given.kills,
        node_kills=given.node_kills,
        patience_s=given.patience_s,
        most_s=given.most_s,
        step_delay_ms=given.step_delay_ms,
        state=given.state.resolve(),
        quiet=Quiet(given.quiet_s),
    )


def watcher(tool: Tool, name: str, losses: Losses, flags: Flags, most_s: float) -> Watcher:
    """It ends in time."""
    return Watcher(tool, name, losses, flags.quiet, flags.patience_s, time.monotonic() + most_s)


def fetched(script: str, *words: str) -> Path:
    """The directory that a script of ours fetches something into. Raises PromiseBroken."""
    done = subprocess.run([ROOT / script, *words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise PromiseBroken(f"{script} has failed; its words are above")
    return Path(done.stdout.split()[0])


def _report(
    info: dict[str, object], flags: Flags, tool: str, theirs: Losses, own: Losses
) -> dict[str, object]:
    """The document."""
    return {
        "benchmark": f"against {tool}",
        "machine": info,
        "settings": {
            "step_delay_ms": flags.step_delay_ms,
            "save_steps": SAVE_STEPS,
            "patience_s": flags.patience_s,
            "quiet_s": flags.quiet.patience_s,
        },
        tool: theirs.report(),
        "supervised": own.report(),
        "times_faster": times_faster(own, theirs),
        "losses": {tool: rows(theirs), "supervised": rows(own)},
    }
