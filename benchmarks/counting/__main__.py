"""`python -m benchmarks.counting`: workers are killed, come and leave at random; does a counter stay exact?

An embedded cluster runs a program that counts, first in style `async`, then in style `coordinator`. Workers
are killed one after the other, and the number of workers is changed with `supervisorctl scale`. JSON on
standard output, progress on standard error.

async: `lost` are counts that a trainer has logged and that the counter lacks; `not_told` are those that took
effect in a process that was ended before it logged them.
coordinator: `lost` are closures that had not run when all were said to be done; `run_again` are those that
were cut off after they had counted.
`others_gap` is the longest time after a kill in which the chief made no step (a round of closures), and in
style `async` no other worker either. `others_restarted` counts processes of the chief and the parameter
server that are new ones.
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
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.counting.programs import ASYNC, COORDINATOR, Round, job_file
from benchmarks.support.figures import figures, machine
from benchmarks.support.spares import spares_warm
from benchmarks.support.subjects import until
from examples.demo.steplog import StepLog
from examples.demo.watch import Watch, beside
from supervisor.adapters.files.jobfile import load_job_file
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.incident import Outcome
from supervisor.contract.job.spec import Strategy
from supervisor.contract.views.jobs import SubmitRequest

STATE = Path("var/bench/counting")
PROGRAMS = {Strategy.ASYNC: ASYNC, Strategy.COORDINATOR: COORDINATOR}
MOST_WORKERS = 4
WAIT_S = 120.0
STATUS_EVERY_S = 0.1
PROFILE = "default"
"""No node is lost here: on a busy machine the fast one takes a slow node for a lost one."""
LEADERS = ("chief:0", "ps:0")


@dataclass(slots=True)
class Results:
    """Of one style."""

    kills: int = 0
    resizes: int = 0
    left: int = 0
    gaps_ms: list[float] = field(default_factory=list)
    others_restarted: int = 0
    generation: int = 0
    counted: dict[str, int] = field(default_factory=dict)
    is_exact: bool = False

    def report(self) -> dict[str, object]:
        """For JSON."""
        gaps = figures(self.gaps_ms)
        return {
            "kills": self.kills,
            "resizes": self.resizes,
            "workers_that_left": self.left,
            "others_gap_ms": asdict(gaps) if gaps else None,
            "others_restarted": self.others_restarted,
            "generation": self.generation,
            **self.counted,
            "is_exact": self.is_exact,
        }


class Counting:
    """A job that counts."""

    def __init__(self, watch: Watch, strategy: Strategy, counts: Path) -> None:
        self.watch = watch
        self.workers = 2
        self.results = Results()
        self._log = watch.step_log
        self._strategy = strategy
        self._counts = counts

    async def all_count(self) -> None:
        """Wait until exactly the wanted workers count, and the last incident is over."""
        since_ns, before = time.monotonic_ns(), await self._by_worker()

        def done() -> bool:
            watch = self.watch
            there = [name for name in watch.tasks if name.startswith("worker:")]
            return (
                len(there) == self.workers
                and all(task.state == "running" and task.pid > 0 for task in watch.tasks.values())
                and watch.view is not None
                and watch.view.newest_commit is not None
                and not any(each.outcome is Outcome.OPEN for each in watch.incidents)
                and self._log.first_after(since_ns, "chief:0") is not None
                and self._all_have_counted(since_ns, before)
            )

        await until(self._log, done, f"counts of {self.workers} workers", WAIT_S)

    async def kill(self, worker: str) -> None:
        """Kill a worker, and wait until it counts again."""
        watch, pid = self.watch, self.watch.pids[worker]
        killed_ns = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        self.results.kills += 1
        await until(
            self._log, lambda: watch.pids.get(worker, pid) != pid, f"another process of {worker}", WAIT_S
        )
        await self.all_count()
        others = [
            name for name in self.watch.tasks if name not in (worker, "ps:0") and name in self._log.steps
        ]
        self.results.gaps_ms += [
            round(max(self._log.longest_gap_ns(killed_ns, name) for name in others) / 1e6, 1)
        ]

    async def resize(self, workers: int) -> None:
        """Ask for so many workers, and wait until exactly those count."""
        await self.watch.client.scale(self.watch.job, {"worker": workers})
        self.results.resizes += 1
        self.results.left += max(0, self.workers - workers)
        self.workers = workers
        await self.all_count()

    async def end(self) -> None:
        """Stop the job, and count what it has counted."""
        watch, results = self.watch, self.results
        assert watch.view is not None
        results.generation = watch.view.generation
        await watch.client.stop(watch.job)
        await until(self._log, lambda: watch.view is not None and watch.view.phase.ended, "its end", WAIT_S)
        self._log.read()
        ended = results.kills + results.left
        if self._strategy is Strategy.COORDINATOR:
            last = Round.newest(self._counts)
            again = last.counted - last.scheduled
            results.counted = {"closures": last.scheduled, "lost": last.lost, "run_again": again}
            results.is_exact = last.lost == 0 <= again <= ended
            return
        told = [step.step for steps in self._log.steps.values() for step in steps]
        missing = max(told) - len(told)
        results.counted = {"counts": max(told), "lost": max(0, -missing), "not_told": max(0, missing)}
        # The last step of each trainer is cut off by the end of the job, too.
        results.is_exact = 0 <= missing <= ended + self.workers + 1

    async def _by_worker(self) -> tuple[int, ...]:
        if self._strategy is not Strategy.COORDINATOR:
            return ()
        rounds = self._counts
        await until(
            self._log, lambda: any(each.stat().st_size for each in rounds.iterdir()), "a round", WAIT_S
        )
        return Round.newest(rounds).by_worker

    def _all_have_counted(self, since_ns: int, before: tuple[int, ...]) -> bool:
        if not before:
            names = (f"worker:{index}" for index in range(self.workers))
            return all(self._log.first_after(since_ns, name) is not None for name in names)
        now = Round.newest(self._counts).by_worker
        return all(now[index] > before[index] for index in range(self.workers))


async def _run(
    cluster: LocalCluster, strategy: Strategy, directory: Path, flags: argparse.Namespace
) -> Results:
    counts, steps = directory / "counts", directory / "steps"
    file = job_file(directory / "program", PROGRAMS[strategy], strategy.value, counts=counts, steps=steps)
    spec = load_job_file(file, checkpoint_base=cluster.layout.checkpoint_base).spec
    rng = random.Random(flags.seed)
    what = ["kill"] * flags.kills + ["resize"] * flags.resizes
    rng.shuffle(what)
    async with cluster.client(deadline_s=30.0) as client:
        await client.submit(SubmitRequest(spec))
        watch = Watch(client, spec.name, StepLog(steps), status_every_s=STATUS_EVERY_S)
        counting = Counting(watch, strategy, counts)

        async def play() -> None:
            await counting.all_count()
            pids = {name: watch.pids[name] for name in LEADERS}
            for turn, each in enumerate(what):
                await spares_warm(cluster, watch, WAIT_S)
                await asyncio.sleep(rng.random())
                if each == "kill":
                    await counting.kill(f"worker:{rng.randrange(counting.workers)}")
                else:
                    sizes = [n for n in range(1, MOST_WORKERS + 1) if n != counting.workers]
                    await counting.resize(rng.choice(sizes))
                say(f"  {turn + 1} of {len(what)}: {each}, {counting.workers} workers")
            counting.results.others_restarted = sum(watch.pids[name] != pid for name, pid in pids.items())
            await counting.end()

        await beside(play(), *watch.looks())
        return counting.results


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Parse the flags, count, print; exit code 1 if a counter was not exact, or another task restarted."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.counting", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=100, help="of workers, in each style (%(default)s)")
    parser.add_argument("--resizes", type=int, default=20, help="in each style (%(default)s)")
    parser.add_argument("--only", choices=[each.value for each in PROGRAMS], help="one style")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random (%(default)s)")
    parser.add_argument("--state", type=Path, default=STATE, help="scratch directory (%(default)s)")
    flags = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    about, found = machine(), dict[str, Results]()
    for strategy in PROGRAMS:
        if flags.only in (None, strategy.value):
            directory = flags.state.resolve() / strategy.value
            shutil.rmtree(directory, ignore_errors=True)
            say(strategy.value)
            with LocalCluster(directory / "cluster", profile=PROFILE) as cluster:
                found[strategy.value] = asyncio.run(_run(cluster, strategy, directory, flags))
    document = {
        "benchmark": "counting",
        "machine": about,
        "settings": {"kills": flags.kills, "resizes": flags.resizes, "seed": flags.seed},
        "styles": {name: results.report() for name, results in found.items()},
    }
    print(json.dumps(document, indent=2))
    return 0 if all(each.is_exact and not each.others_restarted for each in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
