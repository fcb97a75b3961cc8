"""Every example as data: its job file, which of its tasks are killed, and how its result is checked.

`run.py` runs a case; the tests run one kill of each, `make test-all` and the table all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.contract.job import Scope
from tests.examples.harness import EXAMPLES, Job


@dataclass(frozen=True, slots=True)
class Victim:
    """A task to kill, and how much DESIGN section 6 restarts for it."""

    role: str
    scope: Scope
    index: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """One example.

    Attributes:
        name: of the case and of its job; letters, digits and `_`.
        job: the job file, below `examples/`.
        victims: killed in turn; the first one is what `make test` kills.
        check: looks at a job that has succeeded; raises AssertionError, returns the result as a reader of the
            table sees it. Where the program is deterministic, equal texts are equal results.
        advance: steps that the job makes in health before each kill.
        steps: steps of an undisturbed run; each kill adds `advance` (and what `slack` says) to them.
        flags: appended to the command of a role (`""`: of the job); `{steps}` and `{scratch}` (a directory of
            the run) are filled in.
        env: added to the job's `env`; the same are filled in.
        equal: how a disturbed run's result is compared with an undisturbed one's; empty: it may differ.
        note: what a reader of the table should know.
    """

    name: str
    job: str
    victims: tuple[Victim, ...]
    check: Callable[[Job, Path], str]
    advance: int
    steps: int
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    equal: str = ""
    note: str = ""

    @property
    def file(self) -> Path:
        """The job file."""
        return EXAMPLES / self.job

    @property
    def program(self) -> str:
        """The example's directory."""
        return Path(self.job).parent.name


def printed(role: str, pattern: str, index: int = 0) -> Callable[[Job, Path], str]:
    """A check that a task printed a line; the result is what its group holds."""

    def check(job: Job, scratch: Path) -> str:
        return job.printed(pattern, role, index)

    return check


def accuracy(role: str, index: int = 0, least: float = 0.9) -> Callable[[Job, Path], str]:
    """A check of `test accuracy 0.9567`, which a task printed."""

    def check(job: Job, scratch: Path) -> str:
        value = float(job.printed(r"^test accuracy ([0-9.]+)", role, index))
        assert value >= least, f"{job.name}: accuracy {value}"
        return f"accuracy {value:.4f}"

    return check


def _zcalc(job: Job, scratch: Path) -> str:
    line = job.printed(r"^(the sum of .*)$", "client")
    found = re.fullmatch(r"the sum of z\(1\) to z\((\d+)\) is (-?\d+)", line)
    assert found is not None, line
    assert int(found[2]) == sum((x - 8) * (x + 1) for x in range(1, int(found[1]) + 1))
    return line


def _mapreduce(job: Job, scratch: Path) -> str:
    # By numpy: load_digits().data.mean(), 1797 images of 8 x 8 pixels.
    line = job.printed(r"^(mean .*)$", "client")
    assert line == "mean 4.884165 of 1797 images"
    return line


PAUSE = ("--steps", "{steps}", "--pause-ms", "50")

CASES: tuple[Case, ...] = (
    Case(
        name="zcalc",
        job="zcalc/job.yaml",
        victims=(Victim("server", Scope.ALL), Victim("client", Scope.ALL)),
        check=_zcalc,
        advance=20,
        steps=60,
        flags={"client": PAUSE},
        equal="the printed sum is the same",
        note="the client has nothing to restore and begins again",
    ),
    Case(
        name="mapreduce",
        job="mapreduce/job.yaml",
        victims=(Victim("mapper", Scope.ALL, index=1), Victim("client", Scope.ALL)),
        check=_mapreduce,
        advance=20,
        steps=60,
        flags={"client": PAUSE},
        equal="the printed mean is the same",
        note="the client has nothing to restore and begins again",
    ),
)
