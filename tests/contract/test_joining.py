"""The versions of TensorFlow in which a worker can move inside its generation."""

from __future__ import annotations

import pytest

from supervisor.contract.job.joining import joins_supported


@pytest.mark.parametrize("version", ["2.21", "2.21.0", "2.21.3", "2.21.0-rc1", "2.16.2", "2.20.0"])
def test_a_version_that_was_tried_is_supported(version: str) -> None:
    assert joins_supported(version)


@pytest.mark.parametrize(
    "version", ["", "1.15.5", "2.9.0", "2.15.1", "2.210.0", "2.22.0", "3.0.0", "x2.21.0", "2.21.x"]
)
def test_any_other_is_not(version: str) -> None:
    assert not joins_supported(version)
