"""Cordons: all that sets, changes and lifts them.

A node that has a cordon gets no new task. An operator sets one, or the leader: for a failure that keeps
returning, an agent that does not obey, a GPU that asks for it, a fence device that was wrong, or an error
that is about the node. The record of a cordon stays when it is lifted: it says up to which revision of etcd
no failure is held against the node.
"""

from __future__ import annotations

from dataclasses import replace

from recovery.policy.suspects import NodeVerdict
from supervisor.contract import keys
from supervisor.contract.boundaries import Compare, Op
from supervisor.contract.desired import Cordon
from supervisor.control.decide.plan import (
    Action,
    delete_all,
    put,
    short,
    unchanged,
    unchanged_or_absent,
)
from supervisor.control.decide.snapshot import JobState, NodeState, Snapshot, Versioned

COOLDOWN_MS = 600_000
"""How long a node that a failure keeps returning on gets no new task, of any job."""

LIFTED_MS = 1
"""The cooldown of a cordon that was lifted. A leader of the release before takes its record for a cordon: it
lifts that one at its first look."""

BY_AN_OPERATOR = "an operator asked for it"

Write = tuple[tuple[Compare, ...], tuple[Op, ...]]
"""The compares and the writes of a transaction."""


def act_on(snap: Snapshot, job: JobState, verdict: NodeVerdict) -> list[Action]:
    """Keep new tasks of all jobs away from a node that is proven bad; empty where that is done already."""
    picture = snap.nodes.get(verdict.node)
    if not verdict.proven or picture is None or picture.cordon is not None:
        return []
    text = f"node {verdict.node} gets no new task for {COOLDOWN_MS // 1000} s: {verdict.reason}"
    cordon = Cordon(verdict.node, short(verdict.reason), cooldown_ms=COOLDOWN_MS)
    compares, ops = _written(picture, cordon)
    fields = {"node": verdict.node, "reason": verdict.reason}
    return [Action("node_cordoned", job.name, text, (unchanged(job.switch), *compares), ops, fields)]


def for_disobedience(picture: NodeState, reason: str, incarnation: str) -> Write:
    """Cordon the node of a disobedient agent until that agent restarts. An operator's cordon stays."""
    if picture.cordon is not None and picture.cordon.value.by_operator:
        return (unchanged(picture.cordon),), ()
    return _written(picture, Cordon(picture.node, reason, incarnation))


def for_gpu(picture: NodeState, reason: str) -> Write:
    """Drain the node until an operator lifts that. A cordon that it has already keeps its reason."""
    held = picture.cordon
    before = Cordon(picture.node, reason) if held is None else replace(held.value, cooldown_ms=0)
    return _written(picture, replace(before, drain=True))


def for_wrong_device(picture: NodeState, reason: str) -> Write:
    """Cordon a node with a wrong fence device, until an operator lifts it.

    A present cordon stops the device too.
    """
    if picture.cordon is not None:
        return (unchanged(picture.cordon),), ()
    return _written(picture, Cordon(picture.node, reason))


def for_error(picture: NodeState, reason: str, place: str) -> Write:
    """Cordon a node until an operator lifts it: an error about it was raised at `place`."""
    return _written(picture, Cordon(picture.node, short(reason), place=place))


def for_operator(picture: NodeState, reason: str, *, drain: bool) -> Cordon:
    """The cordon of an operator. It takes the place of one of the leader's, and an operator alone lifts it.

    One that is there already lends its reason where none is given. A drain goes on.
    """
    before = picture.cordon.value if picture.cordon is not None else None
    told = reason or (before.reason if before is not None else BY_AN_OPERATOR)
    return Cordon(picture.node, told, drain=drain or (before is not None and before.drain))


def has(picture: NodeState, cordon: Cordon) -> bool:
    """Whether the node has that very cordon."""
    held = picture.cordon
    return held is not None and replace(held.value, lifted=cordon.lifted) == cordon


def impose(picture: NodeState, cordon: Cordon, *, drain_follows: bool = False) -> Action:
    """Give a node the cordon of an operator. No event tells of one that a drain follows: the drain's does."""
    node, reason = cordon.node, cordon.reason
    kind, word = ("node_drained", "drained") if cordon.drain else ("node_cordoned", "cordoned")
    text = "" if drain_follows else f"node {node} is {word}: {reason}"
    compares, ops = _written(picture, cordon)
    return Action(kind, "", text, compares, ops, {"node": node, "reason": reason})


def lift(snap: Snapshot, held: Versioned[Cordon], text: str, *besides: Compare) -> Action:
    """Let tasks go to a node again. Failures that etcd knew of by now are no longer held against it.

    `besides`: what must hold, too.
    """
    (node,), reason = keys.parse(held.key), held.value.reason
    over = Cordon(node, reason, cooldown_ms=LIFTED_MS, lifted=snap.revision, in_force=False)
    compares, ops = _written(snap.nodes[node], over)
    fields = {"node": node, "reason": reason}
    return Action("node_uncordoned", "", text, (*compares, *besides), ops, fields)


def lift_what_is_over(snap: Snapshot, picture: NodeState) -> list[Action]:
    """Lift a cordon whose time is over, or whose disobedient agent has a successor that took nothing over."""
    cordon = picture.cordon
    if cordon is None:
        return _taken_over(picture)
    if 0 < cordon.value.cooldown_ms <= snap.now_ms - cordon.seen_ms:
        # From when this leader first saw it: one that takes over waits again.
        text = f"node {picture.node} is tried again: {cordon.value.cooldown_ms} ms have passed"
        return [lift(snap, cordon, text)]
    if not cordon.value.incarnation or picture.incarnation is None:
        return []
    if picture.acts_for(cordon.value.incarnation):
        return []
    text = f"node {picture.node} is back: its new agent has killed all that the old one left"
    return [lift(snap, cordon, text, unchanged(picture.incarnation))]


def _taken_over(picture: NodeState) -> list[Action]:
    """Write the pardon of an earlier release as the record of a cordon that was lifted."""
    if picture.pardon is None:
        return []
    reason = picture.pardon.value.reason
    compares, ops = _written(picture, Cordon(picture.node, reason, cooldown_ms=LIFTED_MS, in_force=False))
    return [Action("node_uncordoned", "", "", compares, ops)]


def _written(picture: NodeState, cordon: Cordon) -> Write:
    """The write of a cordon in place of the node's present one. Earlier lifts stay in force."""
    key, pardon = keys.cordon(picture.node), picture.pardon
    compares = (
        unchanged_or_absent(key, picture.cordon_record),
        unchanged_or_absent(keys.pardon(picture.node), pardon),
    )
    record = replace(cordon, lifted=max(cordon.lifted, picture.lifted))
    return compares, (put(key, record), *(delete_all((pardon,)) if pardon is not None else ()))
