"""Scripted GPUs for the tests of this directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.nvml import FakeNvml


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[..., FakeNvml]:
    """Makes a library of its own for this test."""

    def make(count: int = 2, *, old: bool = False) -> FakeNvml:
        directory = tmp_path / "nvml"
        directory.mkdir()
        return FakeNvml(directory, count, old=old)

    return make
