"""`python -m benchmarks.recovery`: a worker or the parameter server is killed; when does it train again?

Five variants of the same job, block by block in turn, so that noise of the machine hits all: supervised with
warm restarts, the same with each program run by `sh -c`, supervised without (`preload: []`: every restart
imports TensorFlow), and plain TensorFlow with a shell loop around each task, or with one that restarts all
tasks when any has ended. JSON on standard output, progress on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import signal
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks import styles
from benchmarks.support import boxed, stores
from benchmarks.support.figures import Figures, Goal, figures, machine, medians
from benchmarks.support.quiet import Quiet
from benchmarks.support.subjects import RestartAll, Sample, ShellLoop, Supervised, measure
from examples.demo.job import Training, digits_job
from examples.demo.steplog import StepLog
from examples.demo.watch import Watch, beside
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.views.jobs import SubmitRequest

STATE = Path("var/bench/recovery")
ENDLESS = 100_000_000
SAVE_STEPS = 100
ADVANCE = 150
STATUS_EVERY_S = 0.3
KILLED = {"worker": "worker:1", "ps": "ps:0"}
PLAIN: dict[str, type[ShellLoop | RestartAll]] = {"shell_loop": ShellLoop, "restart_all_loop": RestartAll}
VARIANTS = ("warm", "wrapped", "cold", *PLAIN)
LONG_KILLS = 6
"""Fewer kills, as nearly each costs TensorFlow's 30 s poll, whatever was killed."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line."""

    kills: int
    slow_kills: int
    blocks: int
    full: bool
    step_delay_ms: float
    state: Path
    variants: tuple[str, ...]
    quiet: Quiet


@dataclass(slots=True)
class Results:
    """Samples by variant and what was killed."""

    samples: dict[tuple[str, str], list[Sample]] = field(default_factory=dict)

    def add(self, variant: str, what: str, sample: Sample) -> None:
        """Take in one kill and say so."""
        taken = self.samples.setdefault((variant, what), [])
        taken.append(sample)
        say(f"{variant} {what} {len(taken)}: first step {sample.first_ms:.0f} ms, all {sample.all_ms:.0f} ms")


def main() -> int:
    """Run all blocks and print the figures; exit code 1 when a block failed, 130 when interrupted.

    With `--styles`, the benchmark of every style of training instead; with `--store hdfs`, that of stores;
    with `--runtime docker`, that of containers.
    """
    if "--styles" in sys.argv[1:]:
        return styles.main([word for word in sys.argv[1:] if word != "--styles"])
    if sys.argv[1:3] == ["--store", "hdfs"]:
        return stores.main(sys.argv[3:])
    if sys.argv[1:3] == ["--runtime", "docker"]:
        return boxed.main(sys.argv[3:])
    flags = _flags()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    info, results, code = machine(), Results(), 0
    try:
        for block, variant in itertools.product(range(flags.blocks), flags.variants):
            say(f"block {block + 1} of {flags.blocks}: {variant}")
            counts = {what: _share(_kills(flags, variant), flags.blocks, block) for what in KILLED}
            try:
                _block(variant, counts, flags, results)
            except TfSupervisorError as error:
                say(f"{variant} failed: {error}")
                code = 1
    except KeyboardInterrupt:
        say("interrupted: the figures are of what was measured until now")
        code = 130
    print(json.dumps(_report(info, flags, results), indent=2))
    return code


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def _flags() -> Flags:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--styles", action="store_true", help="every style of training instead; it has its own --help"
    )
    parser.add_argument(
        "--store",
        choices=("hdfs",),
        help="a ps killed with a large checkpoint, in HDFS and locally, instead; it has its own --help",
    )
    parser.add_argument(
        "--runtime",
        choices=("docker",),
        help="in containers, beside running new ones, instead; it has its own --help",
    )
    parser.add_argument("--kills", type=int, default=20, help="of each kind and variant (%(default)s)")
    parser.add_argument("--slow-kills", type=int, help="of the variants that are not warm (as --kills)")
    parser.add_argument("--quick", action="store_true", help="5 kills of each, in one block")
    parser.add_argument(
        "--full",
        action="store_true",
        help=f"as many kills also where each takes over 30 s, instead of {LONG_KILLS} (restart_all_loop)",
    )
    parser.add_argument("--blocks", type=int, default=4, help="turns of each variant (%(default)s)")
    parser.add_argument(
        "--step-delay-ms", type=float, default=10.0, help="pause of each replica (%(default)s)"
    )
    parser.add_argument("--only", choices=VARIANTS, action="append", help="these variants alone")
    parser.add_argument(
        "--quiet-s",
        type=float,
        default=0.0,
        help="wait this long before a kill for an idle moment (%(default)s)",
    )
    parser.add_argument("--state", type=Path, default=STATE, help="scratch directory (%(default)s)")
    given = parser.parse_args()
    kills = 5 if given.quick else given.kills
    return Flags(
        kills=kills,
        slow_kills=kills if given.slow_kills is None else given.slow_kills,
        blocks=1 if given.quick else given.blocks,
        full=given.full,
        step_delay_ms=given.step_delay_ms,
        state=given.state.resolve(),
        variants=tuple(given.only or VARIANTS),
        quiet=Quiet(given.quiet_s),
    )


