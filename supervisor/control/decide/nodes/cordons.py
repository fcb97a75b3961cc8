"""Cordons: a node that is proven bad gets no new task for a while, and is then tried again."""

from __future__ import annotations

from recovery.policy.suspects import NodeVerdict
from supervisor.contract import keys
from supervisor.contract.boundaries import Absent, Compare, Delete
from supervisor.contract.desired import Cordon, Pardon
from supervisor.control.decide.plan import Action, put, short, unchanged, unchanged_or_absent
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned

COOLDOWN_MS = 600_000
"""How long a node that a failure keeps returning on gets no new task, of any job."""


def act_on(snap: Snapshot, job: JobState, verdict: NodeVerdict) -> list[Action]:
    """Keep new tasks of all jobs away from a node that is proven bad; empty where that is done already."""
    picture = snap.nodes.get(verdict.node)
    if not verdict.proven or picture is None or picture.cordon is not None:
        return []
    key, pardon = keys.cordon(verdict.node), keys.pardon(verdict.node)
    text = f"node {verdict.node} gets no new task for {COOLDOWN_MS // 1000} s: {verdict.reason}"
    return [
        Action(
            kind="node_cordoned",
            job=job.name,
            text=text,
            compares=(unchanged(job.switch), Absent(key), unchanged_or_absent(pardon, picture.pardon)),
            ops=(put(key, Cordon(verdict.node, short(verdict.reason), cooldown_ms=COOLDOWN_MS)),),
            fields={"node": verdict.node, "reason": verdict.reason},
        )
    ]


def lift(held: Versioned[Cordon], text: str, *besides: Compare) -> Action:
    """Let tasks go to a node again, of which nothing counts that was before. `besides`: what must hold."""
    node, reason = held.value.node, held.value.reason
    return Action(
        kind="node_uncordoned",
        job="",
        text=text,
        compares=(unchanged(held), *besides),
        ops=(Delete(held.key), put(keys.pardon(node), Pardon(node, reason))),
        fields={"node": node, "reason": reason},
    )
