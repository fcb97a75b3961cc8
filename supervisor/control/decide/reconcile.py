"""One snapshot in, the next transactions out. Level-triggered: the same snapshot, the same answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from supervisor.contract.containment import contained
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import Scope
from supervisor.control.decide import invariants, parking
from supervisor.control.decide.assess import progress
from supervisor.control.decide.assess.assess import Assessments
from supervisor.control.decide.assess.assessment import Assessment
from supervisor.control.decide.assess.completion import CompletionState
from supervisor.control.decide.assess.failures import find_need, lost_alone
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.checkpoints import advice, notices, quarantine, saving, seen_saver
from supervisor.control.decide.facts import claims, cluster_time, delays, hold
from supervisor.control.decide.goodput import ledger
from supervisor.control.decide.jobs import (
    base_checkpoint,
    code_gc,
    deletion,
    failing,
    generation,
    incidents,
    joining,
    lifecycle,
    moves,
    resizing,
    restart,
    spares,
)
from supervisor.control.decide.jobs.prepare import find_places
from supervisor.control.decide.nodes import brake, cordons, gpu_faults, node_loss, power
from supervisor.control.decide.plan import Action, Decision
from supervisor.control.decide.rest.rests import Rests, Visit
from supervisor.control.decide.snapshot import JobState, NodeState, Snapshot

_PATIENT = frozenset({Cause.DRAINED, Cause.GPU})
"""Causes for which a task keeps running until another node has room, even for days."""


def reconcile(
    snap: Snapshot, assessments: Assessments | None = None, rests: Rests | None = None
) -> tuple[Decision, ...]:
    """The decisions of one look, at most one step per job: the next look sees its outcome.

    Each job is assessed once, in `assessments` where the caller reads them too. `rests` tells what need not
    be asked again since the look before, in which they were made.

    A job or node whose rules raise is set aside, and all others are decided on without it. If it is the only
    one, it is parked.

    Raises InvariantBroken if an invariant among all jobs is violated, and errors that are about no job and no
    node.
    """
    met: list[parking.Met] = []
    left, known = snap, assessments or Assessments(snap)
    while True:
        errors: list[Exception] = []
        with contained(errors.append):
            parked = parking.park_alone(snap, met)
            return (*parked, *parking.tell(left, parked), *_look(left, known, rests or Rests()))
        one, left = parking.leave(left, errors[0])
        known = Assessments(left)
        met.append(one)


def _look(snap: Snapshot, assessments: Assessments, rests: Rests) -> list[Decision]:
    rests.begin(snap)
    cluster, nodes, jobs = rests.cluster(), rests.nodes(), rests.jobs()
    decisions = [each for visit in cluster for each in visit.found(_about_cluster(visit.of(snap)))]
    decisions += _about_nodes(snap, nodes)
    decisions += _about_nodes_of_jobs(snap, jobs)
    # The job of the highest priority is placed first, and of equal ones the one that was submitted first.
    visited: list[Visit[JobState]] = []
    while jobs:
        visited.append(visit := jobs.pop(0))
        job = visit.subject
        found = visit.found(_about_job(visit.of(snap), job, assessments))
        decisions += found
        for plan in [each.places for each in found if isinstance(each, Action) and each.places is not None]:
            snap = claims.with_plan(snap, plan)
            jobs = rests.disturbed(jobs, snap, job)
        rests.suspect(visit, suspected=assessments.suspects(job))
        visit.reads.hold(ledger.redone_in_ms(snap, job))
    rests.keep(cluster, nodes, visited)
    return decisions


def _about_cluster(snap: Snapshot) -> list[Decision]:
    invariants.check(snap)
    return [
        *code_gc.tidy(snap),
        *incidents.forget_events(snap),
        *cluster_time.tick(snap),
        *brake.decide(snap),
        *deletion.sweep(snap),
    ]


def _about_nodes(snap: Snapshot, nodes: Sequence[Visit[NodeState]]) -> list[Decision]:
    decisions: list[Decision] = []
    for visit in nodes:
        seen, picture = visit.of(snap), visit.subject
        decisions += visit.found(node_loss.decide(seen, picture))
        decisions += visit.found(power.decide(seen, picture))
        decisions += visit.found(gpu_faults.decide(seen, picture))
    return decisions


def _about_nodes_of_jobs(snap: Snapshot, jobs: Sequence[Visit[JobState]]) -> list[Decision]:
    """Decisions about nodes that follow from the records of jobs: one for each node."""
    vanished: dict[str, Action] = {}
    disobedient: dict[str, Action] = {}
    for visit in jobs:
        seen, job = visit.of(snap), visit.subject
        found = node_loss.vanished(seen, job), node_loss.disobedient(seen, job)
        for known, marks in zip((vanished, disobedient), found, strict=True):
            visit.found(marks.values())
            known.update(marks)
    return [*vanished.values(), *disobedient.values()]


def _about_job(snap: Snapshot, job: JobState, assessments: Assessments) -> list[Decision]:
    if deletion.due(job):
        # In this order: a job whose rules raise can still be deleted.
        return list[Decision](deletion.decide(snap, job) or incidents.follow_up(snap, job))
    if job.switch.value.parked is not None:
        return _count_parked(snap, job)
    invariants.check_job(snap, job)
    if step := _step(snap, job, assessments):
        return [*step, *ledger.keep(snap, job, None, acts=True)]
    return _housekeeping(snap, job, assessments.of(job, snap))


def _count_parked(snap: Snapshot, job: JobState) -> list[Decision]:
    """The time of a parked job is stopped time. It is parked for one error, and no other one is told."""
    counted: list[Decision] = []
    with contained(lambda _error: None):
        counted += ledger.keep(snap, job, None)
    return counted


def _step(snap: Snapshot, job: JobState, assessments: Assessments) -> list[Action]:
    """The actions for the job as a whole: start, stop, restart, finish."""
    phase = job.switch.value.phase
    if phase.ended:
        return _start(snap, job) if lifecycle.wants_start(job) else deletion.expire(snap, job)
    if phase in (JobPhase.FINISHING, JobPhase.STOPPING):
        return lifecycle.end(snap, job)
    if lifecycle.wants_stop(job):
        return [lifecycle.stop(job)]
    found = assessments.of(job, snap)
    done = found.completion
    if done is not None and done.state is CompletionState.DONE:
        return [lifecycle.finish(job, done)]
    need = None if done is not None and done.chief_done else _need(snap, job, found)
    if found.held:
        return _hold(snap, job, found, need)
    return [hold.unless_paused(snap, job, each) for each in _answer(snap, job, found, need)]


def _hold(snap: Snapshot, job: JobState, found: Assessment, need: Need | None) -> list[Action]:
    """Nothing is restarted or moved (rule 6.14). A plan is given up: its switch may be closed for commits."""
    if job.next_plan is not None:
        return [generation.abandon(job, job.next_plan, found.held)]
    wanted = (*([need] if need is not None else []), *_lost(snap, job, found))
    return incidents.tell_held(job, wanted, found.held) if wanted else incidents.lapse(snap, job)


def _need(snap: Snapshot, job: JobState, found: Assessment) -> Need | None:
    """The restart that the job needs; another size comes when nothing has failed.

    A task that waits for a place does so alone: what fails meanwhile is answered.
    """
    need, there = found.need, found.members
    while need is not None and need.scope is Scope.TASK and moves.waiting_for(snap, job, (need,)):
        there = tuple(member for member in there if member.task.member != need.member)
        other = find_need(snap, job, there)
        if other is None or other.member not in {member.task.member for member in there}:
            break
        need = other
    return need or resizing.find_resize(snap, job)


def _start(snap: Snapshot, job: JobState) -> list[Action]:
    """Neither a plan nor an incident of what has ended is to be the next run's."""
    left = [*incidents.follow_up(snap, job), *job.once(generation.settle)]
    return left or [lifecycle.begin_again(job)]


