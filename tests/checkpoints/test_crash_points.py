"""A crash, a cancellation or an error at each effect of commit, restore and collection; then another life.

After each: no committed checkpoint is lost, none that can be restored is bad, nothing is left for ever.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoints.crash_scenarios import (
    SCENARIOS,
    strike_at,
)
from tests.checkpoints.crashes import Strike, strike_all

STRIDE = 13
"""`make test` strikes at each 13th point; `make test-all` at all of them."""

LEAST = {
    "commit": (30, 55),
    "commit-plain": (25, 45),
    "restore": (25, 30),
    "restore-own": (16, 16),
    "follow": (28, 35),
    "collect": (18, 30),
}
"""So many points are in each scenario at least, in HDFS and in a local store."""


everywhere = pytest.mark.parametrize("hdfs", [True, False], ids=["hdfs", "local"])


@everywhere
@pytest.mark.parametrize("strike", list(Strike), ids=lambda strike: strike.value)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_some_points(tmp_path: Path, scenario: str, strike: Strike, hdfs: bool) -> None:
    points = await strike_all(
        tmp_path, strike, STRIDE, lambda root, fuse: strike_at(root, scenario, fuse, hdfs=hdfs)
    )
    assert points >= LEAST[scenario][not hdfs], "points are not seen any more"


@pytest.mark.slow
@pytest.mark.timeout(600)
@everywhere
@pytest.mark.parametrize("strike", list(Strike), ids=lambda strike: strike.value)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_every_point(tmp_path: Path, scenario: str, strike: Strike, hdfs: bool) -> None:
    await strike_all(tmp_path, strike, 1, lambda root, fuse: strike_at(root, scenario, fuse, hdfs=hdfs))


def test_there_are_a_thousand_points() -> None:
    assert len(Strike) * sum(map(sum, LEAST.values())) >= 1000
