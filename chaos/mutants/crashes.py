"""Crash points of commit, restore and collection, and of outputs, as their own tests strike them."""

from __future__ import annotations

import asyncio
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from supervisor.contract.errors import TfSupervisorError
from tests.checkpoints import crash_scenarios
from tests.checkpoints.crashes import Fuse, Strike
from tests.outputs import crash_scenarios as outputs_scenarios

END = 10_000
OUTPUTS = "outputs"
_LEFT = "nothing is left behind"
_PROMISES = {"check_promises": "a committed checkpoint stays restorable", "check_leftovers": _LEFT}
_OF_OUTPUTS = {"check_promises": "what was written stays or is named", "check_leftovers": _LEFT}


def strikes(scenarios: Sequence[str], stride: int, only: str = "") -> Iterator[tuple[str, str]]:
    """Each point as `SCENARIO/STRIKE/STORE/NUMBER`, and what is broken after it; empty when nothing is."""
    for scenario in scenarios:
        for strike in Strike:
            for hdfs in (True, False):
                place = f"{scenario}/{strike.value}/{'hdfs' if hdfs else 'local'}"
                for number in range(0, END, stride):
                    at = f"{place}/{number}"
                    if only not in {"", at}:
                        continue
                    fuse = Fuse(number, strike)
                    yield at, _strike(scenario, fuse, hdfs=hdfs)
                    if not fuse.struck:
                        break


def _strike(scenario: str, fuse: Fuse, *, hdfs: bool) -> str:
    with tempfile.TemporaryDirectory(prefix="tfsup-crash-") as root:
        try:
            if scenario == OUTPUTS:
                asyncio.run(outputs_scenarios.strike_at(Path(root), fuse, hdfs=hdfs))
            else:
                asyncio.run(crash_scenarios.strike_at(Path(root), scenario, fuse, hdfs=hdfs))
        except (AssertionError, TfSupervisorError, OSError, ValueError, LookupError) as error:
            promise = _promise(error, _OF_OUTPUTS if scenario == OUTPUTS else _PROMISES)
            return f"[{promise}] struck at {fuse.struck!r}: {type(error).__name__} {error}"
    return ""


def _promise(error: Exception, promises: Mapping[str, str]) -> str:
    """The promise of the check that failed; without one, the promise that another life finishes the work."""
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    return next((promises[name] for name in frames if name in promises), "another life finishes it")
