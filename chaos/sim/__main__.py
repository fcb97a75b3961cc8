"""`python -m chaos.sim --seed N` replays one run exactly; `--seeds A..B` runs many; `--shrink N` cuts one.

Exit codes: 0 all promises kept, 1 a promise broken or a run that did not bite, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic, process_time

from chaos import duration
from chaos.sim.coverage import POSSIBLE
from chaos.sim.faults import FAMILIES
from chaos.sim.gpus import run_gpus
from chaos.sim.outage import run_outage
from chaos.sim.run import Result, run_swarm
from chaos.sim.shrink import shrink

HASH_SEED = "0"
Run = Callable[[int], Result]
STORIES: dict[str, Run] = {"gpus": run_gpus, "outage": run_outage}


def main() -> int:
    """Parse the command line and run."""
    options = _parser().parse_args()
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        # Sets of strings are walked in the order of their hashes: the same one in every replay.
        environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
        os.execve(sys.executable, [sys.executable, "-m", "chaos.sim", *sys.argv[1:]], environment)
    story = next((name for name in STORIES if getattr(options, name)), "")
    words = [f"--{story}"] if story else ["--short"] if options.short else []
    if options.shrink is not None:
        return _shrink(options.shrink, short=options.short)
    if options.seed is not None:
        only = options.faults
        one = STORIES[story] if story else partial(run_swarm, short=options.short, only=only)
        return _one(one, options.seed, options.trace)
    many = STORIES[story] if story else partial(run_swarm, short=options.short)
    found = _many(many, options.seeds, options.jobs, words, options.for_s, covered=options.coverage)
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(found), indent=1) + "\n")
    return 1 if found.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos.sim", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="run this one and print its trace")
    what.add_argument("--seeds", type=_range, metavar="A..B", help="run these, both ends included")
    what.add_argument("--shrink", type=int, metavar="N", help="find the fewest faults that break seed N")
    parser.add_argument("--trace", type=Path, help="write the trace of --seed here instead of printing it")
    parser.add_argument("--faults", type=_numbers, metavar="A,B", help="of --seed's schedule, only these")
    parser.add_argument("--short", action="store_true", help="few faults close together")
    parser.add_argument("--coverage", action="store_true", help="say which states --seeds has been through")
    story = parser.add_mutually_exclusive_group()
    story.add_argument("--gpus", action="store_true", help="two jobs that share the GPUs of four nodes")
    story.add_argument("--outage", action="store_true", help="etcd away for long, with promises (rule 11)")
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


def _shrink(seed: int, *, short: bool) -> int:
    found = shrink(seed, short=short, say=lambda line: print(line, flush=True))
    if found is None:
        print(f"seed {seed}: all promises kept")
        return 0
    print(f"\nseed {seed}, {found.runs} runs: {len(found.only)} of {len(found.result.schedule)} faults")
    for number in found.only:
        fault = found.result.schedule[number - 1]
        print(f"  {number}: {fault.kind} at {fault.at_s:.3f} s for {fault.for_s:.3f} s (pick {fault.pick})")
    print("\n".join((*found.result.violations, *filter(None, (found.result.error,)))))
    only = ",".join(map(str, found.only)) or "none"
    print(f"  replay: python -m chaos.sim{' --short' if short else ''} --seed {seed} --faults {only}")
    return 1


def _measured(run: Run, seed: int) -> tuple[Result, float]:
    began_s = process_time()
    result = run(seed)
    return result, process_time() - began_s


@dataclass(frozen=True, slots=True)
class Found:
    """What came of many seeds, as `sim.json` has it. `failed`: what to say of each that did, by seed."""

    seeds: int
    first: int
    asked: int
    virtual_s: float
    took_s: float
    failed: dict[int, str]


def _many(run: Run, seeds: range, jobs: int, words: list[str], for_s: float, *, covered: bool) -> Found:
    began_s = monotonic()
    failed: list[Result] = []
    done = 0
    virtual_s = cpu_s = 0.0
    totals, coverage = Counter[str](), Counter[str]()
    pool = ProcessPoolExecutor(max_workers=jobs)
    try:
        waiting = [pool.submit(_measured, run, seed) for seed in seeds]
        for future in as_completed(waiting):
            if future.cancelled():
                continue
            result, took_s = future.result()
            done += 1
            virtual_s += result.virtual_s
            cpu_s += took_s
            totals.update(result.facts)
            coverage.update(result.covered)
            coverage.update(f"fault {fault.kind}" for fault in result.schedule)
            if not result.ok:
                failed.append(result)
                print(_verdict(result, words), flush=True)
            _progress(done, len(waiting), len(failed), monotonic() - began_s)
            if monotonic() - began_s > for_s:
                for each in waiting:
                    each.cancel()
    finally:
        # Whoever interrupts it waits for the seeds that have begun, and for no others.
        pool.shutdown(cancel_futures=True)
    if done < len(seeds):
        print(f"\nthere was no time for {len(seeds) - done} of {len(seeds)} seeds")
    facts = ", ".join(f"{count} {what}" for what, count in sorted(totals.items()))
    print(
        f"\n{done} seeds, {virtual_s:.0f} s of virtual time in {monotonic() - began_s:.1f} s,"
        f" {virtual_s / cpu_s:.0f} times real time on a core: {facts}"
    )
    if covered:
        _print_coverage(coverage)
    verdicts = {each.seed: _verdict(each, words) for each in sorted(failed, key=lambda each: each.seed)}
    for verdict in verdicts.values():
        print(verdict)
    return Found(done, seeds[0], len(seeds), virtual_s, round(monotonic() - began_s, 1), verdicts)


def _print_coverage(seen: Counter[str]) -> None:
    kinds = [f"fault {kind}" for family in FAMILIES.values() for kind in family]
    for what in (*sorted(POSSIBLE), *sorted(kinds)):
        print(f"{seen.pop(what, 0):>8}  {what}")
    for what, count in sorted(seen.items()):
        print(f"{count:>8}  {what}")


def _verdict(result: Result, words: list[str]) -> str:
    why = result.violations[0] if result.violations else result.error
    command = " ".join(["python -m chaos.sim", *words, f"--seed {result.seed}"])
    return f"seed {result.seed}: {why}\n  replay: {command}"


def _progress(done: int, total: int, failed: int, took_s: float) -> None:
    if not sys.stderr.isatty() and done % 25 and done != total:
        return
    width = 40
    bar = "#" * (width * done // total)
    end = "\r" if sys.stderr.isatty() else "\n"
    sys.stderr.write(f"[{bar:<{width}}] {done}/{total} seeds, {failed} failed, {took_s:.0f} s{end}")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
