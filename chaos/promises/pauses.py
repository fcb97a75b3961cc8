"""While a pause is in force, or most nodes are lost, nothing is restarted or moved (rules 6.14 and 6.15)."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.history.history import History
from chaos.history.past import Moment, State, record
from chaos.history.records import PAUSE, Assignment, Pause, Switch
from chaos.promises.violation import Broken

LEAST, SHARE = 3, 0.5
"""The brake holds for more nodes than this share of all, and for so many at least."""
WINDOW_MS = 200_000
"""Marks that are older than this may no longer count for the brake."""
SEEN_D = 0.5
"""The part of D after which a leader has surely seen a mark. Most moves come at D, by two clocks."""


def a_pause_holds(history: History) -> Iterator[Broken]:
    """The leader starts nothing during a pause, nor while more than half of the nodes are lost."""
    for moment, state in history.walk():
        for job, what in _started(moment, state) if moment.live else ():
            pause, intent = state.get(Pause, PAUSE), state.intent(job)
            own = intent.paused if intent is not None else None
            for held in (pause, own):
                if held is not None and held.in_force:
                    yield Broken(f"{what}, during a pause: {held.reason}", moment.at_ms)
            lost = _lost(state, moment, pause.passed if pause is not None else 0)
            if len(lost) >= LEAST and len(lost) > SHARE * (len(lost) + len(_there(state))):
                yield Broken(f"{what}, while {', '.join(lost)} are lost", moment.at_ms)


def _started(moment: Moment, state: State) -> Iterator[tuple[str, str]]:
    """The jobs of which something is started, and what."""
    for line in moment.put("switches/"):
        after = record(Switch, line.key, line.value)
        before = state.switch(after.job)
        if before is not None and after.generation > before.generation and after.phase == "running":
            yield after.job, f"generation {after.generation} of {after.job} comes into force"
    for line in moment.put("assignments/"):
        order = record(Assignment, line.key, line.value)
        switch, old = state.switch(order.job), state.get(Assignment, line.key)
        if switch is None or switch.plan_id != order.plan_id:
            continue
        if order.attempt > (old.attempt if old is not None else 0):
            yield order.job, f"{order.attempt_id} is started on {order.node}"


def _there(state: State) -> list[str]:
    """The nodes with an agent that has no lost mark."""
    nodes = (key.partition("/")[2] for key in state.held if key.startswith("nodes/"))
    return [node for node in nodes if not _is_marked(state, node)]


def _is_marked(state: State, node: str) -> bool:
    holder = state.incarnation(node)
    return holder is not None and state.mark(node, holder.incarnation) is not None


def _lost(state: State, moment: Moment, passed: int) -> list[str]:
    """The nodes that a leader surely knows to be lost, and surely counts."""
    found = set()
    for key, held in state.held.items():
        if not key.startswith("lost/") or held.created <= passed or held.after_ms < 0:
            continue
        _, node, incarnation = key.split("/")
        holder = state.incarnation(node)
        is_new = SEEN_D * state.d_ms < moment.after_ms - held.at_ms < WINDOW_MS
        if is_new and (holder is None or holder.incarnation == incarnation):
            found.add(node)
    return sorted(node for node in found if f"cordons/{node}" not in state.held)
