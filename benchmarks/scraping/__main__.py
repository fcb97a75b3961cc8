"""`python -m benchmarks.scraping`: what Prometheus costs the leader.

A cluster of scripted nodes is at rest, as in `benchmarks.load`. In turn nobody asks for metrics, and both
supervisors are asked every 5 seconds; the leader's processor time is read. `--answers N` has no cluster: it
makes answers about N jobs in memory, beside a loop, and measures for how long they hold that loop up. JSON on
standard output, progress on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.load import Run, measure
from benchmarks.scale import Cluster
from benchmarks.support.figures import Goal, machine, row
from benchmarks.support.load_cluster import CLUSTER, SUPERVISORS
from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.adapters.metrics.daemon import Metrics
from supervisor.adapters.telemetry import get_logger
from supervisor.metrics import cluster as cluster_metrics

EVERY_S = 5.0
MOST_MORE_PERCENT = 3.0
TICK_S = 0.001
ANSWERS = 20


class Scraped(Run):
    """A cluster at rest, with and without somebody who asks for metrics."""

    async def all(self) -> None:
        """Run both in turn."""
        etcd = EtcdCoordination(self._cluster.endpoints, CLUSTER, rpc_deadline_ms=20_000, silence_ms=60_000)
        watching = asyncio.create_task(self._watch(etcd))
        shares: dict[str, list[float]] = {"without": [], "with": []}
        try:
            await self._join()
            await self._submit()
            for turn in range(self._flags.turns):
                for arm, found in shares.items():
                    found.append(await self._share(scraped=arm == "with"))
                    print(f"turn {turn}: {arm}: {found[-1]:.2f} %", file=sys.stderr, flush=True)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await etcd.close()
        without, more = (statistics.median(shares[arm]) for arm in ("without", "with"))
        goal = Goal(
            "more of the leader's processor time, in per cent of a processor",
            MOST_MORE_PERCENT,
            more - without,
        )
        answer = await asyncio.to_thread(self._cluster.metrics, self._records.elections[-1][0])
        self.found |= {
            "percent_of_a_processor": shares,
            "median": {"without": round(without, 2), "with": round(more, 2)},
            "answer": {"bytes": len(answer), "series": _series(answer)},
            "goals": [goal.row()],
        }

    async def _share(self, *, scraped: bool) -> float:
        """The leader's share of a processor over a turn, in per cent."""
        leader, before = self._records.elections[-1][0], self._cluster.look()
        scraping = asyncio.create_task(self._scrape()) if scraped else None
        await asyncio.sleep(self._flags.seconds)
        after = self._cluster.look()
        if scraping is not None:
            scraping.cancel()
            await asyncio.gather(scraping, return_exceptions=True)
        return (after.cpu_s[leader] - before.cpu_s[leader]) / (after.at_s - before.at_s) * 100

    async def _scrape(self) -> None:
        while True:
            for name in SUPERVISORS:
                await asyncio.to_thread(self._cluster.metrics, name)
            await asyncio.sleep(EVERY_S)


def _series(answer: bytes) -> int:
    return sum(not line.startswith(b"#") for line in answer.splitlines())


async def _answers(jobs: int) -> dict[str, object]:
    """Answers about so many jobs, beside a loop that wants to go on every millisecond."""
    made = Cluster(jobs)
    made.beat()
    snap = made.snapshot()
    metrics = Metrics("supervisor", "", ThreadPoolExecutor(1), get_logger("scraping"))
    metrics.add(lambda: partial(cluster_metrics.fill, snap))
    late: dict[str, list[float]] = {"without": [], "with": []}
    cpu_ms, wall_ms = list[float](), list[float]()
    answer = await metrics.answer()
    for _ in range(ANSWERS):
        for arm, found in late.items():
            ticking = asyncio.create_task(_tick(found))
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            if arm == "with":
                await metrics.answer()
                wall_ms.append((time.perf_counter() - began_s) * 1000)
                cpu_ms.append((time.process_time() - began_cpu_s) * 1000)
            else:
                await asyncio.sleep(statistics.median(wall_ms) / 1000 if wall_ms else 0.2)
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)
    return {
        "jobs": jobs,
        "answer": {"bytes": len(answer), "series": _series(answer)},
        "answer_ms": row(wall_ms),
        "answer_processor_ms": row(cpu_ms),
        "loop_late_ms": {arm: row(found) for arm, found in late.items()},
    }


async def _tick(late: list[float]) -> None:
    """Note by how much each turn of the loop comes too late."""
    while True:
        began_s = time.perf_counter()
        await asyncio.sleep(TICK_S)
        late.append((time.perf_counter() - began_s - TICK_S) * 1000)


def main() -> int:
    """Parse the flags, measure, print."""
    about = __doc__.partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scraping", description=about)
    parser.add_argument("--answers", type=int, metavar="N", help="answers about N jobs in memory alone")
    parser.add_argument("--agents", type=int, default=50, help="nodes (%(default)s)")
    parser.add_argument("--jobs", type=int, default=50, help="jobs of four tasks (%(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="of each kind (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each turn (%(default)s)")
    flags = parser.parse_args()
    flags.tasks, flags.profile, flags.generators = 4, "default", None
    where = machine()
    # An exception ends what was started; the signal alone would not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="scraping-") as scratch:
        work = _answers(flags.answers) if flags.answers else measure(Scraped, flags, Path(scratch))
        found = asyncio.run(work)
    print(json.dumps({"benchmark": "scraping", "machine": where, "settings": vars(flags), **found}, indent=2))
    return 0 if "failed" not in found else 1


if __name__ == "__main__":
    sys.exit(main())
