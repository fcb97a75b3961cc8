"""`python -m chaos.sim --seed N` replays one run exactly; `--seeds A..B` runs many; `--shrink N` cuts one.

Exit codes: 0 all promises kept, 1 a promise broken or a run that did not bite, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import process_time

from chaos import duration
from chaos.failpoints.points import names
from chaos.sim.gpus import run_gpus
from chaos.sim.lot import Found, Lot, Run, Work
from chaos.sim.outage import run_outage
from chaos.sim.run import (
    Result,
    run_booked,
    run_deleted,
    run_flawed,
    run_powered,
    run_stopped,
    run_swarm,
)
from chaos.sim.shrink import shrink
from chaos.sim.swarm import Length
from chaos.sim.trouble.aimed import Aim, aims

HASH_SEED = "0"
PLAIN_SHARE = 0.3
"""The share of the time, with --strike, for seeds without an aimed failpoint."""
STORIES: dict[str, Callable[..., Result]] = {
    "gpus": run_gpus,
    "booked": run_booked,
    "outage": run_outage,
    "flawed": run_flawed,
    "deleted": run_deleted,
    "powered": run_powered,
    "stopped": run_stopped,
}


def main() -> int:
    """Parse the command line and run."""
    options = _parser().parse_args()
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        # Sets of strings are walked in the order of their hashes: the same one in every replay.
        environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
        os.execve(sys.executable, [sys.executable, "-m", "chaos.sim", *sys.argv[1:]], environment)
    story = next((name for name in STORIES if getattr(options, name)), "")
    if story and (options.strike or options.at):
        _parser().error(f"--{story} knows neither --strike nor --at")
    if options.points and not options.strike:
        _parser().error("--points says where to --strike")
    if options.json is not None and not options.json.parent.is_dir():
        _parser().error(f"--json {options.json}: there is no directory {options.json.parent}")
    words = [*([f"--{story}"] if story else []), *options.length.words]
    if options.shrink is not None:
        return _shrink(options.shrink, options.length)
    if options.seed is not None:
        swarm = partial(run_swarm, length=options.length, only=options.faults, aim=options.at)
        one = partial(STORIES[story], length=options.length) if story else swarm
        return _one(one, options.seed, options.trace)
    many = partial(STORIES[story] if story else run_swarm, length=options.length)
    lot = Lot(options.jobs, options.for_s * (PLAIN_SHARE if options.strike else 1.0))
    found = lot.run([Work(seed, many, tuple(words)) for seed in options.seeds], covered=options.coverage)
    if options.strike:
        found = _strike(found, lot.reached, options, words)
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(found), indent=1) + "\n")
    return 1 if found.failed else 0


def _strike(
    found: Found, reached: Mapping[int, Mapping[str, int]], options: argparse.Namespace, words: list[str]
) -> Found:
    """The seeds that kept all promises again, each with a daemon that dies at one of its effects."""
    wanted = options.points or names()
    chosen = {
        seed: {point: hits for point, hits in points.items() if point in wanted}
        for seed, points in reached.items()
    }
    plan = aims(chosen, options.strike)
    points = {aim.point for _, aim in plan}
    print(f"\n{len(points)} points are reached: {len(plan)} strikes")
    if not plan:
        return found
    # In an order in which the rare ones are not all at the beginning, should there be no time for all.
    random.Random(0).shuffle(plan)
    run = partial(run_swarm, length=options.length)
    work = [Work(seed, partial(run, aim=aim), (*words, f"--at {aim}")) for seed, aim in plan]
    lot = Lot(options.jobs, options.for_s * (1 - PLAIN_SHARE))
    again = lot.run(work, covered=options.coverage)
    struck = {aim.point for (_, aim), done in zip(plan, lot.done, strict=True) if done}
    print(f"{len(struck)} of {len(points)} points were struck")
    return replace(found, failed={**found.failed, **again.failed}, struck=tuple(sorted(struck)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos.sim", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="run this one and print its trace")
    what.add_argument("--seeds", type=_range, metavar="A..B", help="run these, both ends included")
    what.add_argument("--shrink", type=int, metavar="N", help="find the fewest faults that break seed N")
    parser.add_argument("--trace", type=Path, help="write the trace of --seed here instead of printing it")
    parser.add_argument("--at", type=_aim, metavar="POINT:HIT", help="of --seed, kill who comes there then")
    again = "run --seeds again, and at each effect that they lead to kill who comes there, N times"
    parser.add_argument("--strike", type=int, default=0, metavar="N", help=again)
    parser.add_argument("--points", type=_points, metavar="A,B", help="strike at none but these")
    parser.add_argument("--faults", type=_numbers, metavar="A,B", help="of --seed's schedule, only these")
    length = parser.add_mutually_exclusive_group()
    for word, told in (
        (Length.DENSE, "each job has half of all traits"),
        (Length.SHORT, "few faults close together"),
        (Length.BRIEF, "two faults at most, for many seeds in little time"),
        (Length.LONG, "more than ten minutes of virtual time in each seed"),
    ):
        length.add_argument(
            *word.words, dest="length", action="store_const", const=word, default=Length.FULL, help=told
        )
    parser.add_argument("--coverage", action="store_true", help="say which states --seeds has been through")
    story = parser.add_mutually_exclusive_group()
    story.add_argument("--gpus", action="store_true", help="two jobs that share the GPUs of four nodes")
    story.add_argument("--booked", action="store_true", help="two jobs whose tasks fill two of three nodes")
    story.add_argument("--outage", action="store_true", help="etcd away for long, with promises (rule 11)")
    story.add_argument("--flawed", action="store_true", help="two jobs, for one of which a rule raises")
    story.add_argument("--deleted", action="store_true", help="two jobs, which operators delete amid trouble")
    story.add_argument("--powered", action="store_true", help="fence devices that are late, or do not work")
    story.add_argument("--stopped", action="store_true", help="nodes fence what a stopped agent has left")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes for --seeds")
    parser.add_argument("--json", type=Path, help="write what came of --seeds here, too")
    limit = "of --seeds, begin none after that: 90s, 30m or 1h"
    parser.add_argument(
        "--for", dest="for_s", type=duration.argument, default=math.inf, metavar="TIME", help=limit
    )
    return parser


def _range(text: str) -> range:
    first, dots, last = text.partition("..")
    if not dots or not first.isdigit() or not last.isdigit() or int(last) < int(first):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range: write 1..300")
    return range(int(first), int(last) + 1)


def _aim(text: str) -> Aim:
    try:
        return Aim.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _points(text: str) -> frozenset[str]:
    found = frozenset(text.split(","))
    if unknown := sorted(found - names()):
        raise argparse.ArgumentTypeError(
            f"there is no point {unknown[0]!r}; see `python -m chaos.failpoints list`"
        )
    return found


def _numbers(text: str) -> tuple[int, ...]:
    words = text.split(",") if text != "none" else []
    if not all(word.isdigit() for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers: write 1,4 or none")
    return tuple(map(int, words))


def _one(run: Run, seed: int, trace: Path | None) -> int:
    began_s = process_time()
    result = run(seed)
    took_s = process_time() - began_s
    text = "\n".join(result.trace) + "\n"
    if trace is not None:
        trace.write_text(text)
    else:
        sys.stdout.write(text)
    facts = ", ".join(f"{count} {what}" for what, count in result.facts.items())
    print(
        f"seed {seed}: {'ok' if result.ok else 'FAILED'}; {facts}; {result.virtual_s:.1f} s in {took_s:.2f} s"
        f" ({result.virtual_s / took_s:.0f}x), {result.steps} steps, trace {result.digest}"
    )
    for line in (*result.violations, *filter(None, (result.error,))):
        print(line)
    return 0 if result.ok else 1


def _shrink(seed: int, length: Length) -> int:
    found = shrink(seed, length, say=lambda line: print(line, flush=True))
    if found is None:
        print(f"seed {seed}: all promises kept")
        return 0
    print(f"\nseed {seed}, {found.runs} runs: {len(found.only)} of {len(found.result.schedule)} faults")
    for number in found.only:
        fault = found.result.schedule[number - 1]
        print(f"  {number}: {fault.kind} at {fault.at_s:.3f} s for {fault.for_s:.3f} s (pick {fault.pick})")
    print("\n".join((*found.result.violations, *filter(None, (found.result.error,)))))
    only = ",".join(map(str, found.only)) or "none"
    command = " ".join(("python -m chaos.sim", *length.words, f"--seed {seed} --faults {only}"))
    print(f"  replay: {command}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
