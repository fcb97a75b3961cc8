"""`python -m benchmarks.engines`: is recovery as fast on a pool of an engine as on nodes of our own?

One job trains in turn on three nodes of this machine and on a pool of three agents of an engine, in one
cluster. A worker and the parameter server are killed, again and again. JSON on standard output, progress on
standard error. It needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.engines import ours
from benchmarks.engines.comparison import fetched
from benchmarks.engines.losses import INTERRUPTED, PS, VICTIM, WORKER, say
from benchmarks.support.figures import Figures, Goal, figures, machine, medians, row
from benchmarks.support.quiet import Quiet
from benchmarks.support.subjects import Sample, Supervised, measure, until
from chaos.slurm import SlurmCluster
from chaos.spark import SparkCluster
from chaos.yarn import YarnCluster
from examples.demo.job import Training
from examples.demo.watch import PromiseBroken, Watch, beside
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.errors import TfSupervisorError

STATE = Path("var/bench/engines")
OWN = "nodes of our own"
ENDLESS = 100_000_000
SAVE_STEPS = 100
ADVANCE = 150
MOVED_S = 180.0
GOAL = 1.2


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line."""

    engines: tuple[str, ...]
    kills: int
    blocks: int
    step_delay_ms: float
    state: Path
    quiet: Quiet


@dataclass(slots=True)
class Results:
    """Samples by engine, place and what was killed."""

    samples: dict[tuple[str, str, str], list[Sample]] = field(default_factory=dict)

    def add(self, engine: str, place: str, what: str, sample: Sample) -> None:
        """Take in one kill and say so."""
        self.samples.setdefault((engine, place, what), []).append(sample)
        say(f"{place}, {what} killed: first step {sample.first_ms:.0f} ms, all {sample.all_ms:.0f} ms")

    def first(self, engine: str, place: str, what: str) -> Figures | None:
        """To the first step."""
        return figures([each.first_ms for each in self.samples.get((engine, place, what), ())])


Pool = Callable[[LocalCluster, Path], AbstractAsyncContextManager[None]]


@contextmanager
def _slurm() -> Iterator[Pool]:
    # Its sockets want a short path, and it runs as other users, too.
    with tempfile.TemporaryDirectory(prefix="tfsup-slurm-") as directory:
        Path(directory).chmod(0o755)
        with SlurmCluster(Path(directory) / "slurm") as slurm:
            yield lambda cluster, logs: ours.pool(cluster, "slurm", slurm.environment, logs)


@contextmanager
def _yarn() -> Iterator[Pool]:
    with YarnCluster() as yarn:
        yield lambda cluster, logs: ours.pool(cluster, "yarn", yarn.environment, logs)


@contextmanager
def _spark() -> Iterator[Pool]:
    fetched("deploy/get-spark.sh")
    with (
        tempfile.TemporaryDirectory(prefix="tfsup-spark-") as directory,
        SparkCluster(Path(directory) / "spark") as spark,
    ):
        yield lambda cluster, logs: ours.pool_on_spark(cluster, spark, logs)


