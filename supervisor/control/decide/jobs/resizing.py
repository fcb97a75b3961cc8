"""Another size of a job that runs: an operator's wish, or room for more tasks of an elastic role.

Workers of an asynchronous job join and leave it while the others run on (`joining`), and workers of a
coordinator join. Where they cannot, a resize is a restart like any other (prepare, close, flip), so that
every task is told the same cluster. It is prepared while the job trains, and flips right after a commit, so
that it costs no step; an operator's wish waits for one only so long. The flip writes the new counts into the
job's record: they are in force from then on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from recovery.policy.scope import JOINS
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import NotFound, UserError
from supervisor.contract.incident import Cause
from supervisor.contract.job.bounds import size_objection
from supervisor.contract.job.spec import JobSpec, Scope, resized
from supervisor.control.decide.assess import sizing
from supervisor.control.decide.assess.failures import judgement_of
from supervisor.control.decide.assess.need import UNTIL_COMMIT, Need
from supervisor.control.decide.assess.sizing import WORKER
from supervisor.control.decide.facts.history import incident_id
from supervisor.control.decide.jobs import joining
from supervisor.control.decide.jobs.prepare import find_places, has_room
from supervisor.control.decide.plan import Action, put, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot


def check_asked(spec: JobSpec, sizes: Mapping[str, int]) -> None:
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
    """The restart that brings a running job to its size; None where it has it, or has no room for it."""
    if job.switch.value.phase is not JobPhase.RUNNING:
        return None
    spec = job.record.value.spec
    if job.wanted is spec:
        return None
    asked = sizing.asked(job)
    if asked and not _is_live(snap, job) and has_room(snap, job, resized(spec, asked)):
        return _need(snap, job, "operator.scale", "an operator asked for", asked, spec.limits.save_grace_ms)
    room = {} if asked else _growth(snap, job)
    return _need(snap, job, "elastic.grow", "there is room for", room, UNTIL_COMMIT) if room else None


def undo(job: JobState, need: Need) -> list[Action]:
    """Take back a resize: the counts of before are the wish now; empty where they are, or another one came.

    A count that is wished for is also the most that an elastic role grows to: it grows no more by itself.
    """
    wanted, spec = job.wanted, job.record.value.spec
    back = {
        name: count
        for name, count in need.judgement.undone.items()
        if wanted.role(name).count != count
        and (spec.role(name).most or wanted.role(name).count == spec.role(name).count)
    }
    if not back:
        return []
    tried = {name: spec.role(name).count for name in back}
    text = f"{need.detail}; {joining.goes_back(job, back, tried)}"
    fields = {"incident": need.incident, "task": str(job.task(need.member))}
    op = put(job.intent.key, joining.having(job, back))
    compares = (unchanged(job.switch), unchanged(job.intent))
    return [Action(joining.UNDONE, job.name, text, compares, (op,), fields)]


def _is_live(snap: Snapshot, job: JobState) -> bool:
    """Whether the job comes closer to its size while all that stay run on."""
    now, wanted = sizing.counts(job)
    return not sizing.why_all_restart(job) and (wanted < now or joining.grows(snap, job))


def waiting_for(snap: Snapshot, job: JobState) -> str:
    """The room that a job waits for before it gets its new size; empty if it waits for none."""
    if job.switch.value.phase is not JobPhase.RUNNING:
        return ""
    asked = sizing.asked(job)
    if not asked or has_room(snap, job, resized(job.record.value.spec, asked)):
        return ""
    return f"room for {joining.told(asked)}, which an operator asked for; until then it trains on as it is"


def _need(
    snap: Snapshot, job: JobState, rule: str, what: str, sizes: dict[str, int], patience_ms: int
) -> Need:
    """It is not firm before its switch is closed: what fails meanwhile has a plan of its own."""
    return Need(
        incident=incident_id(job, f"g{job.switch.value.generation}-size"),
        cause=Cause.RESIZED,
        scope=Scope.ALL,
        rule=rule,
        judgement=judgement_of(job, Cause.RESIZED),
        firm=False,
        known_ms=snap.now_ms,
        detail="; ".join(filter(None, (f"{what} {joining.told(sizes)}", _why_all(job)))),
        patience_ms=patience_ms,
    )


def _why_all(job: JobState) -> str:
    """Why workers of an asynchronous strategy do not join and leave alone."""
    if job.record.value.spec.strategy not in JOINS:
        return ""
    why = sizing.why_all_restart(job) or "there is room only if other tasks move"
    return f"all restart: {why}"


def _growth(snap: Snapshot, job: JobState) -> dict[str, int]:
    """The counts of elastic roles for which there is room for more than run; empty where there is none.

    None is taken before the generation in force has saved, as it would be held until then; nor from a job
    that has no room at all. Workers do not grow where joins were lost again and again.
    """
    spec, generation = job.record.value.spec, job.switch.value.generation
    saved = any(ref.generation == generation for ref in job.commits)
    live = _is_live(snap, job) or sizing.is_taken_often(job)
    short = [role for role in spec.roles if role.count < role.most and not (live and role.name == WORKER)]
    if not saved or not short or joining.somebody_waits(snap, job) or joining.somebody_is_away(snap, job):
        return {}
    if not any(has_room(snap, job, resized(spec, {role.name: role.count + 1})) for role in short):
        return {}
    counts = Counter(job.task(member).role for member in find_places(snap, job).placements)
    return {role.name: counts[role.name] for role in short if counts[role.name] > role.count}
