"""A step takes all events, then applies the rules once; for pulls alone it applies none (decision 0058)."""

from __future__ import annotations

import pytest

from agent.core.events import BeatSeen, Event, Heard, LauncherSaid, MemoryFree, SpecRead, Tick
from agent.core.instructions import Fence, Launch, Say
from agent.core.pool import STALL_TICKS, silence_ms
from agent.core.saved import adopt
from agent.inside import protocol
from supervisor.contract.timing import FAST
from tests.agent.core import ORDER, RUNNING, SPEC, Core, kills, only

FROZEN_MS = 1_300


def pull(core: Core, launcher_id: str) -> LauncherSaid:
    return LauncherSaid(launcher_id, protocol.Pull(core.now_ms, "life1", str(ORDER.attempt_id)))


def test_a_pull_is_answered_applies_no_rule_and_leaves_nothing_to_save() -> None:
    core = Core().running()
    stepped_ms, record = core.state.stepped_ms, adopt.record_of(core.state)
    (answer,) = core.later(50, pull(core, core.launcher_id))
    assert isinstance(answer, Say)
    assert isinstance(answer.message, protocol.Grant)
    assert core.state.stepped_ms == stepped_ms
    assert adopt.record_of(core.state) == record


@pytest.mark.parametrize("event", [Tick(), Heard(1), BeatSeen(1), MemoryFree(1)])
def test_any_other_event_applies_them_all(event: Event) -> None:
    core = Core().running()
    core.later(50, event)
    assert core.state.stepped_ms == core.now_ms
    core.now_ms += 50
    core.together(pull(core, core.launcher_id), event)
    assert core.state.stepped_ms == core.now_ms


def test_after_a_freeze_a_pull_does_not_hide_that_the_agent_stood_still() -> None:
    """Another launcher's pull lies behind the tick."""
    core = Core().running()
    assert max(silence_ms(core.state), STALL_TICKS * FAST.tick_ms) < FROZEN_MS
    out = core.later(FROZEN_MS, pull(core, "another"), Tick())
    assert not only(Fence, out)


def test_a_read_that_lets_tasks_start_again_starts_them_at_once() -> None:
    core = Core().prepared()
    core.now_ms += FAST.d_ms - FAST.reserve_ms
    core.see(RUNNING, ORDER)
    core.feed(SpecRead("p1", SPEC))
    core.feed(Heard(core.now_ms), Tick())
    assert only(Launch, core.feed(BeatSeen(core.now_ms)))


def test_what_waits_is_taken_before_a_rule_looks() -> None:
    """After a freeze beyond the deadline the read that vouches for the node lies behind the tick."""
    core, other = Core().running(), Core().running()
    for each in (core, other):
        each.now_ms += FAST.d_ms
    waits = (Tick(), Heard(core.now_ms), BeatSeen(core.now_ms))
    assert not kills(core.together(*waits))
    assert kills(other.feed(*waits)), "one by one"
