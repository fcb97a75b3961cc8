"""The brake (rule 6.15): when many nodes are lost at once, a switch that died is likelier than they.

The leader writes that it holds into the record of the cluster's pause, so that the next leader goes on
with it. It ends when the nodes are back, or an operator says `resume`.

A switch that comes back lets its nodes through one after another. So when enough of them are back, the leader
waits for the rest for a while, from the last change on: what it holds would move away from them at once.
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.contract import keys
from supervisor.contract.job.pause import Pause
from supervisor.control.decide.facts.hold import losses
from supervisor.control.decide.plan import Action, put, short, unchanged, unchanged_or_absent
from supervisor.control.decide.snapshot import Snapshot

HELD, RELEASED = "brake", "brake_released"
"""Kinds of the events."""
REST_MS = 30_000
"""The wait for the rest of the nodes, since the last of them came back or was lost."""


def decide(snap: Snapshot) -> list[Action]:
    """Begin the brake, bring its reason up to date, or end it. A pause by an operator is left as it is."""
    found, held = snap.once(losses), snap.pause
    if held is not None and held.value.in_force:
        if not held.value.brake:
            return []
        reason = short(found.reason)
        if found.nodes and held.value.reason != reason:
            changed = put(keys.PAUSE, replace(held.value, reason=reason))
            return [Action("brake_changed", "", "", (unchanged(held),), (changed,))]
        if found.too_many or (found.nodes and snap.now_ms - held.seen_ms < REST_MS):
            return []
        text = f"the brake is released: {len(found.nodes)} of {found.of} nodes are still lost"
        if not found.nodes:
            text = "the brake is released: the lost nodes are back"
        over = replace(held.value, in_force=False)
        return [Action(RELEASED, "", text, (unchanged(held),), (put(keys.PAUSE, over),))]
    if not found.too_many:
        return []
    reason = short(found.reason)
    passed = held.value.passed if held is not None else 0
    record = Pause(reason=reason, wall_ms=snap.wall_ms, brake=True, since=found.since, passed=passed)
    text = (
        f"the brake holds: {reason}; nothing is restarted or moved until they are back, or an operator runs "
        "`supervisorctl resume`"
    )
    fields = {"lost": str(len(found.nodes)), "of": str(found.of)}
    compares = (unchanged_or_absent(keys.PAUSE, held),)
    return [Action(HELD, "", text, compares, (put(keys.PAUSE, record),), fields)]