def _answer(snap: Snapshot, job: JobState, found: Assessment, need: Need | None) -> list[Action]:
    plan = job.next_plan
    if need is None:
        if plan is not None:
            return [generation.abandon(job, plan, "the reason for it has passed")]
        return _move(snap, job, found) or _resize(snap, job, found) or incidents.lapse(snap, job)
    if need.patience_ms and (moved := _move(snap, job, found)):
        return moved  # another size waits for a commit; what is lost need not
    judgement = need.judgement
    if undone := resizing.undo(job, need):
        return undone
    judged = quarantine.act_on(job, judgement.bad_base) if judgement.bad_base is not None else []
    if judgement.bad_node is not None:
        judged += cordons.act_on(snap, job, judgement.bad_node)
    if judged:
        return judged[:1]
    if not judgement.verdict.allowed:
        cleared = quarantine.base_after(job, judgement.bad_base)
        failed = failing.fail(snap, job, need, judgement.verdict.reason, cleared)
        return [quarantine.with_acquittal(job, failed, judgement.bad_base)]
    if need.scope is Scope.TASK and job.switch.value.closing is None:
        steps = restart.in_place(snap, job, need)
    else:
        # Once the switch is closed the flip is milliseconds away, and restarts a task that failed meanwhile.
        steps = generation.advance(snap, job, need)
    if not steps and plan is None and (need.scope is Scope.TASK or need.cause in _PATIENT):
        # A worker that leaves may make the room that another needs to move.
        return _move(snap, job, found) or (_resize(snap, job, found) if found.leaving else [])
    return steps


