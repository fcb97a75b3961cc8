"""`python -m benchmarks.moving`: the node of a worker is lost; what does that cost the others?

An embedded cluster trains the digits (asynchronous, one ps), each task on a node of its own. The agent of
worker 1, its launchers and its task are killed together. Two variants of the same job take turns, each on a
fresh cluster: `moves`, where the worker moves inside its generation, and `all`, where it takes all into a new
one (`restart.scope: {worker: all}`). The stopwatch is the program's own step log. JSON on standard output,
progress on standard error.

`others_gap` is the longest time without a step of the chief or of worker 0, and `usual_gap` that of the ten
seconds before the kill. `others_restarted` counts the processes among chief, ps and worker 0 that are new
ones. `first_step` is from the kill until the first step of the worker's next process; `after_d` is the rest
of it after D, before which nothing may be replaced. `steps_again` counts the steps made a second time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.support.figures import figures, machine
from benchmarks.support.nodes import lose_node
from benchmarks.support.spares import spares_warm
from benchmarks.support.subjects import until
from examples.demo.job import Training, digits_job
from examples.demo.steplog import StepLog
from examples.demo.watch import PromiseBroken, Watch, beside
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.job.spec import Scope
from supervisor.contract.timing import PROFILES
from supervisor.contract.views.jobs import SubmitRequest

STATE = Path("var/bench/moving")
ENDLESS = 100_000_000
SAVE_STEPS = 200
STEP_DELAY_MS = 10.0
NODES = 5
WAIT_S = 180.0
STATUS_EVERY_S = 0.2
PROFILE = "fast"
VICTIM = "worker:1"
OTHERS = ("chief:0", "ps:0", "worker:0")
TRAINING = ("chief:0", "worker:0")
USUAL_NS = 10_000_000_000
VARIANTS: Mapping[str, dict[str, Scope]] = {"moves": {}, "all": {"worker": Scope.ALL}}


@dataclass(slots=True)
class Results:
    """Of one variant: durations in ms and counts, by name."""

    times: dict[str, list[float]] = field(default_factory=dict)
    counts: dict[str, list[int]] = field(default_factory=dict)


async def _lose(cluster: LocalCluster, watch: Watch, found: Results) -> None:
    """Kill the node of the victim, and wait until all train again."""
    log, since_ns, committed = watch.step_log, time.monotonic_ns(), watch.committed_step
    await until(
        log,
        lambda: watch.healthy_since(since_ns) and watch.committed_step > committed,
        "a job that is well and has saved",
        WAIT_S,
    )
    await spares_warm(cluster, watch, WAIT_S)
    node, pids, before = watch.tasks[VICTIM].node, dict(watch.pids), log.processes()
    beside_it = sorted(name for name, task in watch.tasks.items() if task.node == node and name != VICTIM)
    if beside_it:
        raise PromiseBroken(f"{node} runs {', '.join(beside_it)} beside {VICTIM}")
    newest = watch.step
    log.read()
    usual = max(log.longest_gap_ns(time.monotonic_ns() - USUAL_NS, task) / 1e6 for task in TRAINING)
    killed_ns = await lose_node(cluster, node)
    await until(log, lambda: log.first_after(killed_ns, VICTIM, not_of=before), "the worker's step", WAIT_S)
    first = log.first_after(killed_ns, VICTIM, not_of=before)
    assert first is not None
    stepped_ns = time.monotonic_ns()
    await until(log, lambda: watch.healthy_since(stepped_ns), "a job that is well", WAIT_S)
    gaps = [log.longest_gap_ns(killed_ns, task) / 1e6 for task in TRAINING]
    first_new = log.first_after(killed_ns, not_of=before)
    assert first_new is not None
    old = (each.step for steps in log.steps.values() for each in steps if each.ns < first_new.ns)
    made = max(newest, *old)
    for name, ms in (
        ("usual_gap", usual),
        ("others_gap", max(gaps)),
        ("first_step", (first.ns - killed_ns) / 1e6),
        ("after_d", (first.ns - killed_ns) / 1e6 - PROFILES[PROFILE].d_ms),
    ):
        found.times.setdefault(name, []).append(round(ms, 1))
    restarted = sum(watch.pids[task] != pids[task] for task in OTHERS)
    for name, count in (
        ("others_restarted", restarted),
        # Where the chief goes on, a smaller number is only one that was read before others were written.
        ("steps_again", max(0, made - first_new.step + 1) if restarted else 0),
    ):
        found.counts.setdefault(name, []).append(count)
    times = {name: ms[-1] for name, ms in found.times.items()}
    say(json.dumps({**times, **{name: counts[-1] for name, counts in found.counts.items()}}))


async def _run(cluster: LocalCluster, training: Training, variant: str, found: Results) -> None:
    spec = digits_job(training, cluster.layout.checkpoint_base)
    spec = replace(spec, restart=replace(spec.restart, scope=VARIANTS[variant]))
    async with cluster.client(deadline_s=30.0) as client:
        await client.submit(SubmitRequest(spec))
        watch = Watch(client, spec.name, StepLog(training.step_log), status_every_s=STATUS_EVERY_S)
        await beside(_lose(cluster, watch, found), *watch.looks())


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Parse the flags, measure, print; exit code 1 if a move restarted another task."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.moving", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--losses", type=int, default=10, help="of a node, in each variant (%(default)s)")
    parser.add_argument("--state", type=Path, default=STATE, help="scratch directory (%(default)s)")
    flags = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    about, found = machine(), {variant: Results() for variant in VARIANTS}
    for loss in range(flags.losses):
        for variant, results in found.items():
            directory = flags.state.resolve() / variant
            shutil.rmtree(directory, ignore_errors=True)
            training = Training(ENDLESS, STEP_DELAY_MS, SAVE_STEPS, directory / "steps")
            say(f"{variant}: loss {loss + 1} of {flags.losses}")
            with LocalCluster(directory, nodes=NODES, profile=PROFILE) as cluster:
                asyncio.run(_run(cluster, training, variant, results))
    variants = {}
    for variant, results in found.items():
        times = {f"{name}_ms": figures(ms) for name, ms in results.times.items()}
        counts = {name: figures(each) for name, each in results.counts.items()}
        variants[variant] = {name: asdict(each) for name, each in {**times, **counts}.items() if each}
    document = {
        "benchmark": "moving",
        "machine": about,
        "settings": {
            "losses": flags.losses,
            "profile": PROFILE,
            "d_ms": PROFILES[PROFILE].d_ms,
            "save_steps": SAVE_STEPS,
            "step_delay_ms": STEP_DELAY_MS,
        },
        "variants": variants,
    }
    print(json.dumps(document, indent=2))
    return 1 if any(found["moves"].counts.get("others_restarted", ())) else 0


if __name__ == "__main__":
    sys.exit(main())
