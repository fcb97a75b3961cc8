"""Acting on verdicts: a suspected checkpoint is set aside, a cleared one comes back."""

from __future__ import annotations

from dataclasses import replace

from recovery.policy.suspects import BaseVerdict
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.control.decide.checkpoints.commit_list import changed
from supervisor.control.decide.plan import Action, short, unchanged
from supervisor.control.decide.snapshot import JobState, Versioned
from supervisor.control.decide.switch import Transition, turn


def act_on(job: JobState, verdict: BaseVerdict) -> list[Action]:
    """Set the base aside, if the verdict says so and its record does not yet."""
    return _set_aside(job, verdict.base, verdict.reason) if verdict.quarantine else []


def with_acquittal(job: JobState, failing: Action, verdict: BaseVerdict | None) -> Action:
    """The end of the job, and in the same transaction the return of the checkpoints that it clears."""
    cleared = _cleared(job, verdict)
    if not cleared:
        return failing
    names = ", ".join(str(each.value.ref) for each in cleared)
    compares, ops = changed(
        job,
        *(replace(each.value, state=CommitState.COMMITTED, reason="", suspected=False) for each in cleared),
    )
    return replace(
        failing,
        text=f"{failing.text}; {names} can be restored again",
        compares=(*failing.compares, *compares),
        ops=(*failing.ops, *ops),
    )


def base_after(job: JobState, verdict: BaseVerdict | None) -> CheckpointRef | None:
    """The newest checkpoint that the end of the job clears; None if none, or the generation has saved.

    It is to be the switch's base: what is newer than that of the last generation is off the lineage.
    """
    if any(ref.generation == job.switch.value.generation for ref in job.commits):
        return None
    return max((each.value.ref for each in _cleared(job, verdict)), default=None)


def _cleared(job: JobState, verdict: BaseVerdict | None) -> list[Versioned[CommitRecord]]:
    """One that is being collected may have lost files already, and stays out of reach for good (rule 9)."""
    held = [job.commits[ref] for ref in verdict.acquitted if ref in job.commits] if verdict else []
    return [each for each in held if each.value.suspected and each.value.state is CommitState.QUARANTINED]


def _set_aside(job: JobState, base: CheckpointRef, reason: str) -> list[Action]:
    held = job.commits.get(base)
    if held is None or held.value.state is not CommitState.COMMITTED:
        return []
    why = short(f"suspected: {reason}")
    marked = replace(held.value, state=CommitState.QUARANTINED, reason=why, suspected=True)
    compares, ops = changed(job, marked)
    text = f"checkpoint {base} is set aside: {reason}; the next start is from the one before it"
    # A switch that is closed for this base is opened, so that the next close takes another.
    reopened = turn(job.switch, Transition.SUSPECT, closing=None)
    return [
        Action(
            kind="checkpoint_quarantined",
            job=job.name,
            text=text,
            compares=(unchanged(job.switch), *compares),
            ops=(*ops, reopened),
            fields={"checkpoint": str(base), "detail": reason},
        )
    ]
