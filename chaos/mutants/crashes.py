"""Crash points of commit, restore and collection, as the stores' own harness strikes them."""

from __future__ import annotations

import asyncio
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from supervisor.contract.errors import TfSupervisorError
from tests.checkpoints import test_crash_points as harness
from tests.checkpoints.crashes import Fuse, Strike

END = 10_000
_PROMISES = {
    "check_promises": "a committed checkpoint stays restorable",
    "check_leftovers": "nothing is left behind",
}


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
            asyncio.run(harness.strike_at(Path(root), scenario, fuse, hdfs=hdfs))
        except (AssertionError, TfSupervisorError, OSError, ValueError, LookupError) as error:
            return f"[{_promise(error)}] struck at {fuse.struck!r}: {type(error).__name__} {error}"
    return ""


def _promise(error: Exception) -> str:
    """Whose check failed; where none did, another life could not finish what was begun."""
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    return next((_PROMISES[name] for name in frames if name in _PROMISES), "another life finishes it")
