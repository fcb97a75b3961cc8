"""The command line of the chaos tests."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import click
from rich.console import Console
from rich.table import Table

from chaos.cluster import Shape
from chaos.duration import seconds, shown
from chaos.faults import FAULTS
from chaos.programs import PROGRAMS
from chaos.runner.everything import Everything, Limits
from chaos.runner.mild import Mild
from chaos.runner.record import Again, Outcome
from chaos.runner.run import Order, Run
from chaos.runner.screen import Screen, document, table
from chaos.runner.stage import Stage
from chaos.runner.sweep import Summary, Sweep, Sweeper
from chaos.runner.timeline import timeline
from chaos.scenarios import Scenario, scenarios

RUNS = Path("var/chaos")
INTERRUPTED = 130
CODES = {Outcome.PASSED: 0, Outcome.BROKEN: 1, Outcome.ERROR: 3}


class Duration(click.ParamType[float]):
    """`90s`, `30m`, `1h`; seconds as a number."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        try:
            return seconds(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


_OUTPUT = click.option(
    "--output", "-o", type=click.Choice(["text", "json"]), default="text", show_default=True
)
_RUNS = click.option(
    "--runs", type=click.Path(path_type=Path), help="where runs are kept; default: below var/chaos"
)
_SEED = click.option("--seed", type=int, help="what it chooses; the same seed chooses the same")
_PROGRAM = click.option("--program", type=click.Choice(sorted(PROGRAMS)), default="steps", show_default=True)
_PATIENCE = click.option(
    "--patience", type=float, default=1.0, show_default=True, help="factor of all bounds, for a busy machine"
)


class SweepWords(TypedDict):
    """Options of `sweep` that are fields of `Sweep`."""

    for_s: float
    program: str
    digits: float
    once: bool
    most: int
    patience: float


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Break a cluster of nodes on this machine, for real, and check every promise.

    Exit codes: 0 all held; 1 a promise was broken; 2 wrong input; 3 a run proved nothing; 130 interrupted.
    """
    # Whatever ends us, what we started ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def entry() -> int:
    """The program: what `main` does, and 130 when somebody interrupts it."""
    try:
        return int(main.main(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return INTERRUPTED


@main.command("list")
@_OUTPUT
def list_(output: str) -> None:
    """Say what can be run, and on this machine, what cannot and why."""
    with Stage(Shape(etcd=1, supervisors=1, agents=1)) as stage:
        missing = stage.missing()
    rows = [
        {"name": name, "family": _family(each), "text": each.text, "missing": _missing(each, missing)}
        for name, each in scenarios().items()
    ]
    if output == "json":
        document(json.dumps(rows, indent=1))
        return
    console = Console()
    if not console.is_terminal:
        for row in rows:
            click.echo(f"{row['name']}: {row['text']} ({row['family']}) {row['missing']}".rstrip())
        return
    found = Table("scenario", "family", "what", "why it cannot be had here", box=None)
    for row in rows:
        found.add_row(*row.values())
    console.print(found)


def _family(scenario: Scenario) -> str:
    return ", ".join(sorted({FAULTS[name].family.value for name in scenario.faults})) or "any"


def _missing(scenario: Scenario, missing: dict[str, str]) -> str:
    return "; ".join(missing[name] for name in scenario.faults if name in missing)


@main.command()
@click.argument("scenario")
@_SEED
@_PROGRAM
@_PATIENCE
@_RUNS
@_OUTPUT
def run(
    scenario: str, seed: int | None, program: str, patience: float, runs: Path | None, output: str
) -> None:
    """Run SCENARIO once, on a cluster of its own."""
    chosen = _scenario(scenario)
    number = _seed(seed)
    name = f"{time.strftime('%Y%m%dT%H%M%S')}-{chosen.name}"
    order = Order(name, chosen, str(number), program, patience=patience)
    _perform(order, chosen.shape(Shape()), (runs or RUNS) / name, output)


@main.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@_PATIENCE
@_RUNS
@_OUTPUT
def replay(directory: Path, patience: float, runs: Path | None, output: str) -> None:
    """Do again what the run in DIRECTORY did: the same faults, the same targets, the same chance."""
    try:
        again = Again.read(directory)
    except (OSError, ValueError, KeyError) as error:
        raise click.UsageError(f"{directory} is no run: {error}") from error
    name = f"{time.strftime('%Y%m%dT%H%M%S')}-again-{again.scenario}"
    order = Order(name, _scenario(again.scenario), again.seed, again.program, dict(again.faults), patience)
    _perform(order, again.shape, (runs or RUNS) / name, output)


def _perform(order: Order, shape: Shape, directory: Path, output: str) -> None:
    screen = Screen(quiet=output == "json")
    screen.title("start a cluster")
    with Stage(shape, directory) as stage:
        if not order.scenario.possible(stage.available()):
            why = _missing(order.scenario, stage.missing())
            raise click.UsageError(f"{order.scenario.name} cannot be had on this machine: {why}")
        screen.title(order.id)
        record = Run(stage, order, directory, screen.say).perform()
    screen.close()
    screen.done(record)
    if record.outcome is not Outcome.PASSED:
        screen.failure(record, timeline(record, directory))
    screen.line(f"all about it: {directory}")
    if output == "json":
        document((directory / "run.json").read_text().rstrip())
    sys.exit(CODES[record.outcome])


@main.command()
@click.option(
    "--for", "for_s", type=Duration(), default="30m", show_default=True, help="begin no run after that"
)
@_SEED
@_PROGRAM
@click.option("--digits", type=float, default=0.0, help="share of runs that are of real TensorFlow")
@click.option("--once", is_flag=True, help="each scenario once, instead of what the seed chooses")
@click.option("--only", multiple=True, help="a scenario or a family; may be given several times")
@click.option("--most", type=int, default=0, help="so many runs at most")
@_PATIENCE
@_RUNS
@_OUTPUT
def sweep(
    *, seed: int | None, only: Sequence[str], runs: Path | None, output: str, **what: Unpack[SweepWords]
) -> None:
    """Run scenarios one after the other, on a cluster that is kept until a promise is broken."""
    number = _seed(seed)
    directory = runs or RUNS / f"{time.strftime('%Y%m%dT%H%M%S')}-sweep-{number}"
    order = Sweep(directory=directory, shape=Shape(), seed=number, scenarios=_chosen(only), **what)
    screen = Screen(quiet=output == "json")
    screen.line(f"seed {number}; runs are kept in {directory}")
    summary = Sweeper(order, screen).perform()
    _tell(summary, screen)
    if output == "json":
        document(summary.document())
    sys.exit(summary.exit_code)


def _tell(summary: Summary, screen: Screen) -> None:
    screen.console.print(table(summary.counts))
    for name, why in sorted(summary.missing.items()):
        screen.line(f"{name} cannot be injected here: {why}", "yellow")
    if summary.skipped:
        screen.line(f"no time was left for {', '.join(summary.skipped)}", "yellow")
    counts = ", ".join(f"{count} {outcome.value}" for outcome, count in summary.outcomes.items())
    screen.line(f"{len(summary.runs)} runs in {summary.took_s:.0f} s: {counts}")


def _chosen(only: Sequence[str]) -> tuple[Scenario, ...]:
    known = scenarios()
    families = {_family(each) for each in known.values()}
    for word in only:
        if word not in known and word not in families:
            raise click.UsageError(f"{word!r} is neither a scenario nor a family: see `python -m chaos list`")
    return tuple(each for name, each in known.items() if not only or name in only or _family(each) in only)


def _scenario(name: str) -> Scenario:
    known = scenarios()
    if name not in known:
        raise click.UsageError(f"there is no scenario {name!r}: see `python -m chaos list`")
    return known[name]


def _seed(seed: int | None) -> int:
    return random.SystemRandom().randrange(1_000_000) if seed is None else seed


@main.command()
@click.option("--for", "for_s", type=Duration(), default="60m", show_default=True)
@click.option("--profile", type=click.Choice(["default", "fast"]), default="default", show_default=True)
@_SEED
@_RUNS
@_OUTPUT
def mild(for_s: float, profile: str, seed: int | None, runs: Path | None, output: str) -> None:
    """Trouble a healthy job mildly for long: loss, delay, a slow disk, one at a time. Nothing may restart."""
    number = _seed(seed)
    directory = runs or RUNS / f"{time.strftime('%Y%m%dT%H%M%S')}-mild-{number}"
    screen = Screen(quiet=output == "json")
    screen.title(f"seed {number}; start a cluster")
    with Stage(Shape(profile=profile)) as stage:
        record = Mild(stage, directory, number, screen.say).perform(for_s)
    screen.close()
    screen.line(
        f"{len(record.troubles)} troubles in {record.took_s:.0f} s, {record.steps} steps, "
        f"{len(record.needless)} needless restarts; all about it: {directory}"
    )
    if output == "json":
        document(record.document())
    sys.exit(record.exit_code)


@main.command("all")
@click.option(
    "--for", "for_s", type=Duration(), default="3h", show_default=True, help="of all parts together"
)
@_SEED
@_PATIENCE
@_RUNS
def all_(for_s: float, seed: int | None, patience: float, runs: Path | None) -> None:
    """Do all of it in so much time: mutants, simulator, failpoints, a sweep; then write the report."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # In a shell's background we ignore it still; our parts, which are ended by it, do not inherit that.
        signal.signal(signal.SIGINT, lambda *_: None)
    number = _seed(seed)
    directory = (runs or RUNS / f"{time.strftime('%Y%m%dT%H%M%S')}-all-{number}").resolve()
    screen = Screen()
    screen.line(f"seed {number}; {shown(for_s)}; all is kept in {directory}")
    sums = Everything(Limits(directory, number, for_s, patience), screen.line).perform()
    subprocess.run([sys.executable, "-m", "chaos.report", str(directory)], check=False)
    for part in sums.parts:
        screen.line(
            f"{'well  ' if part.well else 'FAILED'}  {part.name}", "green" if part.well else "bold red"
        )
    sys.exit(sums.exit_code)


def _forward(name: str, module: str, text: str) -> None:
    """A verb whose work is another part's, with a command line of its own."""

    @main.command(name, help=text, add_help_option=False, context_settings={"ignore_unknown_options": True})
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def verb(words: tuple[str, ...]) -> None:
        os.execv(sys.executable, [sys.executable, "-m", module, *words])


_forward("sim", "chaos.sim", "Run the simulator: seeds, shrinking, coverage.")
_forward("mutants", "chaos.mutants", "Break the product's sources, and see that each break is caught.")
_forward("failpoints", "chaos.failpoints", "List the failpoints; kill a daemon at each.")
_forward("report", "chaos.report", "Write one page about all runs.")
