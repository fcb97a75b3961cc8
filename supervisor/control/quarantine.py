"""Acting on a verdict about a checkpoint: a suspected one is set aside, a cleared one comes back."""

from __future__ import annotations

from dataclasses import replace

from recovery.decide.suspects import BaseVerdict
from supervisor.contract import keys
from supervisor.contract.checkpoint import CheckpointRef, CommitState
from supervisor.control.generation import head_unchanged, next_head
from supervisor.control.plan import Action, put, unchanged
from supervisor.control.snapshot import JobPicture


def act_on(job: JobPicture, verdict: BaseVerdict) -> list[Action]:
    """The next transaction that the verdict asks for; empty when the records already say so."""
    if verdict.quarantine:
        return _set_aside(job, verdict.base, verdict.reason)
    for ref in verdict.acquitted:
        actions = _bring_back(job, ref, verdict.reason)
        if actions:
            return actions
    return []


def _set_aside(job: JobPicture, base: CheckpointRef, reason: str) -> list[Action]:
    held = job.commits.get(base)
    if held is None or held.value.state is not CommitState.COMMITTED:
        return []
    why = f"suspected: {reason}"
    marked = replace(held.value, state=CommitState.QUARANTINED, reason=why, suspected=True)
    text = f"checkpoint {base} is set aside: {reason}; the one before it is tried"
    # A switch that is closed for this base is opened, so that the next close takes another.
    reopened = replace(job.switch.value, closing=None)
    return [
        Action(
            kind="checkpoint_quarantined",
            job=job.name,
            text=text,
            compares=(unchanged(job.switch), unchanged(held), head_unchanged(job)),
            ops=(
                put(held.key, marked),
                put(keys.head(job.name), next_head(job)),
                put(job.switch.key, reopened),
            ),
            fields={"checkpoint": str(base), "detail": reason},
        )
    ]


def _bring_back(job: JobPicture, ref: CheckpointRef, reason: str) -> list[Action]:
    held = job.commits.get(ref)
    if held is None or held.value.state is not CommitState.QUARANTINED or not held.value.suspected:
        return []
    cleared = replace(held.value, state=CommitState.COMMITTED, reason="", suspected=False)
    return [
        Action(
            kind="checkpoint_cleared",
            job=job.name,
            text=f"checkpoint {ref} can be restored again: {reason}",
            compares=(unchanged(job.switch), unchanged(held), head_unchanged(job)),
            ops=(put(held.key, cleared), put(keys.head(job.name), next_head(job))),
            fields={"checkpoint": str(ref)},
        )
    ]
