"""`python -m benchmarks.resizing`: a running job gets another number of workers, again and again.

An embedded cluster trains the digits (asynchronous, one ps); the number of workers is changed at random with
`supervisorctl scale`. The stopwatch is the program's own step log. JSON on standard output, progress on
standard error.

`--arm live`: workers join and leave. `--arm restart`: the job says `restart.scope: {worker: all}`, so that
all restart.

`whole` is from the wish until exactly the wanted workers train. `new_step` is from the wish until the first
step of a worker that is new, where the job grows. `stands_still` is the longest time without a step of any
task meanwhile. `flip` is from the wish until the next generation is in force, most of which the next save is
waited for. `steps_again` counts the steps that are made a second time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import time
from bisect import bisect_right
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from benchmarks.support.figures import figures, machine
from benchmarks.support.subjects import until
from examples.demo.job import Training, digits_job
from examples.demo.steplog import StepLog
from examples.demo.watch import Watch, beside
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.incident import Outcome
from supervisor.contract.job.spec import Scope
from supervisor.contract.views.jobs import SubmitRequest

STATE = Path("var/bench/resizing")
ENDLESS = 100_000_000
SAVE_STEPS = 200
STEP_DELAY_MS = 10.0
MOST_WORKERS = 4
WAIT_S = 120.0
STATUS_EVERY_S = 0.1


@dataclass(slots=True)
class Results:
    """Of all resizes: durations in ms by name, counts of steps, and generations that no resize asked for."""

    times: dict[str, list[float]] = field(default_factory=dict)
    steps_again: list[int] = field(default_factory=list)
    lost_commits: int = 0
    other_restarts: int = 0


class Rounds:
    """A job that trains, and its resizes."""

    def __init__(self, watch: Watch, results: Results, *, live: bool) -> None:
        self._live = live
        self._watch = watch
        self._log = watch.step_log
        self._results = results

    async def resize(self, workers: int, before: int) -> None:
        """Ask for so many workers, and wait until exactly those train."""
        watch, log = self._watch, self._log
        assert watch.view is not None
        generation, old = watch.view.generation, log.processes()
        asked_ns, committed = time.monotonic_ns(), watch.committed_step
        await watch.client.scale(watch.job, {"worker": workers})
        if self._live:
            await self._until(lambda: self._has(workers, asked_ns), f"steps of {workers} workers")
        else:
            await self._until(lambda: self._generation > generation, "the next generation")
            self._note("flip", (time.monotonic_ns() - asked_ns) / 1e6)
            await self._until(lambda: self._has(workers, asked_ns, old), f"steps of {workers} workers")
            self._note_steps_again(asked_ns, old, committed)
        done_ns = time.monotonic_ns()
        self._note("whole", (done_ns - asked_ns) / 1e6)
        new = [log.first_after(asked_ns, f"worker:{index}", not_of=old) for index in range(before, workers)]
        if first := min((step.ns for step in new if step is not None), default=0):
            self._note("new_step", (first - asked_ns) / 1e6)
        self._note("stands_still", self._longest_gap_ns(asked_ns) / 1e6)
        if self._generation != generation + (not self._live):
            self._results.other_restarts += 1
        say(f"{workers} workers: {json.dumps({k: v[-1] for k, v in self._results.times.items()})}")

    def _note(self, name: str, ms: float) -> None:
        self._results.times.setdefault(name, []).append(round(ms, 1))

    def _note_steps_again(self, asked_ns: int, old: frozenset[int], committed: int) -> None:
        first = self._log.first_after(asked_ns, not_of=old)
        assert first is not None
        every = (step for steps in self._log.steps.values() for step in steps)
        reached = max(step.step for step in every if step.file in old and step.ns < first.ns)
        self._results.steps_again.append(max(0, reached - first.step + 1))
        self._results.lost_commits += first.step <= committed

    def _longest_gap_ns(self, since_ns: int) -> int:
        """The longest time without a step of any task."""
        every = sorted(step.ns for steps in self._log.steps.values() for step in steps)
        recent = every[max(0, bisect_right(every, since_ns) - 1) :]
        return max((after - before for before, after in pairwise(recent)), default=0)

    async def healthy(self) -> None:
        """All that is wanted runs, and the last incident is over."""
        await self._until(
            lambda: (
                self._watch.view is not None
                and self._watch.view.newest_commit is not None
                and not any(each.outcome is Outcome.OPEN for each in self._watch.incidents)
            ),
            "a job that is well and has saved",
        )

    def _has(self, workers: int, since_ns: int, before: frozenset[int] = frozenset()) -> bool:
        """Whether exactly so many workers train, in processes that are not of `before`."""
        there = sum(name.startswith("worker:") for name in self._watch.tasks)
        stepped = all(
            self._log.first_after(since_ns, task, not_of=before) for task in self._trainers(workers)
        )
        over = not any(each.outcome is Outcome.OPEN for each in self._watch.incidents)
        return there == workers and stepped and over

    @property
    def _generation(self) -> int:
        return self._watch.view.generation if self._watch.view is not None else 0

    def _trainers(self, workers: int) -> tuple[str, ...]:
        return ("chief:0", *(f"worker:{index}" for index in range(workers)))

    async def _until(self, condition: object, what: str) -> None:
        assert callable(condition)
        await until(self._log, condition, what, WAIT_S)


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


async def _run(cluster: LocalCluster, training: Training, flags: argparse.Namespace, found: Results) -> None:
    spec, live = digits_job(training, cluster.layout.checkpoint_base), flags.arm == "live"
    if not live:
        spec = replace(spec, restart=replace(spec.restart, scope={"worker": Scope.ALL}))
    rng, now = random.Random(flags.seed), spec.role("worker").count
    async with cluster.client(deadline_s=30.0) as client:
        await client.submit(SubmitRequest(spec))
        watch = Watch(client, spec.name, StepLog(training.step_log), status_every_s=STATUS_EVERY_S)
        rounds = Rounds(watch, found, live=live)

        async def play() -> None:
            workers = now
            for _ in range(flags.resizes):
                await rounds.healthy()
                before = workers
                workers = rng.choice([n for n in range(1, MOST_WORKERS + 1) if n != before])
                await rounds.resize(workers, before)

        await beside(play(), *watch.looks())


def main() -> int:
    """Parse the flags, measure, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.resizing", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--resizes", type=int, default=100, help="(%(default)s)")
    parser.add_argument("--arm", choices=("live", "restart"), default="live", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the sizes (%(default)s)")
    parser.add_argument("--state", type=Path, default=STATE, help="scratch directory (%(default)s)")
    flags = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    about, found, directory = machine(), Results(), flags.state.resolve()
    shutil.rmtree(directory, ignore_errors=True)
    training = Training(ENDLESS, STEP_DELAY_MS, SAVE_STEPS, directory / "steps")
    with LocalCluster(directory, profile="fast") as cluster:
        asyncio.run(_run(cluster, training, flags, found))
    times = {name: figures(ms) for name, ms in found.times.items()}
    again = figures(found.steps_again)
    document = {
        "benchmark": "resizing",
        "machine": about,
        "settings": {
            "arm": flags.arm,
            "resizes": flags.resizes,
            "save_steps": SAVE_STEPS,
            "step_delay_ms": STEP_DELAY_MS,
        },
        "times_ms": {name: asdict(each) for name, each in times.items() if each},
        "steps_again": asdict(again) if again else None,
        "went_back_behind_a_commit": found.lost_commits,
        "other_restarts": found.other_restarts,
    }
    print(json.dumps(document, indent=2))
    return 0 if not (found.lost_commits or found.other_restarts) else 1


if __name__ == "__main__":
    sys.exit(main())
