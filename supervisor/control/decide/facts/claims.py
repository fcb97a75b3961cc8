"""The CPUs, memory and GPUs that tasks have, or may have, on the nodes, from etcd alone. Pure.

A task has a claim on its node by every plan that is in force or in preparation, and by every attempt that is
not confirmed dead, of whatever generation (rule 5). Claims are derived at each look, so that a new leader
finds the same ones; nothing has to be released. A job's own tasks make room on their node for its next
generation.

A transaction that makes claims compares and rewrites one record of the cluster, `gpu_claims`. So no plan is
made without knowledge of those before it, also when the answer to one of them was lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from supervisor.contract import keys
from supervisor.contract.boundaries import Compare, Op
from supervisor.contract.desired import Claims, JobPhase, Placement, Plan
from supervisor.contract.job.spec import JobSpec, Resources
from supervisor.contract.observed import AttemptReport
from supervisor.control.decide.facts.standing import untold_ms
from supervisor.control.decide.plan import put, unchanged_or_absent
from supervisor.control.decide.set_aside import Claim
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned


@dataclass(frozen=True, slots=True)
class Asking:
    """The job that looks for places: for all of its tasks, or for one `member`. An empty one is no job."""

    job: str = ""
    member: str = ""

    def gives_up(self, claim: Claim) -> bool:
        """Whether a claim makes room on its node for what is placed now."""
        return claim.job == self.job and self.member in ("", claim.member)


def all_claims(snap: Snapshot) -> tuple[Claim, ...]:
    """The claims of all jobs, one for each task and node."""
    found = tuple(claim for job in snap.jobs.values() for claim in claims_of(snap, job))
    found += tuple(claim for each in snap.aside.values() for claim in each.claims)
    return found


def claims_of(snap: Snapshot, job: JobState) -> tuple[Claim, ...]:
    """The claims of a job. Those of plans, nearly all, are found once for all snapshots of its records."""
    recorded = job.once(_of_plans)
    more = [*_of_attempts(snap, job), *_of_untold(snap, job)]
    return tuple((_merged(recorded, more) if more else recorded).values())


def by_node(claims: Iterable[Claim]) -> dict[str, list[Claim]]:
    """Claims by the node that they are on."""
    found: dict[str, list[Claim]] = {}
    for claim in claims:
        found.setdefault(claim.node, []).append(claim)
    return found


def by_gpu(claims: Iterable[Claim]) -> dict[str, list[Claim]]:
    """Claims by the GPUs that they name. Agents of one machine report the same ones."""
    found: dict[str, list[Claim]] = {}
    for claim in claims:
        for uuid in claim.gpus:
            found.setdefault(uuid, []).append(claim)
    return found


def planned(job: JobState) -> tuple[tuple[Claim, ...], ...]:
    """The claims of each plan of a job: the plan in force, and those in preparation."""
    return job.once(_planned)


def may_live(snap: Snapshot, report: AttemptReport) -> bool:
    """Whether an attempt is not known to be dead.

    An agent that did not take over from the one that ran it has killed all that was left (rule 12).
    """
    if report.confirmed_dead:
        return False
    picture = snap.nodes.get(report.node)
    if picture is None or picture.incarnation is None:
        return True
    return picture.acts_for(report.incarnation)


def claiming(
    snap: Snapshot, spec: JobSpec, plan: Plan, placements: Iterable[Placement]
) -> tuple[tuple[Compare, ...], tuple[Op, ...]]:
    """The compares and writes of a transaction that places tasks of a plan; empty if none needs resources."""
    if not any(_asks(spec.role(placement.role).resources) for placement in placements):
        return (), ()
    compare = unchanged_or_absent(keys.CLAIMS, snap.claims)
    return (compare,), (put(keys.CLAIMS, Claims(plan.plan_id)),)


class _PlannedJobs(dict[str, JobState]):
    """The jobs of a snapshot, some of which have a plan that the look has just made."""

    def __init__(self, jobs: Mapping[str, JobState], first: Snapshot, planned: frozenset[str]) -> None:
        super().__init__(jobs)
        self.first = first
        self.planned = planned


def with_plan(snap: Snapshot, plan: Plan) -> Snapshot:
    """The snapshot as it will be once the plan is made, for those that are placed in the same look."""
    job = snap.jobs[plan.job]
    held = Versioned(keys.plan(plan.job, plan.plan_id), plan, 0, 0, snap.now_ms, snap.now_ms)
    jobs = {**snap.jobs, plan.job: replace(job, plans={**job.plans, plan.plan_id: held})}
    return replace(snap, jobs=_PlannedJobs(jobs, before_plans(snap), snap.once(planned_in_look) | {plan.job}))


def planned_in_look(snap: Snapshot) -> frozenset[str]:
    """The jobs for which the look has made a plan so far. Asked as a fact, it lets jobs that wait rest."""
    return snap.jobs.planned if isinstance(snap.jobs, _PlannedJobs) else frozenset()


def before_plans(snap: Snapshot) -> Snapshot:
    """The snapshot before the plans of its look. Facts that these do not change are found once in it."""
    # Asked as a fact, so that a job which waits rests while other jobs change.
    if not snap.once(planned_in_look):
        return snap
    assert isinstance(snap.jobs, _PlannedJobs)
    return snap.jobs.first


def _asks(resources: Resources) -> bool:
    return bool(resources.cpus or resources.memory_bytes or resources.gpus)


def _merged(known: Mapping[tuple[str, str], Claim], claims: Iterable[Claim]) -> dict[tuple[str, str], Claim]:
    """One claim for each node and member, which names every GPU that one of them names."""
    found = dict(known)
    for claim in claims:
        other = found.setdefault((claim.node, claim.member), claim)
        more = tuple(uuid for uuid in claim.gpus if uuid not in other.gpus)
        if more:
            found[claim.node, claim.member] = replace(other, gpus=(*other.gpus, *more))
    return found


def _of_plans(job: JobState) -> dict[tuple[str, str], Claim]:
    return _merged({}, (claim for plan in planned(job) for claim in plan))


def _planned(job: JobState) -> tuple[tuple[Claim, ...], ...]:
    """The claims by plans. A job that has ended, or waits to start, claims by its attempts alone."""
    switch, roles = job.switch.value, _resources(job)
    if switch.phase.ended:
        return ()
    plans = [held.value for held in job.plans.values() if held.value.generation > switch.generation]
    if job.plan_in_force is not None and switch.phase is not JobPhase.WAITING:
        plans.append(job.plan_in_force.value)
    return tuple(tuple(_of_placement(job, each, roles) for each in plan.placements) for plan in plans)


def _of_placement(job: JobState, placement: Placement, roles: Mapping[str, Resources]) -> Claim:
    resources = roles.get(placement.role, Resources())
    return Claim(job.name, placement.node, placement.member, resources, placement.gpus)


def _of_attempts(snap: Snapshot, job: JobState) -> Iterator[Claim]:
    """The claims of attempts that may be alive and that no plan covers."""
    for report, claim in job.once(_beside_plans):
        if may_live(snap, report):
            yield claim


def _beside_plans(job: JobState) -> tuple[tuple[AttemptReport, Claim], ...]:
    """Attempts that may be alive as far as records tell, and have what no plan of the job claims."""
    roles, recorded = _resources(job), job.once(_of_plans)
    found: list[tuple[AttemptReport, Claim]] = []
    for held in job.attempts.values():
        report, member = held.value, held.value.attempt.task.member
        known = recorded.get((report.node, member))
        covered = known is not None and set(report.gpus) <= set(known.gpus)
        if not covered and not report.confirmed_dead:
            resources = roles.get(report.role, Resources())
            found.append((report, Claim(job.name, report.node, member, resources, report.gpus)))
    return tuple(found)


def _of_untold(snap: Snapshot, job: JobState) -> Iterator[Claim]:
    """The claims of tasks that may have begun just before their job ended, and are not reported yet."""
    for placement, claim in job.once(_unreported):
        if untold_ms(snap, job, placement):
            yield claim


def _unreported(job: JobState) -> tuple[tuple[Placement, Claim], ...]:
    """The tasks that were placed last of a job that has ended, and of which there is no report."""
    phase, plan = job.switch.value.phase, job.plan_in_force
    if plan is None or not (phase.ended or phase is JobPhase.WAITING):
        return ()
    roles = _resources(job)
    return tuple(
        (each, _of_placement(job, each, roles))
        for each in plan.value.placements
        if job.report(each, plan.value) is None
    )


def _resources(job: JobState) -> dict[str, Resources]:
    """Role name -> its resources. Claims of a role that the job no longer has count its GPUs alone."""
    return {role.name: role.resources for role in job.record.value.spec.roles}
