"""The goodput ledger under faults: its categories add up to what passes on the simulator's clock."""

from __future__ import annotations

from typing import ClassVar

import pytest

from chaos.sim import run
from chaos.sim.cluster.etcd import Effect
from chaos.sim.cluster.world import World
from chaos.sim.promises.checkers import Promises
from chaos.sim.swarm import Length
from supervisor.contract import codec
from supervisor.contract.job.goodput import Goodput

NEAR_MS = 5
RATE = 0.005
"""More than what clocks of machines differ in their rate."""


class Watched(Promises):
    """Notes each write of a ledger, with the moment on the simulator's clock that it tells of."""

    seen: ClassVar[list[tuple[float, Goodput]]] = []

    def __init__(self, world: World) -> None:
        super().__init__(world)
        inner = world.etcd.watcher

        def on_effect(effect: Effect) -> None:
            inner(effect)
            seat = world.seat_of(effect.process) if effect.process is not None else None
            for key, raw in effect.puts.items():
                if key.startswith("goodput/") and seat is not None:
                    kept = codec.decode(Goodput, raw)
                    ago_ms = seat.clock.now_ms() - kept.at_ms
                    self.seen.append((effect.at_s * 1000 - ago_ms, kept))

        world.etcd.watcher = on_effect


def test_the_categories_add_up_to_what_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "Promises", Watched)
    checked = 0
    for seed in (1, 2, 3):
        Watched.seen.clear()
        result = run.run_swarm(seed, Length.SHORT)
        assert result.ok, (*result.violations, result.error)
        last: dict[str, tuple[float, Goodput]] = {}
        for moment_ms, kept in Watched.seen:
            assert min(kept.spent_ms.values(), default=0) >= 0
            before_ms, before = last.get(kept.job, (0.0, None))
            last[kept.job] = moment_ms, kept
            if before is None or (before.job_uuid, before.leader) != (kept.job_uuid, kept.leader):
                continue
            passed_ms = moment_ms - before_ms
            spent_ms = sum(kept.spent_ms.values()) - sum(before.spent_ms.values())
            assert abs(spent_ms - passed_ms) <= NEAR_MS + RATE * passed_ms
            assert spent_ms >= 0
            checked += 1
    assert checked > 5
