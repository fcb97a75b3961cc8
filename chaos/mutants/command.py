"""`python -m chaos mutants [NAME...]`: puts each bug into a copy of the tree, and insists that it is noticed.

A name is any part of a mutant's name, or `rule:N`. Without one it hunts all of them.

Exit codes: 0 all are caught, 1 one is not, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.table import Table

from chaos import duration
from chaos.mutants.hunt import hunt
from chaos.mutants.mutant import Mutant
from chaos.mutants.page import render
from chaos.mutants.table import MUTANTS
from chaos.mutants.verdict import Fate, Verdict, load, save


def main(arguments: Sequence[str]) -> int:
    """Hunt what was asked for; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="part of a name, or rule:N")
    parser.add_argument("--list", action="store_true", help="only name them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    parser.add_argument("--most", type=int, help="tries of a mutant, at most")
    limit = "begin with no mutant after that: 90s, 30m or 1h"
    parser.add_argument(
        "--for", dest="for_s", type=duration.argument, default=math.inf, metavar="TIME", help=limit
    )
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="in an order of its own")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="the verdicts; those of others that are there stay"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page of all verdicts there")
    options = parser.parse_args(arguments)
    chosen = chosen_of(options.names)
    if not chosen:
        parser.error(f"no mutant is called {' or '.join(options.names)}: see --list")
    if options.shuffle is not None:
        chosen = tuple(random.Random(options.shuffle).sample(chosen, len(chosen)))
    console = Console()
    if options.list:
        for mutant in chosen:
            console.print(f"{mutant.rule:>2}  {mutant.name}", highlight=False)
        return 0
    began = monotonic()
    known = load(options.json) if options.json is not None else {}

    def keep(verdict: Verdict) -> None:
        known[verdict.name] = verdict
        if options.json is not None:
            save(options.json, _ordered(known).values())

    verdicts = _hunt(console, chosen, options.jobs, options.most, options.for_s, keep)
    order = [mutant.name for mutant in chosen]
    verdicts.sort(key=lambda verdict: order.index(verdict.name))
    took_s = monotonic() - began
    if options.page is not None:
        options.page.write_text(render(MUTANTS, known))
    if len(verdicts) < len(chosen):
        console.print(
            f"there was no time for {len(chosen) - len(verdicts)} of {len(chosen)}", highlight=False
        )
    return _sum_up(console, verdicts, took_s)


def chosen_of(names: Sequence[str]) -> tuple[Mutant, ...]:
    """The mutants that any of these names, or all."""
    return tuple(
        mutant
        for mutant in MUTANTS
        if not names or any(name == f"rule:{mutant.rule}" or name in mutant.name for name in names)
    )


def _ordered(known: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """The verdicts in the order of the table, without mutants that it no longer has."""
    return {mutant.name: known[mutant.name] for mutant in MUTANTS if mutant.name in known}


def _hunt(
    console: Console,
    chosen: Sequence[Mutant],
    jobs: int,
    most: int | None,
    for_s: float,
    keep: Callable[[Verdict], None],
) -> list[Verdict]:
    verdicts: list[Verdict] = []
    rules = {mutant.name: mutant.rule for mutant in chosen}
    tries: dict[str, int] = {}
    with console.status("copying the tree") as status:

        def tell(name: str, number: int) -> None:
            tries[name] = number
            at_work = ", ".join(f"{each} ({count})" for each, count in sorted(tries.items()))
            status.update(f"{len(verdicts)} of {len(chosen)}; try {at_work}"[:200])

        for verdict in hunt(chosen, jobs, tell, most, for_s):
            verdicts.append(verdict)
            keep(verdict)
            tries.pop(verdict.name, None)
            console.print(
                f"[{len(verdicts)}/{len(chosen)}] rule {rules[verdict.name]}: {_line(verdict)}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
    return verdicts


def _line(verdict: Verdict) -> str:
    runs = f"{verdict.tries} {'try' if verdict.tries == 1 else 'tries'}, {verdict.took_s:.1f} s"
    match verdict.fate:
        case Fate.CAUGHT:
            return f"{verdict.name}: caught by {verdict.checker!r} at {verdict.at} ({runs})"
        case Fate.SURVIVED:
            others = f"; only {', '.join(verdict.others)}" if verdict.others else ""
            return f"{verdict.name}: SURVIVED ({runs}){others}"
        case Fate.UNPROVEN:
            return f"{verdict.name}: UNPROVEN: {verdict.text}"


def _sum_up(console: Console, verdicts: Sequence[Verdict], took_s: float) -> int:
    left = [verdict for verdict in verdicts if verdict.fate is not Fate.CAUGHT]
    checkers: dict[str, int] = {}
    for verdict in verdicts:
        if verdict.checker:
            checkers[verdict.checker] = checkers.get(verdict.checker, 0) + 1
    table = Table("checker", "mutants caught", title="who caught them")
    for checker, count in sorted(checkers.items(), key=lambda each: -each[1]):
        table.add_row(checker, str(count))
    console.print(table)
    console.print(f"{len(verdicts) - len(left)} of {len(verdicts)} caught in {took_s:.0f} s", highlight=False)
    for verdict in left:
        console.print(f"  {_line(verdict)}", markup=False, highlight=False, soft_wrap=True)
    return 1 if left else 0
