"""`python -m benchmarks.counting.ledger`: does the goodput ledger tell what a stopwatch outside tells?

Jobs of one worker run on an embedded cluster, and print each step with its time. Each one's process is killed
once; in every fifth round the leader is killed right after that. What the ledger says of each job is compared
with the times of its steps and of the kill. JSON on standard output, progress on standard error.

`sum_error` is the largest difference between the sum of the categories and the time from the submission to
the moment that they tell of, as a share of it. `moment`: how long ago that was when the answer came.
`starting`, `recovering` and `redoing` are differences from the stopwatch. `phases` are differences between a
category and
the phases of the incident. All of them are in milliseconds. `unclear` are runs in which the worker restarted
more than once. Exit code 1: a goal is missed in rounds without a kill of the leader.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.support.figures import machine
from supervisor.adapters.files.jobfile import load_job_file
from supervisor.api.client import ControlClient
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.views.jobs import GoodputView, IncidentView, JobView, SubmitRequest

STATE = Path("var/bench/ledger")
AT_ONCE = 3
LEADER_EVERY = 5
WAIT_S = 60.0
LOOK_S = 0.1
MOST_SUM_ERROR = 0.005
MOST_MS = 50
PROGRAM = """
import os, sys, time
log = open(os.path.join(os.environ["TIMES"], str(os.getpid())), "w", buffering=1)
time.sleep(0.3)
for step in range(1, 1_000_000):
    time.sleep(0.03)
    print("step", step, flush=True)
    log.write(f"{step} {time.time()}\\n")