def _kills(flags: Flags, variant: str) -> int:
    if variant == "warm":
        return flags.kills
    long = PLAIN.get(variant) is RestartAll and not flags.full
    return min(flags.slow_kills, LONG_KILLS) if long else flags.slow_kills


def _share(total: int, blocks: int, block: int) -> int:
    """The part of `total` that falls to this block."""
    return total * (block + 1) // blocks - total * block // blocks


def _block(variant: str, counts: dict[str, int], flags: Flags, results: Results) -> None:
    directory = flags.state / variant
    shutil.rmtree(directory, ignore_errors=True)
    training = Training(ENDLESS, flags.step_delay_ms, SAVE_STEPS, directory / "steps")
    if variant in PLAIN:
        with PLAIN[variant](directory, training) as loop:
            asyncio.run(_kill_plain(loop, variant, counts, flags.quiet, results))
        return
    with LocalCluster(directory) as cluster:
        asyncio.run(_supervised(cluster, training, variant, counts, flags.quiet, results))


async def _kill_plain(
    loop: ShellLoop | RestartAll, variant: str, counts: dict[str, int], quiet: Quiet, results: Results
) -> None:
    for what, count in counts.items():
        for _ in range(count):
            results.add(variant, what, await measure(loop, KILLED[what], ADVANCE, quiet))


async def _supervised(
    cluster: LocalCluster,
    training: Training,
    variant: str,
    counts: dict[str, int],
    quiet: Quiet,
    results: Results,
) -> None:
    spec = digits_job(
        training, cluster.layout.checkpoint_base, warm=variant != "cold", wrapped=variant == "wrapped"
    )
    async with cluster.client() as client:
        await client.submit(SubmitRequest(spec))
        watch = Watch(client, spec.name, StepLog(training.step_log), status_every_s=STATUS_EVERY_S)
        subject = Supervised(watch, cold=variant == "cold")
        await beside(_kill_supervised(subject, variant, counts, quiet, results), *watch.looks())


async def _kill_supervised(
    subject: Supervised, variant: str, counts: dict[str, int], quiet: Quiet, results: Results
) -> None:
    for what, count in counts.items():
        for _ in range(count):
            sample = await measure(subject, KILLED[what], ADVANCE, quiet)
            incident = await subject.incident()
            results.add(variant, what, Sample(sample.first_ms, sample.all_ms, incident.phases_ms))


def _report(info: dict[str, object], flags: Flags, results: Results) -> dict[str, object]:
    first: dict[tuple[str, str], Figures | None] = {}
    every: dict[tuple[str, str], Figures | None] = {}
    variants: dict[str, dict[str, object]] = {}
    for (variant, what), samples in results.samples.items():
        key = (variant, what)
        first[key] = figures([round(sample.first_ms, 1) for sample in samples])
        every[key] = figures([round(sample.all_ms, 1) for sample in samples])
        entry: dict[str, object] = {"first_step_ms": _dict(first[key]), "all_step_ms": _dict(every[key])}
        phases = [sample.phases_ms for sample in samples if sample.phases_ms]
        if phases:
            entry["phases_p50_ms"] = medians(phases)
        variants.setdefault(variant, {})[what] = entry
    worker, ps = ("warm", "worker"), ("warm", "ps")
    goals = [
        Goal("worker: first new step p50, ms", 700, _p50(first.get(worker))),
        Goal("worker: first new step p99, ms", 1500, _p99(first.get(worker))),
        Goal("ps: first new step p50, ms", 700, _p50(first.get(ps))),
        Goal("ps: first new step p99, ms", 1500, _p99(first.get(ps))),
        Goal("worker: all step again p50, ms", 1200, _p50(every.get(worker))),
        Goal("ps: all step again p50, ms", 1200, _p50(every.get(ps))),
        Goal(
            "worker: times faster than the loop",
            6,
            _ratio(first, worker, ("shell_loop", "worker")),
            at_most=False,
        ),
        Goal(
            "ps, all step: times faster than the loop",
            25,
            _ratio(every, ps, ("shell_loop", "ps")),
            at_most=False,
        ),
    ]
    return {
        "benchmark": "recovery",
        "machine": info,
        "settings": {
            "step_delay_ms": flags.step_delay_ms,
            "save_steps": SAVE_STEPS,
            "blocks": flags.blocks,
            "quiet_s": flags.quiet.patience_s,
            "idle_share_before_kills_p50": _p50(figures(flags.quiet.idle)),
        },
        "variants": variants,
        "times_faster": {
            f"{variant} than {plain}, {what} killed, {name}": _ratio(table, (variant, what), (plain, what))
            for plain in PLAIN
            for variant in ("warm", "wrapped", "cold")
            for what in KILLED
            for name, table in (("first step", first), ("all step", every))
        },
        "goals": [goal.row() for goal in goals],
    }


def _dict(value: Figures | None) -> dict[str, object] | None:
    return None if value is None else asdict(value)


def _p50(value: Figures | None) -> float | None:
    return None if value is None else value.p50


def _p99(value: Figures | None) -> float | None:
    return None if value is None else value.p99


def _ratio(
    table: dict[tuple[str, str], Figures | None], ours: tuple[str, str], theirs: tuple[str, str]
) -> float | None:
    own, plain = table.get(ours), table.get(theirs)
    return None if plain is None or own is None else round(plain.p50 / own.p50, 1)


if __name__ == "__main__":
    sys.exit(main())
