"""A crash, a cancellation or an error at each effect of sending a task's outputs; then another life.

After each: what the task wrote is on its node or in the store. In the end it is in the store, whole, and
nothing of it is left on the node.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.checkpoints.crashes import Strike, strike_all
from tests.outputs.crash_scenarios import (
    strike_at,
)

STRIDE = 11
LEAST = 60
"""So many points there are at least, in HDFS and in a local store."""


everywhere = pytest.mark.parametrize("hdfs", [True, False], ids=["hdfs", "local"])


@everywhere
@pytest.mark.parametrize("strike", list(Strike), ids=lambda strike: strike.value)
async def test_some_points(tmp_path: Path, strike: Strike, hdfs: bool) -> None:
    points = await strike_all(tmp_path, strike, STRIDE, partial(strike_at, hdfs=hdfs))
    assert points >= LEAST, "points are not seen any more"


@pytest.mark.slow
@pytest.mark.timeout(600)
@everywhere
@pytest.mark.parametrize("strike", list(Strike), ids=lambda strike: strike.value)
async def test_every_point(tmp_path: Path, strike: Strike, hdfs: bool) -> None:
    await strike_all(tmp_path, strike, 1, partial(strike_at, hdfs=hdfs))
