"""Every example as data: its job file, which of its tasks are killed, and how its result is checked.

`run.py` runs a case; `make test` runs one kill of each that is `quick`, `make test-all` and the
table all kills of all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.contract.job.spec import Scope
from tests.examples.harness import EXAMPLES, Job


@dataclass(frozen=True, slots=True)
class Victim:
    """A task to kill, and how much is restarted for it (docs/strategies.md)."""

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
        quick: whether `make test` runs it; not what another case, or a program of tests/programs, shows as
            well with the same strategy.
        hangs: why TensorFlow itself may stand still in this program once its last step is made: a hang that
            is noticed and healed is then no failure of ours. Empty: it never does.
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
    quick: bool = True
    hangs: str = ""

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


def _data_service(job: Job, scratch: Path) -> str:
    line = job.printed(r"^(visited .*)$", "worker")
    assert line == "visited 1797 of 1797 images"
    right = float(job.printed(r"^training accuracy ([0-9.]+)", "worker"))
    assert right >= 0.9, f"{job.name}: accuracy {right}"
    return f"{line}, accuracy {right:.4f}"


def _plain(job: Job, scratch: Path) -> str:
    line = job.printed(r"^(the sum of .*)$", "worker")
    found = re.fullmatch(r"the sum of 1 to (\d+) is (\d+)", line)
    assert found is not None, line
    assert int(found[2]) == int(found[1]) * (int(found[1]) + 1) // 2
    return line


def _input_position(job: Job, scratch: Path) -> str:
    """Of each step the last run counts: what was trained before a restart and not saved is trained again."""
    rows = {}
    for line in (scratch / "rows").read_text().splitlines():
        step, *used = map(int, line.split())
        rows[step] = used
    assert sorted(rows) == list(range(1, len(rows) + 1))
    epoch = 57
    for first in range(1, len(rows) - epoch + 2, epoch):
        used = [row for step in range(first, first + epoch) for row in rows[step]]
        assert sorted(used) == list(range(1797)), f"epoch from step {first}"
    digest = hashlib.sha256(repr(sorted(rows.items())).encode()).hexdigest()
    return f"each image once in each of {len(rows) // epoch} epochs, order {digest[:12]}"


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


def _weights(job: Job, scratch: Path) -> str:
    """The same weights have the same digest; 16 of its digits are enough for a table."""
    digest = job.printed(r"^weights sha256 ([0-9a-f]{64})$", "worker")
    return f"weights {digest[:16]}, {accuracy('worker')(job, scratch)}"


def _watched(job: Job, scratch: Path) -> str:
    """The evaluator has judged the checkpoint of the very last step."""
    last = job.printed(r"^step (\d+) loss", "chief")
    judged = job.printed(r"^evaluated step (\d+): ", "evaluator")
    assert judged == last, f"training ended at step {last}, the evaluator at {judged}"
    return f"{accuracy('chief')(job, scratch)}, step {judged} evaluated"


PAUSE = ("--steps", "{steps}", "--pause-ms", "50")
TEARDOWN = "a chief that was done stood still, once, as TensorFlow removed the functions of its train()"

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
        quick=False,
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
        quick=False,
    ),
    Case(
        name="digits_async",
        job="digits_async/job.yaml",
        victims=(
            Victim("ps", Scope.ALL),
            Victim("worker", Scope.TASK, index=1),
            Victim("chief", Scope.ALL),
        ),
        check=accuracy("chief"),
        advance=120,
        steps=500,
        flags={
            "": ("--steps", "{steps}", "--step-delay-ms", "20", "--save-steps", "50", "--print-every", "1")
        },
        quick=False,
    ),
    Case(
        name="digits_flags",
        job="digits_flags/job.yaml",
        victims=(
            Victim("worker", Scope.TASK, index=1),
            Victim("ps", Scope.ALL),
            Victim("worker", Scope.ALL, index=0),
        ),
        check=accuracy("worker"),
        advance=120,
        steps=500,
        flags={"": ("--steps", "{steps}", "--save-steps", "50", "--pause-ms", "20")},
        note="worker 0 is the chief: its loss restarts all",
        quick=False,
    ),
    Case(
        name="digits_sync",
        job="digits_sync/job.yaml",
        victims=(
            Victim("worker", Scope.ALL, index=1),
            Victim("ps", Scope.ALL),
            Victim("chief", Scope.ALL),
        ),
        check=accuracy("chief"),
        advance=40,
        steps=200,
        flags={"": ("--steps", "{steps}", "--pause-ms", "20")},
    ),
    Case(
        name="digits_coordinator",
        job="digits_coordinator/job.yaml",
        victims=(
            Victim("ps", Scope.ALL),
            Victim("worker", Scope.TASK, index=1),
            Victim("chief", Scope.ALL),
        ),
        check=accuracy("chief"),
        advance=60,
        steps=240,
        flags={"": ("--steps", "{steps}", "--save-steps", "20", "--pause-ms", "200")},
        note="the program ends with an error when a ps dies; it and all servers start again, unchanged",
        quick=False,
        hangs=TEARDOWN,
    ),
    Case(
        name="digits_coordinator_fit",
        job="digits_coordinator/fit.yaml",
        victims=(
            Victim("ps", Scope.ALL),
            Victim("worker", Scope.TASK, index=1),
            Victim("chief", Scope.ALL),
        ),
        check=accuracy("chief"),
        advance=60,
        steps=240,
        flags={"": ("--steps", "{steps}", "--pause-ms", "400")},
        quick=False,
        hangs="of some 200 runs one stood still between tf_keras's last step and the end of its fit()",
    ),
    Case(
        name="digits_watched",
        job="digits_coordinator/watched.yaml",
        victims=(
            Victim("evaluator", Scope.TASK),
            Victim("tensorboard", Scope.TASK),
            Victim("ps", Scope.ALL),
            Victim("worker", Scope.TASK),
            Victim("chief", Scope.ALL),
        ),
        check=_watched,
        advance=60,
        steps=240,
        flags={"chief": ("--steps", "{steps}", "--save-steps", "20", "--pause-ms", "200")},
        note="training goes on while evaluator or TensorBoard come back",
        hangs=TEARDOWN,
        quick=False,
    ),
    Case(
        name="digits_multiworker",
        job="digits_multiworker/job.yaml",
        victims=(Victim("worker", Scope.ALL, index=1), Victim("worker", Scope.ALL)),
        check=_weights,
        advance=30,
        steps=120,
        flags={"": ("--steps", "{steps}", "--pause-ms", "60")},
        equal="the sha256 of all weights is the same",
        quick=False,
    ),
    Case(
        name="digits_multiworker_fit",
        job="digits_multiworker/fit.yaml",
        victims=(Victim("worker", Scope.ALL, index=1), Victim("worker", Scope.ALL)),
        check=_weights,
        advance=30,
        steps=120,
        flags={"": ("--steps", "{steps}", "--pause-ms", "60")},
        equal="the sha256 of all weights is the same",
        quick=False,
    ),
    Case(
        name="digits_keras",
        job="digits_keras/job.yaml",
        victims=(Victim("worker", Scope.ALL),),
        check=accuracy("worker"),
        advance=60,
        steps=250,
        flags={"": ("--steps", "{steps}", "--pause-ms", "10")},
        note="files that were being overwritten at the kill are not used",
        quick=False,
    ),
    Case(
        name="data_service",
        job="data_service/job.yaml",
        victims=(
            Victim("dispatcher", Scope.TASK),
            Victim("data_worker", Scope.TASK, index=1),
            Victim("worker", Scope.ALL),
        ),
        check=_data_service,
        advance=40,
        steps=200,
        flags={"worker": ("--steps", "{steps}", "--pause-ms", "20")},
        note="the trainer goes on while the service's parts come back",
    ),
    Case(
        name="plain",
        job="plain/job.yaml",
        victims=(Victim("worker", Scope.ALL),),
        check=_plain,
        advance=25,
        steps=80,
        env={"STEPS": "{steps}"},
        equal="the printed sum is the same",
        note="a shell script: started by exec, cold",
    ),
    Case(
        name="input_position",
        job="input_position/job.yaml",
        victims=(Victim("worker", Scope.ALL),),
        check=_input_position,
        advance=30,
        steps=120,
        flags={"": ("--steps", "{steps}", "--pause-ms", "20", "--rows-log", "{scratch}/rows")},
        equal="the rows of every step are the same",
        note="no image is trained on twice in an epoch",
        quick=False,
    ),
)