def _move(snap: Snapshot, job: JobState, found: Assessment) -> list[Action]:
    """The move of the first task that is lost with its node and may move alone, and finds a place."""
    made = (moves.move(snap, job, each) for each in _lost(snap, job, found))
    return next((each for each in made if each), [])


def _resize(snap: Snapshot, job: JobState, found: Assessment) -> list[Action]:
    """The next worker that joins or leaves; none once training is over."""
    over = found.completion is not None and found.completion.chief_done
    return [] if over else joining.resize(snap, job, found)


def _lost(snap: Snapshot, job: JobState, found: Assessment) -> Iterator[Need]:
    """The needs of lost tasks that move alone. A worker moves no more once training is over."""
    over = found.completion is not None and found.completion.chief_done
    for need in lost_alone(snap, job, found.members):
        if not over or job.record.value.spec.role(job.task(need.member).role).follow:
            yield need


def _housekeeping(snap: Snapshot, job: JobState, found: Assessment) -> list[Decision]:
    stacks = progress.stacks(job)
    if stacks:
        return [*stacks, *ledger.keep(snap, job, found.need)]
    return [
        *incidents.follow_up(snap, job),
        *job.once(moves.publish),
        *job.once(generation.settle),
        *lifecycle.tidy(snap, job),
        *job.once(failing.release),
        *job.once(failing.warn),
        *spares.keep(snap, job, found.members),
        *progress.suspicions(snap, job, found),
        *seen_saver.follow(snap, job),
        *saving.tell(snap, job),
        *advice.tell(snap, job),
        *job.once(delays.tell),
        *notices.tell(snap, job),
        *progress.clock(snap, job),
        *ledger.keep(snap, job, found.need),
    ]


def waiting_for(snap: Snapshot, job: JobState, found: Assessment) -> str:
    """The event that a job which is not running waits for, for `status`; empty for none."""
    if deletion.due(job):
        return deletion.waiting_for(snap, job)
    if job.switch.value.phase in (JobPhase.FINISHING, JobPhase.STOPPING):
        left = saving.uncommitted(snap, job)
        return f"the commit of its last checkpoint, {left}" if left else ""
    if job.switch.value.phase not in (JobPhase.WAITING, JobPhase.RUNNING):
        return ""
    need = _need(snap, job, found)
    if found.held:
        return found.held if need is not None or any(_lost(snap, job, found)) else ""
    if need is None or need.scope is Scope.TASK:
        needs = (*_lost(snap, job, found), *([need] if need is not None else []))
        lost = moves.waiting_for(snap, job, needs)
        return lost or delays.in_force(job) or resizing.waiting_for(snap, job)
    plan = job.next_plan
    if plan is None:
        return find_places(snap, job).waiting_for
    closing = job.switch.value.closing
    if closing is not None and closing.plan_id == plan.value.plan_id:
        return base_checkpoint.unstaged_reason(snap, job, plan.value, closing)
    return generation.waiting_for(snap, job, plan.value, need)
