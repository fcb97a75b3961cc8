"""A mounted job that began from scratch although its generation has a base. Pure.

TensorFlow takes any failure to look for a checkpoint as "there is none". A launcher starts no program before
its mount shows a sign (`agent/inside/child/waiting.py`); a mount that dies in the second after that is
noticed here, by the first step. A commit of such a run must not become the base of the next generation.

A program that counts its steps anew at each start looks the same. It is restarted in vain once for a base,
and at most `MOST_TIMES` in a life of its job.
"""

from __future__ import annotations

from recovery.mount.layout import MOUNTED
from recovery.policy.rules import rule_of
from recovery.policy.suspects import BaseVerdict
from supervisor.contract.checkpoint import CommitState
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import Rule
from supervisor.contract.observed import TaskBeat
from supervisor.control.decide.facts.history import life_of
from supervisor.control.decide.snapshot import JobState

MOST_TIMES = 3


def missed(job: JobState, beat: TaskBeat | None) -> str:
    """The evidence in the saver's beat of a start from scratch, for people; empty without any."""
    base, spec = job.switch.value.base, job.record.value.spec
    if base is None or beat is None or not 0 <= beat.first_step < base.step:
        return ""
    if spec.checkpoint.mode != MOUNTED or rule_of(spec, Cause.BASE_MISSED) is Rule.IGNORE:
        return ""
    failures = (past.incident for past in life_of(job))
    before = [
        each
        for each in failures
        if each.cause is Cause.BASE_MISSED and each.from_generation < job.switch.value.generation
    ]
    if len(before) >= MOST_TIMES or any(each.base == base for each in before):
        return ""
    return f"its first step was {beat.first_step}, though it was to go on from {base}"


def spoilt(job: JobState) -> BaseVerdict | None:
    """A commit of the generation in force that must be set aside, as it was made before the base's step."""
    switch = job.switch.value
    base = switch.base
    wrong = [
        ref
        for ref, held in job.commits.items()
        if base is not None
        and ref.generation == switch.generation
        and ref.step < base.step
        and held.value.state is CommitState.COMMITTED
    ]
    if not wrong:
        return None
    return BaseVerdict(max(wrong), quarantine=True, reason=f"saved by a run that had not restored {base}")
