"""`python -m chaos.failpoints`: the list of all failpoints, and runs that kill a daemon at each."""

from __future__ import annotations

import math
import random
import sys
import time
from pathlib import Path

import click

from chaos.command import Duration
from chaos.duration import shown
from chaos.failpoints.grounds import GROUNDS
from chaos.failpoints.kept import NO_TIME, NOBODY, NOT_REACHED, Strikes
from chaos.failpoints.points import failpoints, names
from chaos.failpoints.strike import Striker
from chaos.runner.record import Outcome, RunRecord
from chaos.runner.screen import Screen
from chaos.runner.stage import Stage
from chaos.runner.timeline import timeline

RUNS = Path("var/chaos")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Points before and after every effect of the daemons, at which a test kills them."""


@main.command("list")
def list_() -> None:
    """Say which failpoints there are, and where in the source."""
    found = failpoints()
    for each in found:
        print(f"{each.name:40} {each.path}:{each.line}")
    print(f"{len({each.name for each in found})} effects, each with a point before and one after it")


@main.command()
@click.argument("points", nargs=-1)
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    help="where runs are kept, and where an earlier call left off; default: anew, below var/chaos",
)
@click.option(
    "--on",
    type=click.Choice(list(GROUNDS)),
    default="small",
    show_default=True,
    help="; ".join(f"{each.name}: {each.text}" for each in GROUNDS.values()),
)
@click.option("--patience", type=float, default=1.0, show_default=True, help="factor of all bounds")
@click.option("--for", "for_s", type=Duration(), help="only one strike after so long; default: no limit")
@click.option("--seed", type=int, help="the order of the points; default: by name")
@click.option(
    "--at-once", type=click.IntRange(1), default=1, show_default=True, help="so many points armed together"
)
def strike(
    points: tuple[str, ...],
    runs: Path | None,
    on: str,
    patience: float,
    for_s: float | None,
    seed: int | None,
    at_once: int,
) -> None:
    """Kill a daemon at each of POINTS (without any: all that were not struck yet), on a real cluster.

    Exit codes: 0 all promises held; 1 one was broken; 2 wrong input; 3 nothing, or not all
    of POINTS, was struck.
    """
    if unknown := sorted(set(points) - names()):
        raise click.UsageError(f"there is no point {unknown[0]!r}; see `python -m chaos.failpoints list`")
    until_s = time.monotonic() + for_s if for_s is not None else math.inf
    directory = (runs or RUNS / f"{time.strftime('%Y%m%dT%H%M%S')}-failpoints").resolve()
    screen = Screen()
    try:
        sums = Strikes.read(directory)
    except (ValueError, KeyError) as error:
        raise click.UsageError(f"{directory}: {error}") from error
    screen.title("start a cluster, and see what leads where")
    ground = GROUNDS[on]
    with Stage(ground.shape, directory) as stage:
        striker = Striker(stage, ground, directory, screen.say, patience, at_once)
        plan, whole = striker.survey(until_s)
        chosen = sorted(set(points) & plan.keys() if points else plan.keys() - sums.struck)
        if seed is not None:
            random.Random(seed).shuffle(chosen)
        # What nobody came to again has had its turn.
        chosen.sort(key=lambda point: sums.missed.get(point) == NOBODY)
        why = NOT_REACHED if whole else NO_TIME
        sums.miss(dict.fromkeys(sorted((set(points) or names()) - plan.keys()), why))
        left = f", {shown(for_s)} in all" if for_s is not None else ""
        screen.title(f"{len(chosen)} points{left}")
        bad = [_failed(each, directory, screen) for each in striker.surveyed]
        struck: set[str] = set()
        for record in striker.strike({point: plan[point] for point in chosen}, until_s):
            struck |= {fault.name for fault in record.faults if fault.in_force}
            sums.take(sorted(struck))
            sums.write(directory)
            bad.append(_failed(record, directory, screen))
        sums.miss(striker.missed)
        sums.write(directory)
    screen.close()
    for why, missed in sums.by_reason().items():
        screen.line(f"{why}: {len(missed)}: {' '.join(missed)}", "yellow")
    screen.line(f"{len(sums.struck)} of {len(names())} points were struck; all about it: {directory}")
    proven = struck >= set(points) if points else bool(struck) or not chosen
    sys.exit(1 if any(bad) else 0 if proven else 3)


def _failed(record: RunRecord, directory: Path, screen: Screen) -> bool:
    """Tell of a run, and whether it proved anything but that all promises were kept."""
    screen.done(record)
    if record.outcome is Outcome.PASSED:
        return False
    screen.failure(record, timeline(record, directory / record.id))
    return True


if __name__ == "__main__":
    main()
