"""Runs in a copy of the tree: tries to break promises there, and prints one line of JSON for each try.

`python -m chaos.mutants.probe MUTANT [--only TRY] [--most N]`: all tries of the mutant's hunter, or this one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import supervisor
from agent.inside.processes import spawn
from chaos.mutants.clusters import runs
from chaos.mutants.crashes import strikes
from chaos.mutants.launchers import stories
from chaos.mutants.mutant import CrashPoints, Hunter, Launchers, Real, Simulated
from chaos.mutants.table import MUTANTS, by_name
from chaos.sim.gpus import run_gpus
from chaos.sim.outage import run_outage
from chaos.sim.run import (
    Result,
    run_booked,
    run_deleted,
    run_flawed,
    run_other_saver,
    run_powered,
    run_seed,
    run_served,
    run_stopped,
)

HASH_SEED = "0"
STORIES: dict[str, Callable[..., Result]] = {
    "jobs": run_seed,
    "gpus": run_gpus,
    "booked": run_booked,
    "outage": run_outage,
    "flawed": run_flawed,
    "deleted": run_deleted,
    "powered": run_powered,
    "stopped": run_stopped,
    "served": run_served,
    "other saver": run_other_saver,
}


@dataclass(frozen=True, slots=True)
class Try:
    """One run: `at` says which, so that it can be repeated; `error` why it proves nothing."""

    at: str
    violations: tuple[str, ...] = ()
    error: str = ""


def tries(hunter: Hunter, only: str = "") -> Iterator[Try]:
    """Run them one by one."""
    match hunter:
        case Simulated():
            run = STORIES[hunter.story]
            for seed in range(1, hunter.most + 1) if not only else (int(only),):
                result = run(seed, hunter.script)
                yield Try(str(seed), result.violations, result.error)
        case CrashPoints():
            for at, violation in strikes(hunter.scenarios, hunter.stride, only):
                yield Try(at, (violation,) if violation else ())
        case Launchers():
            for at, violation in stories(only or hunter.story):
                yield Try(at, (violation,) if violation else ())
        case Real():
            for at, violations, error in runs(hunter.scenario, hunter.most, only):
                yield Try(at, violations, error)


def main() -> int:
    """Run the tries and print them."""
    parser = argparse.ArgumentParser(prog="python -m chaos.mutants.probe", description=__doc__)
    parser.add_argument("mutant", choices=[mutant.name for mutant in MUTANTS])
    parser.add_argument("--only", default="", help="the one try to make")
    parser.add_argument("--most", type=int, help="tries, at most")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="whose end is its own")
    options = parser.parse_args()
    spawn.die_with(options.parent)
    assert Path(supervisor.__file__).is_relative_to(Path.cwd()), "it would try another tree"
    assert os.environ.get("PYTHONHASHSEED") == HASH_SEED, "sets are walked in another order each time"
    found = tries(by_name(options.mutant).hunter, options.only)
    for each in islice(found, options.most):
        print(json.dumps(asdict(each)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
