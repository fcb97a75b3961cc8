"""Spare launchers: a machine that cannot start one is not asked again at once."""

from __future__ import annotations

from dataclasses import replace

from agent.core.events import BeatSeen, Heard, SpawnFailed
from agent.core.instructions import Spawn
from agent.core.pool import SPARE_AGAIN_MS, SPARE_DELAY_MS
from tests.guarantees.test_agent_rules import Core, only


def later(core: Core, ms: int) -> list[Spawn]:
    """What is spawned within `ms` in which all else is well."""
    found = []
    for _ in range(ms // 100):
        core.now_ms += 100
        attempt = core.attempt
        core.state.launchers[attempt.launcher_id] = replace(
            core.state.launchers[attempt.launcher_id], heard_ms=core.now_ms
        )
        found += only(Spawn, core.feed(BeatSeen(core.now_ms), Heard(core.now_ms)))
    return found


def test_a_spare_that_cannot_be_spawned_is_tried_again_after_a_while() -> None:
    core = Core().running()
    core.state = replace(core.state, settings=replace(core.state.settings, spare_launchers=1))
    (spare,) = later(core, SPARE_DELAY_MS + 200)
    assert not only(Spawn, core.feed(SpawnFailed(spare.launcher_id, "no process is left")))
    assert not later(core, SPARE_AGAIN_MS - 1_000)
    assert len(later(core, 2_000)) == 1
