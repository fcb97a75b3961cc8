"""`python -m chaos.sim --seed N` replays one run exactly; `--seeds A..B` runs many; `--gpus` another story.

Exit codes: 0 all promises kept, 1 a promise broken or a run that did not bite, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from time import monotonic

from chaos.sim.gpus import run_gpus
from chaos.sim.run import Result, run_seed

HASH_SEED = "0"


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m chaos.sim", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="run this one and print its trace")
    what.add_argument("--seeds", type=_range, metavar="A..B", help="run these, both ends included")
    parser.add_argument("--trace", type=Path, help="write the trace of --seed here instead of printing it")
    parser.add_argument("--gpus", action="store_true", help="two jobs that share the GPUs of four nodes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes for --seeds")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        # Sets of strings are walked in the order of their hashes: the same one in every replay.
        environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
        os.execve(sys.executable, [sys.executable, "-m", "chaos.sim", *sys.argv[1:]], environment)
    run = run_gpus if options.gpus else run_seed
    if options.seed is not None:
        return _one(run, options.seed, options.trace)
    return _many(run, options.seeds, options.jobs)


def _range(text: str) -> range:
    first, dots, last = text.partition("..")
    if not dots or not first.isdigit() or not last.isdigit() or int(last) < int(first):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range: write 1..300")
    return range(int(first), int(last) + 1)


def _one(run: Callable[[int], Result], seed: int, trace: Path | None) -> int:
    began = monotonic()
    result = run(seed)
    took_s = monotonic() - began
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


def _many(run: Callable[[int], Result], seeds: range, jobs: int) -> int:
    began = monotonic()
    failed: list[Result] = []
    virtual_s, totals = 0.0, dict[str, int]()
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        waiting = [pool.submit(run, seed) for seed in seeds]
        for done, future in enumerate(as_completed(waiting), 1):
            result = future.result()
            virtual_s += result.virtual_s
            for what, count in result.facts.items():
                totals[what] = totals.get(what, 0) + count
            if not result.ok:
                failed.append(result)
                print(_verdict(run, result), flush=True)
            _progress(done, len(waiting), len(failed), monotonic() - began)
    took_s = monotonic() - began
    facts = ", ".join(f"{count} {what}" for what, count in sorted(totals.items()))
    print(f"\n{len(seeds)} seeds, {virtual_s:.0f} s of virtual time in {took_s:.1f} s: {facts}")
    for result in sorted(failed, key=lambda each: each.seed):
        print(_verdict(run, result))
    return 1 if failed else 0


def _verdict(run: Callable[[int], Result], result: Result) -> str:
    why = result.violations[0] if result.violations else result.error
    gpus = " --gpus" if run is run_gpus else ""
    return f"seed {result.seed}: {why}\n  replay: python -m chaos.sim{gpus} --seed {result.seed}"


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
