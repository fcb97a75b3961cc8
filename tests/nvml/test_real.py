"""Facts about any GPU: with TFSUP_REAL_NVML=1 about those of this machine, none of which is changed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from agent.inside.launcher import devices
from agent.settings import GpuSettings
from chaos.nvml import FakeNvml
from supervisor.contract.observed import GpuHealth
from tests.nvml.watching import watching

UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture
def library(tmp_path: Path) -> str:
    """Empty for this machine's own."""
    return "" if os.environ.get("TFSUP_REAL_NVML") == "1" else str(FakeNvml(tmp_path).library)


async def test_gpus_are_known_and_can_be_used(library: str) -> None:
    async with watching(GpuSettings(library, patience_ms=30_000)) as watched:
        await watched.until(lambda: bool(watched.health) or bool(watched.problem))
        assert not watched.problem
        assert watched.book.driver
        assert set(watched.health) <= {GpuHealth.OK, GpuHealth.FAULTY}
        for uuid, known in watched.book.known.items():
            sight = known.sight
            assert UUID.fullmatch(uuid)
            assert sight.name
            assert sight.memory_bytes > 1 << 30
            assert 0 <= sight.memory_used <= sight.memory_bytes
            assert re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}", sight.pci)
            assert uuid not in sight.peers
        count = len(watched.sights)
        await watched.until(lambda: len(watched.sights) > count + 2)
        promised = [uuid for uuid, each in watched.book.known.items() if not each.sight.error]
    inside = library or "libnvidia-ml.so.1"
    assert devices.look(inside, promised) == ""
    assert "is not there" in devices.look(inside, ["GPU-00000099-0000-4000-8000-0000000000ff"])
