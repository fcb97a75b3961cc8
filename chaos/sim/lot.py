"""Many runs in several processes: how they go, what has failed, and what all of them have been through."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from time import monotonic, process_time

from chaos.sim.coverage import POSSIBLE
from chaos.sim.run import Result
from chaos.sim.traits import TRAITS
from chaos.sim.trouble.schedule import FAMILIES

Run = Callable[[int], Result]


@dataclass(frozen=True, slots=True)
class Work:
    """A seed, what runs it, and how its command line names that."""

    seed: int
    run: Run
    words: tuple[str, ...]


def _measured(work: Work) -> tuple[Result, float]:
    began_s = process_time()
    result = work.run(work.seed)
    return result, process_time() - began_s


@dataclass(frozen=True, slots=True)
class Found:
    """The results of many seeds, as in `sim.json`.

    Attributes:
        failed: failed seed -> the report on it.
        struck: failpoints at which a daemon was killed as aimed.
    """

    seeds: int
    first: int
    asked: int
    virtual_s: float
    took_s: float
    failed: dict[int, str]
    struck: tuple[str, ...] = ()


class Lot:
    """Many runs, in `jobs` processes, of which none begins after `for_s`.

    Attributes:
        done: which of them there was time for.
        reached: the failpoints of each seed that kept all promises, with how often.
    """

    def __init__(self, jobs: int, for_s: float) -> None:
        self._jobs, self._for_s = jobs, for_s
        self.done: list[bool] = []
        self.reached: dict[int, dict[str, int]] = {}

    def run(self, works: Sequence[Work], *, covered: bool) -> Found:
        """Run all seeds; prints the progress and the failures."""
        began_s = monotonic()
        failed: dict[int, str] = {}
        virtual_s = cpu_s = 0.0
        totals, coverage = Counter[str](), Counter[str]()
        self.done = [False] * len(works)
        pool = ProcessPoolExecutor(max_workers=self._jobs)
        try:
            waiting = {pool.submit(_measured, work): index for index, work in enumerate(works)}
            for future in as_completed(waiting):
                if future.cancelled():
                    continue
                result, took_s = future.result()
                work = works[waiting[future]]
                self.done[waiting[future]] = True
                virtual_s += result.virtual_s
                cpu_s += took_s
                totals.update(result.facts)
                coverage.update(result.covered)
                coverage.update(f"fault {fault.kind}" for fault in result.schedule)
                if result.ok:
                    self.reached[work.seed] = result.reached
                else:
                    verdict = _verdict(result, work.words)
                    before = failed.get(work.seed)
                    failed[work.seed] = verdict if before is None else f"{before}\n{verdict}"
                    print(verdict, flush=True)
                _progress(sum(self.done), len(works), len(failed), monotonic() - began_s)
                if monotonic() - began_s > self._for_s:
                    for each in waiting:
                        each.cancel()
        finally:
            # Whoever interrupts it waits for the seeds that have begun, and for no others.
            pool.shutdown(cancel_futures=True)
        done, took_s = sum(self.done), monotonic() - began_s
        if done < len(works):
            print(f"\nthere was no time for {len(works) - done} of {len(works)} seeds")
        facts = ", ".join(f"{count} {what}" for what, count in sorted(totals.items()))
        print(
            f"\n{done} seeds, {virtual_s:.0f} s of virtual time in {took_s:.1f} s,"
            f" {virtual_s / cpu_s:.0f} times real time on a core: {facts}"
        )
        if covered:
            _print_coverage(coverage)
        failed = dict(sorted(failed.items()))
        for verdict in failed.values():
            print(verdict)
        return Found(done, works[0].seed, len(works), virtual_s, round(took_s, 1), failed)


def _print_coverage(seen: Counter[str]) -> None:
    kinds = [f"fault {kind}" for family in FAMILIES.values() for kind in family]
    traits = [f"trait {trait}" for trait in TRAITS]
    for what in (*sorted(POSSIBLE), *sorted(kinds), *sorted(traits)):
        print(f"{seen.pop(what, 0):>8}  {what}")
    for what, count in sorted(seen.items()):
        print(f"{count:>8}  {what}")


def _verdict(result: Result, words: Sequence[str]) -> str:
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
