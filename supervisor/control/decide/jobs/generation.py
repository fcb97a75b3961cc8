"""Bringing a new generation into force: prepare, close, flip (rules 6 and 7).

Each step is one fenced transaction whose outcome the next look at etcd shows, so that any leader can go on
from where another stopped:

    prepare   plan and assignments are written; agents warm launchers and hold ports
    close     the ClusterSpec is written and the switch closed for commits; the base is chosen
    flip      every node has staged and verified the base; the switch names the new generation
    settle    what the old generation and lost plans have left is removed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from recovery.policy.budget import charge
from recovery.policy.history import ASKED
from recovery.policy.scope import scope_of
from supervisor.contract.boundaries import CreatedAt, Op
from supervisor.contract.desired import Closing, JobPhase, Ledger, LostMark, Plan
from supervisor.contract.incident import Cause, Outcome
from supervisor.contract.job.spec import Scope, Strategy
from supervisor.contract.observed import AttemptReport, ExitReason, Prepared
from supervisor.control.decide.assess.need import UNTIL_COMMIT, Need
from supervisor.control.decide.assess.progress import ran_ms
from supervisor.control.decide.checkpoints.commit_list import head_unchanged
from supervisor.control.decide.facts import delays, promises
from supervisor.control.decide.facts.gpus import FAULTY, QUARANTINED, find_gpu, unfit
from supervisor.control.decide.facts.history import asked_base, newest_commit
from supervisor.control.decide.facts.standing import (
    Standing,
    lost_since_ms,
    not_dead,
    standing,
    suspected_placements,
)
from supervisor.control.decide.jobs import base_checkpoint, incidents
from supervisor.control.decide.jobs.failing import fail
from supervisor.control.decide.jobs.prepare import missing_assignments, prepare, unconfirmed_plans
from supervisor.control.decide.nodes.node_loss import by_marks, taking
from supervisor.control.decide.plan import OPS_PER_TRANSACTION, Action, delete_all, put, still, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned
from supervisor.control.decide.switch import Transition, turn

FROM_RULE = "operator.from"


def advance(snap: Snapshot, job: JobState, need: Need) -> list[Action]:
    """The next step towards the generation that `need` asks for; empty while something is awaited."""
    need = _as_asked(job, need)
    plan = job.next_plan
    if plan is None:
        return prepare(snap, job, need)
    # Before any refusal: what its node lacks is no failed start.
    if why := _unfit(snap, plan.value):
        return [abandon(job, plan, why)]
    refused = _refused(job, plan.value)
    if refused is not None:
        return _give_up(snap, job, plan, need, refused)
    if _is_of_another_size(job, plan.value, need):
        return [abandon(job, plan, "another size of the job is wanted")]
    if _is_for_another(job, plan.value, need):
        return [abandon(job, plan, f"it was prepared for another reason; now {need.detail}")]
    missing = missing_assignments(snap, job, need, plan.value)
    if missing:
        return missing
    if waiting_for(snap, job, plan.value, need):
        return []
    closing = job.switch.value.closing
    if closing is None or closing.plan_id != plan.value.plan_id:
        return [base_checkpoint.close(snap, job, plan, need)]
    staging = base_checkpoint.stage(snap, job, plan, need, closing)
    return [_flip(snap, job, plan, need, closing)] if staging is None else staging


def _is_for_another(job: JobState, plan: Plan, need: Need) -> bool:
    """Whether its incident cannot tell of this recovery: it was never opened, or is over since."""
    held = job.incidents.get(plan.incident)
    if need.incident == plan.incident:
        return False
    return need.firm if held is None else held.value.outcome is not Outcome.OPEN


def _is_of_another_size(job: JobState, plan: Plan, need: Need) -> bool:
    """Whether the plan has not the size that is wanted; that of what runs will do where something failed."""
    failed = job.switch.value.phase is JobPhase.RUNNING and not need.patience_ms
    if failed and job.planned(plan) is job.record.value.spec:
        return False
    wanted = {role.name: role for role in job.wanted.roles}
    planned = {role.name: role.count for role in job.planned(plan).roles}
    return any(not (role.least or role.count) <= planned[name] <= role.count for name, role in wanted.items())


def _as_asked(job: JobState, need: Need) -> Need:
    asked = asked_base(job)
    if asked is None or need.cause is not Cause.OPERATOR:
        return need
    return replace(need, rule=FROM_RULE, detail=f"an operator asked for a restart from checkpoint {asked}")


def waiting_for(snap: Snapshot, job: JobState, plan: Plan, need: Need) -> str:
    """The event that the plan awaits before its switch may close, for `status`; empty for none."""
    refused = _refused(job, plan)
    if refused is not None:
        return f"another try; {refusal(refused.value)}"
    prepared = {p.member: job.prepared.get((plan.plan_id, p.member)) for p in plan.placements}
    missing = [member for member, held in prepared.items() if held is None or held.value.delay]
    if missing:
        why = delays.explain(job, plan)
        return f"{', '.join(missing)} to be prepared{f'; {why}' if why else ''}"
    addresses = Counter(held.value.address for held in prepared.values() if held is not None)
    shared = [address for address, users in addresses.items() if users > 1]
    if shared:
        # One's container is gone, docker has given its address to another, and its agent is about to say so.
        return f"an address of its own for each task, where {shared[0]} is given twice"
    silent = sorted({p.node for p in suspected_placements(snap, job)})
    if silent:
        return _held_back(snap, silent)
    left_ms = need.due_ms - snap.now_ms
    if left_ms > 0:
        return f"a back-off of {left_ms} ms"
    return _next_commit(snap, job, plan, need)


def _held_back(snap: Snapshot, nodes: list[str]) -> str:
    left_ms = max(promises.held_ms(snap, node) for node in nodes)
    if left_ms:
        what = f"that {', '.join(nodes)} are left alone"
        return f"the end of this supervisor's promise {what}, for {left_ms} ms more"
    return f"D to pass since {', '.join(nodes)} was suspected"


def _next_commit(snap: Snapshot, job: JobState, plan: Plan, need: Need) -> str:
    """The event until which tasks train on though the next generation is ready (rule 6); empty for none.

    If all tasks are well, or a lost node took no more than workers with it, a flip right after a commit costs
    the others no steps.
    """
    if need.patience_ms:
        return _patient(snap, job, plan, need)
    spec, switch, in_force = job.record.value.spec, job.switch.value, job.plan_in_force
    left_ms = need.known_ms + spec.restart.degraded_limit_ms - snap.now_ms
    lenient = spec.strategy in (Strategy.ASYNC, Strategy.COORDINATOR) and need.cause is Cause.NODE_LOST
    if left_ms <= 0 or not lenient or in_force is None or switch.closing is not None:
        return ""
    ready_ms = [job.prepared[(plan.plan_id, placement.member)].seen_ms for placement in plan.placements]
    for placement in in_force.value.placements:
        report = job.report(placement, in_force.value)
        if report is not None and standing(snap, placement) is Standing.ALIVE and _goes_on(report.value):
            continue
        if scope_of(spec, job.task(placement.member), job.saver)[0] is not Scope.TASK:
            return ""
        ready_ms.append(lost_since_ms(snap, placement))
    if _committed_since(job, max(ready_ms)):
        return ""
    return f"the next commit, or {left_ms} ms more of restart.degraded_limit"


def _patient(snap: Snapshot, job: JobState, plan: Plan, need: Need) -> str:
    ready_ms = max(job.prepared[(plan.plan_id, each.member)].seen_ms for each in plan.placements)
    left_ms = ready_ms + need.patience_ms - snap.now_ms
    if left_ms <= 0 or job.switch.value.closing is not None or _committed_since(job, ready_ms):
        return ""
    return f"the next commit{f', or {left_ms} ms more' if need.patience_ms != UNTIL_COMMIT else ''}"


def _committed_since(job: JobState, since_ms: int) -> bool:
    generation = job.switch.value.generation
    committed = (held for ref, held in job.commits.items() if ref.generation == generation)
    return any(held.created_ms > since_ms for held in committed)


def _goes_on(report: AttemptReport) -> bool:
    return report.exit is None or (report.exit.reason is ExitReason.EXIT and report.exit.code == 0)


def _refused(job: JobState, plan: Plan) -> Versioned[Prepared] | None:
    """A task that its agent could not prepare."""
    answers = [held for (plan_id, _), held in job.prepared.items() if plan_id == plan.plan_id]
    refusal = next((held for held in answers if held.value.failure), None)
    return refusal or _apart([held for held in answers if held.value.address])


def _apart(ready: list[Versioned[Prepared]]) -> Versioned[Prepared] | None:
    """A task that another one of its job cannot reach: a docker network of this name ends at each machine."""
    for first, other in pairwise(ready):
        if first.value.segment != other.value.segment:
            why = (
                f"its docker network ends at its machine, and {first.value.role}:{first.value.index} on "
                f"{first.value.node} is in another one; use a network that spans machines, or one machine"
            )
            return replace(other, value=replace(other.value, failure=why))
    return None


def _give_up(
    snap: Snapshot, job: JobState, plan: Versioned[Plan], need: Need, refused: Versioned[Prepared]
) -> list[Action]:
    """Give up a plan with a task that cannot be prepared. It is charged like a failed start.

    Missing code is not charged: nodes ask for it again until it is back. A refusal that every node would
    repeat ends the job at once.
    """
    why, policy = refusal(refused.value), job.record.value.spec.restart
    if need.patience_ms:
        # The job runs well: a resize that cannot be prepared does not end it.
        over = snap.now_ms >= refused.seen_ms + policy.backoff_max_ms
        return [abandon(job, plan, why)] if over else []
    if refused.value.hopeless:
        return [fail(snap, job, need, why)]
    if refused.value.no_code:
        over = snap.now_ms >= refused.seen_ms + policy.backoff_max_ms
        return [abandon(job, plan, why)] if over else []
    verdict = charge(job.switch.value.ledger, Cause.START_FAILED, newest_commit(job), policy)
    if not verdict.allowed:
        judgement = replace(need.judgement, verdict=verdict)
        return [fail(snap, job, replace(need, judgement=judgement), f"{why}; {verdict.reason}")]
    pause_ms = max(verdict.backoff_ms, policy.backoff_ms)
    if snap.now_ms < refused.seen_ms + pause_ms:
        return []
    return [abandon(job, plan, why, verdict.ledger)]


def refusal(value: Prepared) -> str:
    """Why a task cannot be prepared."""
    return f"{value.role}:{value.index} cannot be prepared on {value.node}: {value.failure}"


def _unfit(snap: Snapshot, plan: Plan) -> str:
    """Why a plan can no longer come into force; empty if it can."""
    for placement in plan.placements:
        if standing(snap, placement) is not Standing.ALIVE:
            return f"{placement.member} was to go to {placement.node}, which is silent now"
        picture = snap.nodes[placement.node]
        if picture.cordon is not None and picture.cordon.value.drain:
            return f"{placement.member} was to go to {placement.node}, which is drained now"
        if why := snap.blocked(placement.node):
            return f"{placement.member} was to go to {placement.node}, where nothing new can start: {why}"
        gpus = (find_gpu(picture, uuid) for uuid in placement.gpus)
        bad = [gpu.index for gpu in gpus if gpu and unfit(snap, picture, gpu) in (QUARANTINED, FAULTY)]
        if bad:
            return f"{placement.member} was to get GPU {bad[0]} of {placement.node}, which is faulty now"
    return ""


def abandon(job: JobState, plan: Versioned[Plan], why: str, ledger: Ledger | None = None) -> Action:
    """Remove a plan that lost, and reopen the switch if it was closed for it."""
    switch = job.switch.value
    plan_id = plan.value.plan_id
    closing = None if switch.closing is not None and switch.closing.plan_id == plan_id else switch.closing
    charged = ledger or switch.ledger
    ops: list[Op] = []
    if (closing, charged) != (switch.closing, switch.ledger):
        ops.append(turn(job.switch, Transition.ABANDON, closing=closing, ledger=charged))
    ops += _leavings(job, plan_id)
    return Action(
        kind="plan_abandoned",
        job=job.name,
        text=f"generation {plan.value.generation} is not brought into force by this plan: {why}",
        compares=(unchanged(job.switch), unchanged(plan)),
        ops=tuple(ops[:OPS_PER_TRANSACTION]),
        fields={"plan": plan_id, "why": why},
    )


def settle(job: JobState) -> list[Action]:
    """Remove the records of plans that can never come into force, and those whose plan is gone."""
    switch = job.switch.value
    over = {
        plan.value.plan_id
        for plan in job.plans.values()
        # What was last in force stays: its placements say whose tasks may have to be waited for (rule 3).
        if plan.value.plan_id != switch.plan_id
        and (switch.phase.ended or plan.value.generation <= switch.generation)
    }
    written = {plan_id for plan_id, _ in (*job.assignments, *job.prepared, *job.staged)}
    orphaned = (written | (set(job.specs) - unconfirmed_plans(job))) - set(job.plans)
    return [
        Action("plan_removed", job.name, "", (unchanged(job.switch),), _leavings(job, plan_id))
        for plan_id in sorted(over | orphaned)
    ]


def _leavings(job: JobState, plan_id: str) -> tuple[Op, ...]:
    """Deletes of all that a plan has written. The plan goes first: `settle` sweeps what has none.

    The addresses stay while somebody who may be alive knows them: no new task may have them (rule 6).
    """
    specs = job.specs.items() if plan_id not in unconfirmed_plans(job) else ()
    ops = [
        *delete_all(held for plan, held in job.plans.items() if plan == plan_id),
        *delete_all(held for plan, held in specs if plan == plan_id),
        *delete_all(held for (plan, _), held in job.assignments.items() if plan == plan_id),
        *delete_all(held for (plan, _), held in job.prepared.items() if plan == plan_id),
        *delete_all(held for (plan, _), held in job.staged.items() if plan == plan_id),
    ]
    return tuple(ops[:OPS_PER_TRANSACTION])


def _flip(snap: Snapshot, job: JobState, plan: Versioned[Plan], need: Need, closing: Closing) -> Action:
    """The one transaction that brings the generation into force."""
    compared, made_final = by_marks(snap, _marks_used(snap, job))
    ledger = _charged(job, plan.value, need)
    if asked_base(job) is not None:
        # Progress is measured from there: what was reached beyond it is given up on purpose.
        ledger = replace(ledger, streak=0, progress=closing.base)
    told = job.incidents.get(plan.value.incident)
    sized = replace(job.record.value, spec=job.planned(plan.value), ran_ms=ran_ms(snap, job))
    resizes = sized.spec != job.record.value.spec
    flipped = turn(
        job.switch,
        Transition.FLIP,
        phase=JobPhase.RUNNING,
        generation=plan.value.generation,
        plan_id=plan.value.plan_id,
        base=closing.base,
        closing=None,
        incident=plan.value.incident,
        ledger=ledger,
        restart_serial=job.intent.value.restart_serial,
        reason="",
        cold=need.judgement.cold,
        edition=0,
        saver=job.saver_in(plan.value),
        look=0,
        uncommitted="",
        blameless=not (need.cause.program_fault or (told is not None and told.value.cause.program_fault)),
    )
    return Action(
        kind="flip",
        job=job.name,
        text=(
            f"generation {plan.value.generation} is in force, from "
            f"{f'checkpoint {closing.base}' if closing.base else 'scratch'} ({need.rule})"
        ),
        compares=(
            unchanged(job.switch),
            unchanged(plan),
            head_unchanged(job),
            *_still_registered(snap, plan.value),
            *compared,
            *([unchanged(job.record)] if resizes else []),
        ),
        ops=(
            flipped,
            *([put(job.record.key, sized)] if resizes else []),
            *made_final,
            *incidents.at_flip(snap, job, plan.value.incident),
        ),
        fields={"plan": plan.value.plan_id, "base": str(closing.base), "incident": plan.value.incident},
        taking=taking(snap, job, not_dead(job)),
    )


def _charged(job: JobState, plan: Plan, need: Need) -> Ledger:
    """The job's ledger after this restart: charged is what its record tells of, whatever has failed since.

    Not where that is paid for, as it restarted one task before, also with another restart in between; nor
    where the budget would not allow it any more. A wish of an operator's ends the count, even where the
    record is of something else.
    """
    held = job.incidents.get(plan.incident)
    paid = plan.incident in (need.incident, job.switch.value.incident)
    if held is None or paid or need.cause in ASKED:
        return need.judgement.verdict.ledger
    if held.value.attempt:
        return job.switch.value.ledger
    policy = job.record.value.spec.restart
    verdict = charge(job.switch.value.ledger, held.value.cause, newest_commit(job), policy)
    return verdict.ledger if verdict.allowed else need.judgement.verdict.ledger


def _still_registered(snap: Snapshot, plan: Plan) -> Iterable[CreatedAt]:
    """The flip starts tasks on these nodes: their agents must be registered as it happens."""
    for node in sorted({placement.node for placement in plan.placements}):
        held = snap.nodes[node].incarnation
        assert held is not None
        yield still(held)


def _marks_used(snap: Snapshot, job: JobState) -> list[Versioned[LostMark]]:
    """The marks that allow this flip to replace tasks; it compares their revisions and makes them final."""
    plan, alive = job.plan_in_force, not_dead(job)
    marks: dict[str, Versioned[LostMark]] = {}
    for placement in plan.value.placements if plan is not None else ():
        if placement not in alive and standing(snap, placement) is not Standing.LOST:
            continue  # its node is only suspected, and may appeal
        mark = snap.mark_of(placement.node, placement.incarnation)
        if mark is not None:
            marks[mark.key] = mark
    return list(marks.values())
