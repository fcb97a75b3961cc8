"""Which events can make no difference to any rule, so that working through all of them would change nothing.

Safety. All rules together are a function of the state and of the time, and look at the time through
`Work.past` alone. When they have found nothing to do and nothing to change, they find the same until the
first moment at which one of those answers would be another, if the state is the same but for what such
events bring: a later read or sign of life of etcd, the pull of a launcher, the free memory. Rules see these
only as what a deadline is counted from, which is a later one then (and the memory through
`pool.short_of_memory` alone). So no answer changes earlier than it would have, and at the moment that was
noted all rules look again.
"""

from __future__ import annotations

from dataclasses import replace

from agent.core import pool
from agent.core.events import BeatSeen, Event, Heard, LauncherSaid, MemoryFree, Tick
from agent.core.state import AgentState
from agent.core.work import Work
from agent.inside import protocol


def may_pass(state: AgentState, event: Event, now_ms: int) -> bool:
    """Whether it may do to take in this event alone; `is_same` says whether it did."""
    if now_ms >= state.calm_until_ms or pool.has_stalled(state, now_ms):
        return False
    if isinstance(event, LauncherSaid):
        return isinstance(event.message, protocol.Pull)
    # A node that is out of time has its tasks killed, and again, until a read vouches for it.
    return _tells_the_time(event) and (not isinstance(event, BeatSeen) or state.may_start(now_ms))


def own(state: AgentState, event: Event) -> AgentState:
    """The state, with containers of its own as far as such an event may change them."""
    return replace(state, launchers=dict(state.launchers)) if isinstance(event, LauncherSaid) else state


def is_same(before: AgentState, after: AgentState) -> bool:
    """Whether the rules find the same after such an event was taken in."""
    short = pool.short_of_memory(before.free_bytes) == pool.short_of_memory(after.free_bytes)
    return short and before.promises is after.promises


def until_ms(before: AgentState, event: Event, work: Work) -> int:
    """Until when the rules, which all looked in this step, find nothing to do; -1: nobody knows."""
    if work.out or not _tells_the_time(event):
        return -1
    after = replace(
        work.state,
        deadline_ms=before.deadline_ms,
        free_bytes=before.free_bytes,
        heard_ms=before.heard_ms,
        read_ms=before.read_ms,
        calm_until_ms=before.calm_until_ms,
    )
    return work.wake_ms if after == before else -1


def _tells_the_time(event: Event) -> bool:
    return isinstance(event, Tick | Heard | BeatSeen | MemoryFree)
