"""Another size of a job that runs: an operator's wish, or room for more tasks of an elastic role.

A resize is a restart like any other (prepare, close, flip), so that every task is told the same cluster. It
is prepared while the job trains, and flips right after a commit, so that it costs no step. The flip writes
the new counts into the job's record: they are in force from then on.
"""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import NotFound, UserError
from supervisor.contract.incident import Cause
from supervisor.contract.job.bounds import size_objection
from supervisor.contract.job.spec import JobSpec, Scope
from supervisor.control.decide.assess.failures import asked_judgement
from supervisor.control.decide.assess.need import UNTIL_COMMIT, Need
from supervisor.control.decide.facts.history import incident_id
from supervisor.control.decide.jobs.prepare import find_places
from supervisor.control.decide.snapshot import JobState, Snapshot


def check_sizes_asked(spec: JobSpec, sizes: Mapping[str, int]) -> None:
    """Raise NotFound for a role that the job does not have, UserError for a size that it cannot have."""
    names = {role.name: role for role in spec.roles}
    for name, size in sizes.items():
        if name not in names:
            raise NotFound(f"job {spec.name} has no role {name!r}; it has {', '.join(names)}")
        if why := size_objection(spec, name):
            raise UserError(why)
        role = names[name]
        if size < max(role.least, 1):
            raise UserError(f"{name}={size}: at least {max(role.least, 1)} must run")
        if role.most and size > role.most:
            raise UserError(f"{name}={size}: the job file allows {role.most} at most (`max`)")


def find_resize(snap: Snapshot, job: JobState) -> Need | None:
    """The restart that brings a running job to its size; None where it has it, or has no room for more."""
    if job.switch.value.phase is not JobPhase.RUNNING:
        return None
    spec, wanted = job.record.value.spec, job.wanted
    if wanted is spec:
        return None
    asked = {
        role.name: role.count
        for role, now in zip(wanted.roles, spec.roles, strict=True)
        if role.count != now.count and (not role.most or role.count < now.count)
    }
    if asked:
        what, rule = "an operator asked for", "operator.scale"
        patience_ms = spec.limits.save_grace_ms
    else:
        asked = _growth(snap, job)
        what, rule, patience_ms = "there is room for", "elastic.grow", UNTIL_COMMIT
    if not asked:
        return None
    return Need(
        incident=incident_id(job, f"g{job.switch.value.generation}-size"),
        cause=Cause.OPERATOR,
        scope=Scope.ALL,
        rule=rule,
        judgement=asked_judgement(job, Cause.OPERATOR),
        known_ms=job.intent.seen_ms if patience_ms != UNTIL_COMMIT else snap.now_ms,
        detail=f"{what} {', '.join(f'{role}={count}' for role, count in asked.items())}",
        patience_ms=patience_ms,
    )


def _growth(snap: Snapshot, job: JobState) -> dict[str, int]:
    """The counts of elastic roles for which there is room for more than run; empty where there is none."""
    members = find_places(snap, job).placements
    counts = {role.name: 0 for role in job.record.value.spec.roles}
    for member in members:
        counts[job.task(member).role] += 1
    return {
        role.name: counts[role.name]
        for role in job.record.value.spec.roles
        if role.most and counts[role.name] > role.count
    }
