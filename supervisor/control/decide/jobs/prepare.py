"""Preparing a generation: a place for every task, a plan, and its inert assignments (rule 6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from recovery.policy.roles import SERVERS, RoleKind, kind_of
from supervisor.contract import keys
from supervisor.contract.addresses import bracketed, port_of
from supervisor.contract.boundaries import Absent, Compare, Op
from supervisor.contract.desired import Assignment, JobPhase, Placement, Plan
from supervisor.contract.ids import TaskId
from supervisor.contract.job.data import as_user
from supervisor.contract.job.serving import model_base
from supervisor.contract.job.spec import (
    CHIEF_ROLES,
    JobSpec,
    PsRecovery,
    RoleSpec,
    ServingSpec,
    Strategy,
    resized,
)
from supervisor.contract.secret import environment_of, secrets_of
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.checkpoints.cadence import cadence_of
from supervisor.control.decide.facts.claims import before_plans, claiming, planned_in_look
from supervisor.control.decide.facts.gpus import known_faults
from supervisor.control.decide.jobs import incidents
from supervisor.control.decide.nodes.offers import Offers, offers
from supervisor.control.decide.nodes.placement import Before, PlacementResult, place
from supervisor.control.decide.plan import Action, fitting, put, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot

MOST_PLANS = 64
"""Plans that one look makes. Each changes what the next one finds, and the applier has time for as many."""
_NETWORK = ("network", "")


PREPARE = "prepare"


def prepare(snap: Snapshot, job: JobState, need: Need) -> list[Action]:
    """The plan of the next generation, with as many assignments as one transaction holds."""
    spec = job.wanted
    if len(snap.once(planned_in_look)) >= MOST_PLANS:
        return []
    result = find_places(snap, job, need.avoid_nodes)
    if result.waiting_for:
        return []
    generation = max(job.switch.value.generation, job.record.value.generation_floor) + 1
    plan = Plan(
        job=job.name,
        plan_id=_new_id(snap, job),
        generation=generation,
        incident=need.incident,
        placements=tuple(
            Placement(task.role, task.index, offer.node, offer.incarnation, result.gpus[task.member])
            for task in spec.tasks()
            if task.member in result.placements
            for offer in (result.placements[task.member],)
        ),
        code=spec.code.digest if spec.code is not None else "",
    )
    claimed, claim = claiming(snap, spec, plan, plan.placements)
    # One whose outcome was unknown may have taken effect since, with other places: this look is the same one.
    fresh = Absent(keys.plan(job.name, plan.plan_id))
    compares: list[Compare] = [unchanged(job.switch), unchanged(job.intent), fresh, *claimed]
    ops: list[Op] = [put(keys.plan(job.name, plan.plan_id), plan), *claim]
    if need.firm:
        ops += incidents.opening(snap, job, need, generation, plan.plan_id)
    ops += fitting(_assignments(snap, job, need, plan), ops)
    nodes = ", ".join(sorted({placement.node for placement in plan.placements}))
    text = f"{need.detail}; generation {generation} begins to be prepared on {nodes} (rule {need.rule})"
    fields = {"plan": plan.plan_id, "cause": need.cause.value, "rule": need.rule, "incident": need.incident}
    return [Action(PREPARE, job.name, text, tuple(compares), tuple(ops), fields, places=plan)]


def _new_id(snap: Snapshot, job: JobState) -> str:
    """Never used before: by no leader, and for no other job that is planned in the same look."""
    return f"{snap.token.create_revision:08x}{snap.revision:08x}{job.record.create_revision:08x}"


def find_places(snap: Snapshot, job: JobState, avoid: tuple[str, ...] = ()) -> PlacementResult:
    """A node for every task of the job in the size that is wanted, or what it waits for.

    An elastic role has as many tasks as there is room for. Where the job runs and there is no room for the
    size that is wanted, the one that it has will do. A node to `avoid` is taken where no other does.
    """
    spec = job.record.value.spec
    found, before = offers(snap, job), job.once(_before)
    result = _most(job.wanted, found, before, avoid)
    if result.waiting_for and job.switch.value.phase is JobPhase.RUNNING and job.wanted is not spec:
        had = _place(spec, found, before, avoid)
        result = result if had.waiting_for else had
    return _with_blocked(snap, result)


def has_room(snap: Snapshot, job: JobState, spec: JobSpec) -> bool:
    """Whether the job finds places in this size."""
    return not _place(spec, offers(snap, job), job.once(_before), ()).waiting_for


def _most(spec: JobSpec, found: Offers, before: Before, avoid: tuple[str, ...]) -> PlacementResult:
    """Places for as many tasks of elastic roles as have room; found in few tries, as roles may be large."""
    result = _place(spec, found, before, avoid)
    sizes = _smaller(spec) if result.waiting_for else []
    low, high = 0, len(sizes)
    while low < high:
        middle = (low + high) // 2
        tried = _place(resized(spec, sizes[middle]), found, before, avoid)
        if tried.waiting_for:
            low = middle + 1
        else:
            result, high = tried, middle
    return result


def _smaller(spec: JobSpec) -> list[dict[str, int]]:
    """Smaller and smaller sizes: one task less of the largest elastic role each time, down to the least."""
    counts = {role.name: role.count for role in spec.roles if role.least}
    least = {role.name: role.least for role in spec.roles}
    found: list[dict[str, int]] = []
    while spare := [name for name, count in counts.items() if count > least[name]]:
        largest = max(spare, key=counts.__getitem__)
        counts = counts | {largest: counts[largest] - 1}
        found.append(counts)
    return found


def find_place(snap: Snapshot, job: JobState, member: str, avoid: tuple[str, ...] = ()) -> PlacementResult:
    """A node for one task beside all others of its job, which stay where they are; `avoid` as above."""
    spec, task = job.record.value.spec, job.task(member)
    role, before = spec.role(task.role), job.once(_before)
    alone = TaskId(spec.name, task.role, 0).member
    home = Before(
        {alone: before.nodes[member]} if member in before.nodes else {}, {alone: before.gpus.get(member, ())}
    )
    only = replace(spec, roles=(replace(role, count=1),))
    result = _place(only, offers(snap, job, member), home, avoid)
    if result.waiting_for:
        return _with_blocked(snap, result)
    return PlacementResult({member: result.placements[alone]}, {member: result.gpus[alone]})


def _before(job: JobState) -> Before:
    plan = job.plan_in_force
    placed = plan.value.placements if plan is not None else ()
    return Before({p.member: p.node for p in placed}, {p.member: p.gpus for p in placed})


def _with_blocked(snap: Snapshot, result: PlacementResult) -> PlacementResult:
    """With what keeps nodes from taking anything, where that may be why there is no room."""
    if not result.waiting_for or not (blocked := before_plans(snap).once(_blocked)):
        return result
    return replace(result, waiting_for="; ".join((result.waiting_for, *blocked)))


def _blocked(snap: Snapshot) -> tuple[str, ...]:
    return tuple(
        f"nothing new can start on {node}: {why}" for node in snap.nodes if (why := snap.blocked(node))
    )


def _place(spec: JobSpec, found: Offers, before: Before, avoid: tuple[str, ...]) -> PlacementResult:
    result = place(spec, found.without(avoid), before)
    return place(spec, found, before) if avoid and result.waiting_for else result


def _assignments(snap: Snapshot, job: JobState, need: Need, plan: Plan) -> Iterator[Op]:
    """The writes of those that are not there yet. A large plan has more than a transaction takes.

    They count the restart that they are for.
    """
    restarts = need.judgement.verdict.ledger.restarts
    for placement in plan.placements:
        if (plan.plan_id, placement.member) not in job.assignments:
            key = keys.assignment(placement.node, job.task(placement.member), plan.plan_id)
            order = assignment_of(snap, job, plan, placement)
            yield put(key, replace(order, restart_count=restarts))


def assignment_of(snap: Snapshot, job: JobState, plan: Plan, placement: Placement) -> Assignment:
    """The first assignment of a task of the plan."""
    record = job.record.value
    savers = (record.spec.saver.member, job.saver_in(plan))
    bare = bare_assignment(record.spec, record.uuid, plan, placement)
    return replace(
        bare,
        cadence=cadence_of(snap, job, plan) if placement.member in savers else None,
        checkpoint_uri=record.store_uri,
        data=as_user(record.spec.data, record.hdfs_user),
        restart_count=job.switch.value.ledger.restarts,
        avoid_ports=_ports_still_known(snap, job, placement.node),
        gpu_faults=known_faults(snap, placement.node, placement.gpus),
    )


def bare_assignment(spec: JobSpec, uuid: str, plan: Plan, placement: Placement) -> Assignment:
    """The part of an assignment that follows from the job and the plan alone."""
    role = spec.role(placement.role)
    return Assignment(
        job=spec.name,
        job_uuid=uuid,
        role=placement.role,
        index=placement.index,
        generation=plan.generation,
        plan_id=plan.plan_id,
        node=placement.node,
        incarnation=placement.incarnation,
        attempt=1,
        argv=role.command,
        workdir=spec.workdir,
        env=environment_of(spec, role),
        secrets=secrets_of(spec, role),
        preload=spec.preload,
        step_patterns=spec.progress.patterns,
        checkpoint_uri=spec.checkpoint.uri,
        checkpoint_patterns=spec.checkpoint.patterns,
        checkpoint_mode=spec.checkpoint.mode,
        checkpoint_verify=spec.checkpoint.verify,
        checkpoint_adopt=spec.checkpoint.adopt,
        follow=role.follow,
        binds_alone=role.outside or spec.strategy is Strategy.PLAIN,
        after=role.after,
        startup_ms=spec.limits.startup_ms,
        protocol=spec.protocol,
        code=spec.code,
        environment=spec.environment,
        data=spec.data,
        watch_nan=spec.progress.watch_nan,
        hold_on_failure_ms=spec.limits.hold_on_failure_ms,
        output_budget_bytes=spec.limits.output_budget_bytes,
        keep_work_ms=spec.limits.keep_work_ms,
        serves=serves(role),
        partial_ps=spec.restart.ps_recovery is PsRecovery.PARTIAL,
        serving=_serving_of(spec, placement),
        model_base=model_base(spec),
        yields=waits_for_saver(spec, placement.role, placement.index),
        container=spec.container,
        resources=role.resources,
        gpus=placement.gpus,
        gpus_shared=bool(placement.gpus) and role.resources.gpu_share > 1,
        templated=spec.templated,
        hears_moves=spec.strategy is Strategy.COORDINATOR and role.name in CHIEF_ROLES,
    )


def _serving_of(spec: JobSpec, placement: Placement) -> ServingSpec | None:
    exports = spec.serving is not None and (placement.role, placement.index) == (spec.serving.role, 0)
    return spec.serving if exports else None


def serves(role: RoleSpec) -> bool:
    """Whether its tasks may be killed at any time. An evaluator first judges the last checkpoint."""
    return role.name in SERVERS - {"evaluator"} if role.serves is None else role.serves


def waits_for_saver(spec: JobSpec, role: str, index: int) -> bool:
    """Whether at the start of a generation a task can only wait until the saver has set up the variables."""
    replicas = spec.strategy in (Strategy.ASYNC, Strategy.SYNC) and kind_of(spec, role) is RoleKind.TRAINING
    return replicas and TaskId(spec.name, role, index) != spec.saver


def unconfirmed_plans(job: JobState) -> frozenset[str]:
    """Plans of which an attempt may be alive: it knows the addresses of all of its ClusterSpec.

    Right after a flip agents have started what they have not reported yet.
    """
    switch = job.switch.value
    in_force = set() if switch.phase.ended else {switch.plan_id}
    reported = {held.value.plan_id for held in job.attempts.values() if not held.value.confirmed_dead}
    return frozenset(in_force | reported)


def _ports_still_known(snap: Snapshot, job: JobState, node: str) -> tuple[int, ...]:
    """Ports on `node` that an attempt, of this job or another, which is not confirmed dead may still connect
    to (rule 6).

    Agents of one machine share its address, and so its ports. On a docker network an address that is free
    again may be given to a container of any node: all ports.
    """
    picture, known = snap.nodes.get(node), before_plans(snap).once(_known_ports)
    own = picture.incarnation.value.host if picture is not None and picture.incarnation is not None else ""
    where = [("node", node), ("host", bracketed(own)), *([_NETWORK] if _is_networked(job) else [])]
    return tuple(sorted(set().union(*(known.get(each, ()) for each in where))))


def _known_ports(snap: Snapshot) -> dict[tuple[str, str], set[int]]:
    """The ports that are still known, by where they are: on a node, at a host, on a docker network."""
    found: dict[tuple[str, str], set[int]] = {}
    known = [(_is_networked(job), each) for job in snap.jobs.values() for each in job.once(_known_addresses)]
    known += [(True, each) for left in snap.aside.values() for each in left.addresses]
    for networked, (node, address) in known:
        host, colon, _ = address.rpartition(":")
        for where in (("node", node), ("host", host), *([_NETWORK] if networked else [])):
            if colon:
                found.setdefault(where, set()).add(port_of(address))
    return found


def _known_addresses(job: JobState) -> frozenset[tuple[str, str]]:
    """The addresses that attempts which may be alive may connect to: (node, or empty if unknown; address)."""
    unconfirmed = unconfirmed_plans(job)
    reported = {
        (held.value.node, held.value.address)
        for held in job.attempts.values()
        if held.value.plan_id in unconfirmed or held.value.exit is None
    }
    # Those of tasks that never came to start are known, too.
    told = {
        ("", address)
        for plan_id, spec in job.specs.items()
        if plan_id in unconfirmed
        for address in spec.value.known
    }
    return frozenset(reported | told)


def _is_networked(job: JobState) -> bool:
    container = job.record.value.spec.container
    return container is not None and container.networked


def missing_assignments(snap: Snapshot, job: JobState, need: Need, plan: Plan) -> list[Action]:
    """A large plan needs several transactions; a leader that died in between is made up for here."""
    ops = fitting(_assignments(snap, job, need, plan))
    return [Action("prepare_more", job.name, "", (unchanged(job.plans[plan.plan_id]),), ops)] if ops else []