"""
JOB = """
name: {name}
strategy: plain
command: [{python}, program.py]
preload: []
env: {{TIMES: {times}}}
roles: {{worker: {{count: 1}}}}
"""
STOPWATCH = ("starting", "recovering", "redoing")
PHASES = {
    "detected": ("recovering_detect",),
    "decided": ("recovering_decide", "waiting_room"),
    "ready": ("recovering_prepare", "recovering_fence"),
    "switched": ("restoring", "waiting_store"),
    "restored": ("recovering_start",),
    "first_step": ("recovering_first_step",),
}


@dataclass(slots=True)
class Results:
    """The differences, of rounds with or without a kill of the leader."""

    runs: int = 0
    unclear: int = 0
    sums: list[float] = field(default_factory=list)
    differences: dict[str, list[float]] = field(default_factory=dict)

    def note(self, what: str, told_ms: float, seen_ms: float) -> None:
        """One figure of the ledger, and of the stopwatch."""
        self.differences.setdefault(what, []).append(round(abs(told_ms - seen_ms), 1))

    def report(self) -> dict[str, object]:
        """The figures."""
        found = {
            name: {"p50": sorted(each)[len(each) // 2], "max": max(each)}
            for name, each in self.differences.items()
        }
        sums = {"sum_error": round(max(self.sums, default=0.0), 5)}
        return {"runs": self.runs, "unclear": self.unclear, **sums, "ms": found}

    @property
    def is_met(self) -> bool:
        """Whether sums and medians are as near as they must be."""
        timed = (self.differences.get(name, [0.0]) for name in STOPWATCH)
        medians = (sorted(each)[len(each) // 2] for each in timed)
        return max(self.sums, default=0.0) <= MOST_SUM_ERROR and all(each <= MOST_MS for each in medians)


def main() -> int:
    """Run all rounds and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.counting.ledger")
    parser.add_argument("--runs", type=int, default=51, help="jobs in all (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", type=Path, default=STATE)
    flags = parser.parse_args()
    shutil.rmtree(flags.state, ignore_errors=True)
    calm, led = Results(), Results()
    with LocalCluster(flags.state / "cluster", supervisors=3, profile="default") as cluster:
        rng = random.Random(flags.seed)
        for number in range((flags.runs + AT_ONCE - 1) // AT_ONCE):
            kills_leader = number % LEADER_EVERY == LEADER_EVERY - 1
            results = led if kills_leader else calm
            asyncio.run(_round(cluster, flags.state, number, rng, results, kills_leader=kills_leader))
            say(f"round {number + 1}: {json.dumps(results.report())}")
    report = {"machine": machine(), "calm": calm.report(), "leader_killed": led.report(), "met": calm.is_met}
    print(json.dumps(report, indent=2))
    return 0 if calm.is_met else 1


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


async def _round(
    cluster: LocalCluster,
    state: Path,
    number: int,
    rng: random.Random,
    results: Results,
    *,
    kills_leader: bool,
) -> None:
    names = [f"run{number}-{index}" for index in range(AT_ONCE)]
    async with cluster.client(deadline_s=WAIT_S) as client:
        submitted = [await _submit(client, cluster, state, name) for name in names]
        begun = [await _steps(times, 1) for times in submitted]
        await asyncio.sleep(1 + rng.random())
        killed_s = []
        for processes in begun:
            killed_s.append(time.time())
            os.kill(next(iter(processes)), signal.SIGKILL)
        if kills_leader:
            await asyncio.sleep(rng.random() / 2)
            found = await client.status("")
            cluster.kill_member(next(each.supervisor for each in found.supervisors if each.leading))
        for name, times, at_s in zip(names, submitted, killed_s, strict=True):
            await _steps(times, 2)
            try:
                told, incident, now_s = await _productive(client, name)
            except TimeoutError:
                say(f"{name}: not productive in time")
                results.unclear += 1
                continue
            _compare(results, told, incident, _read(times), at_s, now_s)
        for name in names:
            await client.stop(name)


async def _submit(client: ControlClient, cluster: LocalCluster, state: Path, name: str) -> Path:
    directory = (state / name).absolute()
    times = directory / "times"
    times.mkdir(parents=True)
    (directory / "program.py").write_text(PROGRAM)
    file = directory / "job.yaml"
    file.write_text(JOB.format(name=name, python=sys.executable, times=times))
    spec = load_job_file(file, checkpoint_base=cluster.layout.checkpoint_base).spec
    await client.submit(SubmitRequest(spec))
    return times


def _read(times: Path) -> dict[int, list[tuple[int, float]]]:
    """By process, in the order in which they began: each step, and when it was made."""
    found = {}
    for path in times.iterdir():
        lines = [line.split() for line in path.read_text().splitlines()]
        steps = [(int(each[0]), float(each[1])) for each in lines if len(each) == 2]
        if steps:
            found[int(path.name)] = steps
    return dict(sorted(found.items(), key=lambda each: each[1][0][1]))


async def _steps(times: Path, processes: int) -> dict[int, list[tuple[int, float]]]:
    """Wait until so many processes have made steps."""
    for _ in range(round(WAIT_S / LOOK_S)):
        if len(_read(times)) >= processes:
            break
        await asyncio.sleep(LOOK_S)
    return _read(times)


async def _productive(client: ControlClient, name: str) -> tuple[JobView, IncidentView, float]:
    """Wait until the job makes new steps: what is told of it then, and when it was asked."""
    async with asyncio.timeout(WAIT_S):
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                before_s = time.time()
                found = await client.explain(name)
                now_s = (before_s + time.time()) / 2
            except TfSupervisorError:
                continue  # the leader was killed
            told = found.job.goodput
            if told is not None and told.now == "productive" and "redoing" in told.spent_ms:
                return found.job, found.incidents[-1], now_s


def _compare(
    results: Results,
    job: JobView,
    incident: IncidentView,
    processes: dict[int, list[tuple[int, float]]],
    killed_s: float,
    now_s: float,
) -> None:
    told = job.goodput
    if told is None or len(processes) != 2:
        results.unclear += 1
        return
    results.runs += 1
    first, second = processes.values()
    reached = first[-1][0]
    redone_s = next(at_s for step, at_s in second if step >= reached)
    since_s = job.submitted_wall_ms / 1000
    passed_ms = told.wall_ms - job.submitted_wall_ms
    results.sums.append(abs(told.elapsed_ms - passed_ms) / passed_ms)
    results.note("moment", told.wall_ms, 1000 * now_s)
    results.note("starting", _spent(told, ("starting",)), 1000 * (first[0][1] - since_s))
    recovering = [each for of in PHASES.values() for each in of]
    results.note("recovering", _spent(told, recovering), 1000 * (second[0][1] - killed_s))
    results.note("redoing", _spent(told, ("redoing",)), 1000 * (redone_s - second[0][1]))
    for phase, of in PHASES.items():
        results.note(f"phase {phase}", _spent(told, of), incident.phases_ms.get(phase, 0))


def _spent(told: GoodputView, categories: Sequence[str]) -> int:
    return sum(told.spent_ms.get(each, 0) for each in categories)


if __name__ == "__main__":
    sys.exit(main())
