"""`python -m benchmarks.deciding`: what a decision takes, and what a cluster at rest costs.

An embedded cluster runs one job of several plain programs. They are killed in turn. Timed is from each kill
until the next attempt begins: the agent notices and reports, the leader decides, the agent starts. While
nothing happens, the daemons' processor time is read: they spend it on beats and looks. With `--before REV`
the daemons of that revision do the same in turn with today's. JSON on standard output, progress on standard
error.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self, TypeVar

from benchmarks.support.figures import figures, machine
from benchmarks.support.revision import in_turns

T = TypeVar("T")

REST_S = 20.0
PAUSE_S = 0.3
WAIT_S = 60.0
PROGRAM = """
import os, sys, time
with open(os.path.join(sys.argv[1], "began"), "a") as file:
    print(os.environ["TFSUP_TASK"], os.getpid(), time.clock_gettime_ns(time.CLOCK_BOOTTIME), file=file)
step = 0
while True:
    step += 1
    print("step", step, flush=True)
    time.sleep(0.1)
"""


@dataclass(slots=True)
class Samples:
    """Of the daemons of one revision.

    Attributes:
        begins_ms: from each kill until the next attempt begins.
        rest_ms: processor time of a daemon in each second at rest, by its kind.
    """

    begins_ms: list[float] = field(default_factory=list)
    rest_ms: dict[str, list[float]] = field(default_factory=dict)

    def row(self) -> dict[str, object]:
        """For JSON."""
        rest = {kind: figures(found) for kind, found in self.rest_ms.items()}
        begins = figures(self.begins_ms)
        return {
            "kill_to_next_attempt_ms": asdict(begins) if begins else None,
            "processor_ms_per_second_at_rest": {k: asdict(each) for k, each in rest.items() if each},
        }


class Cluster:
    """An embedded cluster of the code in `tree`."""

    def __init__(self, tree: Path, directory: Path, profile: str) -> None:
        self._tree = tree
        self._directory = directory
        self._profile = profile

    def __enter__(self) -> Self:
        self.run("local", "up", "--profile", self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        self.run("local", "down")

    def run(self, *command: str) -> str:
        """The output of `supervisorctl`. Raises CalledProcessError."""
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "supervisor.cli.main",
                *command,
                "--state",
                str(self._directory / "state"),
            ],
            cwd=self._tree,
            env={**os.environ, "PYTHONPATH": str(self._tree)},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    def submit(self, tasks: int) -> None:
        """Submit the job; returns when each of its tasks runs."""
        (self._directory / "program.py").write_text(PROGRAM)
        spec = {
            "name": "steps",
            "command": ["python", str(self._directory / "program.py"), str(self._directory)],
            "strategy": "plain",
            "roles": {"worker": {"count": tasks}},
            "restart": {"scope": {"worker": "task"}},
            "checkpoint": {"uri": (self._directory / "checkpoints").as_uri()},
        }
        path = self._directory / "job.json"
        path.write_text(json.dumps(spec))
        self.run("submit", str(path))
        _until(lambda: len({task for task, _, _ in self._began()}) == tasks, "the first attempts")

    def kill(self, turn: int) -> float:
        """Kill one task, of each in turn: ms until its next attempt begins."""
        newest = {task: pid for task, pid, _ in self._began()}
        task = sorted(newest)[turn % len(newest)]
        killed_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        os.kill(newest[task], signal.SIGKILL)

        def again() -> int | None:
            return next((ns for name, _, ns in self._began() if name == task and ns > killed_ns), None)

        return (_until(again, f"the next attempt of {task}") - killed_ns) / 1e6

    def rest(self) -> dict[str, float]:
        """Processor time of each daemon while nothing happens, in ms for each second."""
        before, began_s = self._used(), time.monotonic()
        time.sleep(REST_S)
        used, took_s = self._used(), time.monotonic() - began_s
        return {name: (used[name] - before[name]) / took_s for name in before if name in used}

    def _used(self) -> dict[str, float]:
        members = json.loads(self.run("local", "status", "--output", "json"))["members"]
        found: dict[str, float] = {}
        for each in members:
            stat = Path(f"/proc/{each['pid']}/stat").read_text().rpartition(")")[2].split()
            found[each["member"]] = sum(map(int, stat[11:13])) * 1000 / os.sysconf("SC_CLK_TCK")
        return found

    def _began(self) -> list[tuple[str, int, int]]:
        path = self._directory / "began"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(task, int(pid), int(ns)) for task, pid, ns in map(str.split, lines)]


def _until(look: Callable[[], T | None], what: str) -> T:
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        if found := look():
            return found
        time.sleep(0.002)
    raise TimeoutError(f"{what}: not within {WAIT_S:g} s")


def _measure(tree: Path, flags: argparse.Namespace, samples: Samples) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="deciding-") as directory,
        Cluster(tree, Path(directory), flags.profile) as cluster,
    ):
        cluster.submit(flags.tasks)
        for name, ms in cluster.rest().items():
            samples.rest_ms.setdefault(name.partition("-")[0], []).append(round(ms, 2))
        for turn in range(flags.kills):
            samples.begins_ms.append(round(cluster.kill(turn), 1))
            time.sleep(PAUSE_S)


def main() -> int:
    """Parse the flags, measure, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.deciding", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--before", help="a revision whose daemons are measured, too")
    parser.add_argument("--tasks", type=int, default=6, help="of the job (%(default)s)")
    parser.add_argument("--blocks", type=int, default=4, help="clusters of each revision (%(default)s)")
    parser.add_argument("--kills", type=int, default=25, help="in a block (%(default)s)")
    parser.add_argument("--profile", choices=("fast", "default"), default="fast", help="(%(default)s)")
    flags = parser.parse_args()
    about, found = machine(), dict[str, Samples]()
    for name, tree in in_turns(flags.before, flags.blocks):
        _measure(tree, flags, found.setdefault(name, Samples()))
    document = {
        "benchmark": "deciding",
        "machine": about,
        "settings": vars(flags),
        "daemons": {name: samples.row() for name, samples in found.items()},
    }
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
