"""Signs of life wait for the next tick, but only where no rule waits for them (decision 0032)."""

from __future__ import annotations

import pytest

from agent.core.events import BeatSeen, Event, Heard, LauncherSaid, MemoryFree, SpecRead, TermsSeen, Tick
from agent.core.instructions import AskPromises, Fence, Launch
from agent.core.pool import SPARE_BYTES, STALL_TICKS, silence_ms
from agent.core.saved import adopt
from agent.inside import protocol
from supervisor.contract.timing import FAST
from tests.guarantees.test_agent_rules import ORDER, RUNNING, SPEC, Core, only

FROZEN_MS = 1_300


def pull(core: Core) -> LauncherSaid:
    return LauncherSaid(core.launcher_id, protocol.Pull(core.now_ms, "life1", str(ORDER.attempt_id)))


def calm(core: Core) -> Core:
    """Its rules have found nothing to do."""
    core.feed(Heard(core.now_ms), Tick())
    assert core.state.idle
    return core


def passes(core: Core, event: Event) -> int:
    """How often the rules are applied for an event."""
    before = core.state.passes
    core.feed(event)
    return core.state.passes - before


@pytest.mark.parametrize("kind", [BeatSeen, MemoryFree, LauncherSaid])
def test_they_apply_no_rule_and_leave_nothing_to_save(kind: type[Event]) -> None:
    core = calm(Core().running())
    core.now_ms += 50
    events: dict[type[Event], Event] = {
        BeatSeen: BeatSeen(core.now_ms),
        MemoryFree: MemoryFree(1),
        LauncherSaid: pull(core),
    }
    # Memory was not known before; from then on it is measured again.
    core.feed(MemoryFree(0), Tick())
    record = adopt.record_of(core.state)
    assert passes(core, events[kind]) == 0
    assert adopt.record_of(core.state) == record


@pytest.mark.parametrize("event", [Tick(), Heard(1)])
def test_a_tick_applies_them_all(event: Event) -> None:
    assert passes(calm(Core().running()), event) == 1


def test_after_a_pass_that_did_something_they_apply_the_rules() -> None:
    core = Core().running()
    core.state = core.state.but(idle=False)
    assert passes(core, pull(core)) == 1


def test_after_a_freeze_what_lies_in_the_inbox_does_not_hide_that_the_agent_stood_still() -> None:
    """The launcher's pull lies behind a tick, before which a read had been answered."""
    core = calm(Core().running())
    assert max(silence_ms(core.state), STALL_TICKS * FAST.tick_ms) < FROZEN_MS
    out = core.later(FROZEN_MS, BeatSeen(core.now_ms), Tick(), pull(core))
    assert not only(Fence, out)


def test_a_read_that_lets_tasks_start_again_starts_them_at_once() -> None:
    core = Core().prepared()
    core.now_ms += FAST.d_ms - FAST.reserve_ms
    core.see(RUNNING, ORDER)
    core.feed(SpecRead("p1", SPEC))
    calm(core)
    assert only(Launch, core.feed(BeatSeen(core.now_ms)))


def test_a_read_that_makes_promises_needless_applies_the_rules() -> None:
    core = Core().running()
    core.feed(TermsSeen(("s1",), 60_000, "cluster"))
    out = core.later(FAST.beat_ms + FAST.rpc_deadline_ms + 1, Tick())
    assert only(AskPromises, out)
    assert passes(calm(core), BeatSeen(core.now_ms)) == 1


def test_memory_for_a_spare_applies_the_rules() -> None:
    core = calm(Core().running())
    core.feed(MemoryFree(SPARE_BYTES - 1), Tick())
    assert passes(core, MemoryFree(SPARE_BYTES - 2)) == 0
    assert passes(core, MemoryFree(SPARE_BYTES)) == 1
