"""The systems under test: a supervised job, and plain TensorFlow kept alive by a shell loop in two ways.

All run the same program with the same flags on this machine, and all are measured by the same outside
stopwatch: the program's own step log.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from benchmarks.support.quiet import Quiet
from examples.demo import kernel
from examples.demo.job import PROGRAM, Training
from examples.demo.steplog import StepLog
from examples.demo.watch import TRAINERS, PromiseBroken, Watch
from supervisor.contract.incident import Cause, Outcome
from supervisor.contract.views.jobs import IncidentView

POLL_S = 0.03
READY_S = 120.0
RECOVERED_S = 120.0
IN_FLIGHT_NS = 250_000_000
"""A step that the parameter server had answered before it was killed may be written this much later."""


class Subject(Protocol):
    """A job under load whose tasks can be killed."""

    step_log: StepLog

    def pid_of(self, task: str) -> int:
        """The process of a task now."""

    def settled(self) -> bool:
        """Whether nothing is being recovered, as far as the system itself knows."""

    def restarted_with(self, task: str) -> Sequence[str]:
        """The trainers that get new processes when this task is killed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One kill. `first_ms`: to the first new step of the killed trainer, or of any if it was a ps;
    `all_ms`: until every trainer has stepped again. `phases_ms`: of our incident.
    """

    first_ms: float
    all_ms: float
    phases_ms: dict[str, int] = field(default_factory=dict)


async def measure(subject: Subject, task: str, advance: int, quiet: Quiet) -> Sample:
    """Wait until the job has trained `advance` steps in health, kill, and time it from outside."""
    log, since_ns = subject.step_log, time.monotonic_ns()
    start = log.newest()
    at = start.step if start is not None else 0

    def under_load() -> bool:
        newest = log.newest()
        return (
            subject.settled()
            and newest is not None
            and newest.step >= at + advance
            and all(log.first_after(since_ns, trainer) for trainer in TRAINERS)
        )

    await until(log, under_load, "load before a kill", READY_S)
    await quiet.wait()
    log.read()
    before, renewed = log.processes(), subject.restarted_with(task)
    pid = subject.pid_of(task)
    killed_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)

    def first(trainer: str) -> int | None:
        in_flight_ns = IN_FLIGHT_NS if task not in TRAINERS and trainer not in renewed else 0
        step = log.first_after(
            killed_ns + in_flight_ns, trainer, not_of=before if trainer in renewed else frozenset()
        )
        return None if step is None else step.ns - killed_ns

    await until(log, lambda: all(first(trainer) is not None for trainer in TRAINERS), f"steps after {task}")
    times = {trainer: (first(trainer) or 0) / 1e6 for trainer in TRAINERS}
    return Sample(times.get(task, min(times.values())), max(times.values()))


async def until(
    log: StepLog, condition: Callable[[], object], what: str, deadline_s: float = RECOVERED_S
) -> None:
    """Wait for a condition on the step log; raises PromiseBroken at the deadline."""
    deadline = time.monotonic() + deadline_s
    while True:
        log.read()
        if condition():
            return
        if time.monotonic() > deadline:
            raise PromiseBroken(f"not seen within {deadline_s:g} s: {what}")
        await asyncio.sleep(POLL_S)


@dataclass(slots=True)
class Supervised:
    """A job of an embedded cluster. `cold`: its tasks are not started warm."""

    watch: Watch
    cold: bool = False
    step_log: StepLog = field(init=False)
    seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.step_log = self.watch.step_log

    def pid_of(self, task: str) -> int:
        """As the supervisor says."""
        return self.watch.pids[task]

    def settled(self) -> bool:
        """All tasks run and no incident is open."""
        return self.watch.healthy_since(0)

    def restarted_with(self, task: str) -> Sequence[str]:
        """The table of docs/strategies.md, async. Where tasks start cold the trainers may run on."""
        if task.startswith("ps"):
            return () if self.cold else TRAINERS
        return (task,)

    async def incident(self) -> IncidentView:
        """The incident of the last kill, when it is over."""
        found: list[IncidentView] = []

        def over() -> bool:
            found[:] = [
                incident
                for incident in self.watch.incidents
                if incident.id not in self.seen
                and incident.outcome is Outcome.RECOVERED
                and incident.cause != Cause.SUBMITTED.value
            ]
            return bool(found)

        await until(self.step_log, over, "a recovered incident")
        self.seen |= {incident.id for incident in self.watch.incidents}
        return found[0]


class Plain(ABC):
    """TensorFlow as it comes, kept alive by shells that are started in `_start`, as a context manager."""

    def __init__(self, directory: Path, training: Training) -> None:
        self.step_log = StepLog(training.step_log)
        self._directory = directory
        self._training = training
        self._loops: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        shutil.rmtree(self._directory, ignore_errors=True)
        (self._directory / "checkpoints").mkdir(parents=True)
        roles = {"chief": 1, "ps": 1, "worker": 2}
        addresses = iter(free_addresses(sum(roles.values())))
        cluster = {role: [next(addresses) for _ in range(count)] for role, count in roles.items()}
        self._start(
            {
                f"{role}:{index}": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})
                for role, count in roles.items()
                for index in range(count)
            }
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for loop in self._loops.values():
            os.killpg(loop.pid, signal.SIGKILL)
        for loop in self._loops.values():
            loop.wait()
        self._stack.close()

    def settled(self) -> bool:
        """A loop knows nothing."""
        return True

    @abstractmethod
    def _start(self, tasks: dict[str, str]) -> None:
        """Start the tasks, each with its TF_CONFIG."""

    def _shell(self, name: str, arguments: list[str], env: dict[str, str]) -> None:
        log = self._stack.enter_context((self._directory / f"{name.replace(':', '-')}.log").open("ab"))
        self._loops[name] = subprocess.Popen(
            arguments,
            env={**os.environ, **self._variables(), **env},
            cwd=PROGRAM.parent,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def _variables(self) -> dict[str, str]:
        return {
            "CHECKPOINT_DIR": str(self._directory / "checkpoints"),
            "STEP_LOG": str(self._training.step_log),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_ENABLE_ONEDNN_OPTS": "0",
        }

    def _command(self) -> list[str]:
        return [sys.executable, str(PROGRAM), *self._training.flags()]


class ShellLoop(Plain):
    """`while true; do python train.py; done` for each task."""

    def pid_of(self, task: str) -> int:
        """The child that the loop runs now."""
        root = self._loops[task].pid
        return next(ref.pid for ref in kernel.family(root) if ref.pid != root)

    def restarted_with(self, task: str) -> Sequence[str]:
        """The killed process alone; the others see a broken connection and try again."""
        return () if task.startswith("ps") else (task,)

    def _start(self, tasks: dict[str, str]) -> None:
        for task, tf_config in tasks.items():
            script = ["/bin/sh", "-c", 'while true; do "$@"; done', "loop", *self._command()]
            self._shell(task, script, {"TF_CONFIG": tf_config})


class RestartAll(Plain):
    """One loop around the whole job: when any task ends, all are killed and started again."""

    def pid_of(self, task: str) -> int:
        """The process that the loop started last for this task."""
        return int(self._pid_file(task).read_text())

    def restarted_with(self, task: str) -> Sequence[str]:
        """Every trainer, whichever task was killed."""
        del task
        return TRAINERS

    def _start(self, tasks: dict[str, str]) -> None:
        command = shlex.join(self._command())
        lines = [
            f"TF_CONFIG={shlex.quote(tf_config)} {command} & echo $! > {self._quoted_pid_file(task)}"
            for task, tf_config in tasks.items()
        ]
        pids = " ".join(map(self._quoted_pid_file, tasks))
        script = ["while true; do", *lines, "wait -n", f"kill -9 $(cat {pids}); wait", "done"]
        self._shell("all", ["bash", "-c", "\n".join(script)], {})

    def _quoted_pid_file(self, task: str) -> str:
        return shlex.quote(str(self._pid_file(task)))

    def _pid_file(self, task: str) -> Path:
        return self._directory / f"{task.replace(':', '-')}.pid"


def free_addresses(count: int) -> list[str]:
    """Loopback addresses that nobody listens on now, below the ports that the kernel gives to clients."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