ENGINES = {"slurm": _slurm, "yarn": _yarn, "spark": _spark}


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill on every engine and print the figures; exit code 1: one failed, 130: interrupted."""
    flags = _flags(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    info, results, code = machine(), Results(), 0
    shutil.rmtree(flags.state, ignore_errors=True)
    try:
        for engine in flags.engines:
            try:
                _engine(engine, flags, results)
            except TfSupervisorError as error:
                say(f"{engine} failed: {error}")
                code = 1
    except KeyboardInterrupt:
        say(INTERRUPTED)
        code = 130
    print(json.dumps(_report(info, flags, results), indent=2))
    return code


def _flags(arguments: Sequence[str] | None) -> Flags:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines")
    parser.add_argument("--on", choices=tuple(ENGINES), action="append", help="this engine alone")
    parser.add_argument("--kills", type=int, default=6, help="of each task and place (%(default)s)")
    parser.add_argument("--blocks", type=int, default=2, help="turns of each place (%(default)s)")
    parser.add_argument("--step-delay-ms", type=float, default=10.0, help="pause of each replica")
    parser.add_argument("--quiet-s", type=float, default=0.0, help="wait this long for an idle moment")
    parser.add_argument("--state", type=Path, default=STATE, help="scratch directory (%(default)s)")
    given = parser.parse_args(arguments)
    return Flags(
        engines=tuple(given.on or ENGINES),
        kills=given.kills,
        blocks=given.blocks,
        step_delay_ms=given.step_delay_ms,
        state=given.state.resolve(),
        quiet=Quiet(given.quiet_s),
    )


def _engine(engine: str, flags: Flags, results: Results) -> None:
    directory = flags.state / engine
    training = Training(ENDLESS, flags.step_delay_ms, SAVE_STEPS, directory / "steps")
    with ENGINES[engine]() as pool, LocalCluster(directory / "cluster") as cluster:
        asyncio.run(_train(engine, pool, cluster, training, flags, results))


async def _train(
    engine: str,
    pool: Pool,
    cluster: LocalCluster,
    training: Training,
    flags: Flags,
    results: Results,
) -> None:
    async with pool(cluster, flags.state), ours.training(cluster, training) as watch:
        await beside(_in_turn(engine, watch, flags, results), *watch.looks())


async def _in_turn(engine: str, watch: Watch, flags: Flags, results: Results) -> None:
    subject = Supervised(watch)
    for block in range(flags.blocks):
        kills = flags.kills * (block + 1) // flags.blocks - flags.kills * block // flags.blocks
        for place in (engine, OWN):
            await _move(watch, in_pool=place == engine)
            subject.seen |= {incident.id for incident in watch.incidents}
            for what in (WORKER, PS):
                for _ in range(kills):
                    sample = await measure(subject, VICTIM[what], ADVANCE, flags.quiet)
                    incident = await subject.incident()
                    sample = Sample(sample.first_ms, sample.all_ms, incident.phases_ms)
                    results.add(engine, place, what, sample)


async def _move(watch: Watch, *, in_pool: bool) -> None:
    """Have all tasks run on agents of the pool, or on nodes of our own. Raises PromiseBroken."""
    client = watch.client
    nodes = [view.node for view in (await client.nodes()).nodes]
    targets = [node for node in nodes if node.startswith(f"{ours.POOL}.") == in_pool]
    for node in targets:
        await client.uncordon(node)
    for node in set(nodes) - set(targets):
        await client.cordon(node, "the other place has its turn", drain=True)
    since_ns = time.monotonic_ns()
    deadline = time.monotonic() + MOVED_S
    while not {view.node for view in watch.tasks.values()} <= set(targets) or not watch.tasks:
        if time.monotonic() > deadline:
            raise PromiseBroken(f"not all tasks have moved within {MOVED_S:g} s")
        await asyncio.sleep(0.3)
    await until(watch.step_log, lambda: watch.healthy_since(since_ns), "training after the move", MOVED_S)


def _report(info: dict[str, object], flags: Flags, results: Results) -> dict[str, object]:
    places: dict[str, dict[str, dict[str, object]]] = {}
    for (engine, place, what), samples in results.samples.items():
        places.setdefault(f"{engine}: {place}", {})[what] = {
            "first_step_ms": row([each.first_ms for each in samples]),
            "all_step_ms": row([each.all_ms for each in samples]),
            "phases_p50_ms": medians([each.phases_ms for each in samples]),
        }
    goals = [
        Goal(f"{what} killed on {engine}: times as long as on {OWN}", GOAL, _ratio(results, engine, what))
        for engine in flags.engines
        for what in (WORKER, PS)
    ]
    return {
        "benchmark": "engines",
        "machine": info,
        "settings": {
            "step_delay_ms": flags.step_delay_ms,
            "save_steps": SAVE_STEPS,
            "blocks": flags.blocks,
            "quiet_s": flags.quiet.patience_s,
        },
        "places": places,
        "goals": [goal.row() for goal in goals],
    }


def _ratio(results: Results, engine: str, what: str) -> float | None:
    own, pool = results.first(engine, OWN, what), results.first(engine, engine, what)
    return None if own is None or pool is None else round(pool.p50 / own.p50, 2)


if __name__ == "__main__":
    sys.exit(main())
