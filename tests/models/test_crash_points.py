"""A crash, a cancellation or an error at each effect of publishing models; then another life.

At each point a model server sees whole versions alone. In the end all is published, once.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.checkpoints.crashes import Strike, strike_all
from tests.models.crash_scenarios import strike_at

STRIDES = {True: 31, False: 101}
"""Whether the store is HDFS -> the distance of the points that are struck."""
LEAST = 200
"""So many points there are at least, in HDFS and in a local store."""

everywhere = pytest.mark.parametrize("hdfs", [True, False], ids=["hdfs", "local"])


@everywhere
@pytest.mark.parametrize("strike", list(Strike), ids=lambda strike: strike.value)
async def test_some_points(tmp_path: Path, strike: Strike, hdfs: bool) -> None:
    points = await strike_all(tmp_path, strike, STRIDES[hdfs], partial(strike_at, hdfs=hdfs))
    assert points >= LEAST, "points are not seen any more"


@pytest.mark.slow
@pytest.mark.timeout(900)
@everywhere
@pytest.mark.parametrize("strike", list(Strike), ids=lambda strike: strike.value)
async def test_every_point(tmp_path: Path, strike: Strike, hdfs: bool) -> None:
    await strike_all(tmp_path, strike, 1, partial(strike_at, hdfs=hdfs))
