"""The work of this node for the leader beside running tasks: reports, staged bases, commits, clean
directories.
"""

from __future__ import annotations

from dataclasses import replace

from agent.core.desired import Wants
from agent.core.instructions import (
    Clean,
    Commit,
    Drain,
    FollowCommits,
    Report,
    Stage,
    StopCommit,
    StopFollowing,
    Write,
)
from agent.core.state import AgentState, Attempt, ReportLevel, Staging
from agent.core.step_context import Work
from supervisor.contract import keys
from supervisor.contract.desired import LAST_LOOK, Assignment, Closing, JobPhase, JobSwitch
from supervisor.contract.observed import AttemptReport, AttemptState, Staged, StageFailure

STAGE_AGAIN_MS = 1_000


def stage_bases(work: Work, wants: Wants) -> None:
    """Once per job, plan and base: bring it in; again when the outcome was unknown."""
    for plan_id, (assignment, closing) in wants.stage.items():
        known = work.state.staging.get(plan_id)
        again = known is not None and known.answered and 0 <= known.again_ms <= work.now_ms
        if known is None or known.base != closing.base or again:
            work.state.staging[plan_id] = Staging(assignment.job, plan_id, closing.base)
            work.emit(_stage(assignment, closing, work.state.boot_id))
    for plan_id in [each for each in work.state.staging if each not in wants.stage]:
        del work.state.staging[plan_id]


def staged(
    work: Work, staging: Staging, assignment: Assignment, failure: StageFailure | None, detail: str
) -> None:
    """Tell the leader what came of it."""
    state = work.state
    node, life = state.settings.node, state.life
    record = Staged(staging.job, staging.plan_id, node, life, staging.base, failure, detail, state.boot_id)
    key = keys.staged(staging.job, staging.plan_id, node)
    requires = keys.assignment(assignment.node, assignment.task, assignment.plan_id)
    work.emit(Write(f"staged/{staging.plan_id}", key, record, requires))


def commit_and_drain(work: Work, wants: Wants) -> None:
    """The saver's node commits while its generation is in force. Last looks are taken."""
    for job, assignment in wants.commit.items():
        mark = (assignment.job_uuid, assignment.generation, assignment.task.member)
        if work.state.commits.get(job) != mark:
            _stop_commit(work, job)
            work.state.commits[job] = mark
            work.emit(_commit(assignment, wants.switches[job]))
    for job in [each for each in work.state.commits if each not in wants.commit]:
        _stop_commit(work, job)
    for attempt in list(work.state.attempts.values()):
        if attempt.alive or attempt.draining:
            continue
        saves, aside = wants.commit.get(attempt.id.task.job), wants.aside.get(attempt.id.task)
        if saves is not None and _is_last(work, wants, attempt, saves):
            _look(work, wants, attempt)
        elif saves is None and aside is not None and _is_last(work, wants, attempt, aside):
            _look(work, wants, attempt, aside)
        elif not attempt.drained:
            # Another attempt follows it, or another task saves: nothing of this one is committed any more.
            work.put_attempt(replace(attempt, drained=True))


def _is_last(work: Work, wants: Wants, attempt: Attempt, assignment: Assignment) -> bool:
    """Whether nothing is started of this assignment's task after this attempt."""
    wanted = assignment.attempt_id
    if (assignment.job_uuid, wanted) == (attempt.job_uuid, attempt.id):
        return True
    known = work.state.attempts
    if wants.switches[assignment.job].phase is JobPhase.RUNNING or wanted in known:
        return False
    # The job ends between two attempts: the next one will not be started.
    ours = [each for each in known if (each.task, each.generation) == (wanted.task, wanted.generation)]
    return attempt.job_uuid == assignment.job_uuid and attempt.id == max(ours, default=None)


def _look(work: Work, wants: Wants, attempt: Attempt, aside: Assignment | None = None) -> None:
    switch = wants.switches[attempt.id.task.job]
    look = switch.look if aside is not None else min(switch.look, LAST_LOOK)
    if look <= attempt.look or attempt.telling is not ReportLevel.NOTHING:
        return
    # Its report is written again after the look, also if another task was the saver before.
    told = min(attempt.told, ReportLevel.LOOKED if attempt.look else ReportLevel.DEAD)
    work.put_attempt(replace(attempt, draining=True, drained=False, told=told))
    timeout_ms = work.state.settings.timing.commit_deadline_ms
    clean = attempt.end is not None and attempt.end.code == 0
    how = _commit(aside, switch) if aside is not None else None
    work.emit(Drain(attempt.id, attempt.job_uuid, look, timeout_ms, work.state.life, clean, how))


def _commit(assignment: Assignment, switch: JobSwitch) -> Commit:
    return Commit(
        assignment.job,
        assignment.job_uuid,
        assignment.generation,
        switch.base,
        assignment.checkpoint_uri,
        assignment.task,
        assignment.checkpoint_patterns,
        assignment.checkpoint_verify,
        assignment.checkpoint_mode,
        assignment.plan_id,
        assignment.checkpoint_adopt,
    )


def leave_checkpoints(work: Work) -> None:
    """Stop committing and following for a lost life: no later life may commit its saves either."""
    for job in list(work.state.commits):
        _stop_commit(work, job)
    for mark in work.state.following.values():
        work.emit(StopFollowing(*mark[:2]))
    work.state.following.clear()


def follow_commits(work: Work, wants: Wants) -> None:
    """Bring in the commits of another node's saver for a program that reads them."""
    following = work.state.following
    for job in list(following):
        wanted = wants.follow.get(job)
        if wanted is None or following[job] != _followed(wanted):
            work.emit(StopFollowing(*following.pop(job)[:2]))
    for job, assignment in wants.follow.items():
        if job not in following:
            uuid, generation, brings = following[job] = _followed(assignment)
            base = wants.switches[job].base
            how = (assignment.checkpoint_uri, assignment.checkpoint_mode, assignment.plan_id)
            work.emit(FollowCommits(job, uuid, generation, base, *how, brings=brings))


def _followed(assignment: Assignment) -> tuple[str, int, bool]:
    """A worker that has moved here reads no commit, but its generation has a directory."""
    return assignment.job_uuid, assignment.generation, assignment.follow


def report(work: Work) -> None:
    """One write at a time for each attempt, until etcd has its whole story."""
    for attempt in list(work.state.attempts.values()):
        owed = attempt.owed
        if owed <= attempt.told or attempt.telling is not ReportLevel.NOTHING:
            continue
        work.put_attempt(replace(attempt, telling=owed))
        ended_ms = attempt.end.ended_ms if attempt.end is not None else -1
        record = _record(work.state, attempt)
        work.emit(Report(int(owed), record, ended_ms, attempt.hold_ms, attempt.job_uuid))


def clean(work: Work, wants: Wants) -> None:
    """After a flip, and again when the job is over, old generation directories go."""
    _take_over(work, wants)
    state = work.state
    for assignment in wants.run.values():
        attempt = state.attempts.get(assignment.attempt_id)
        mark = (assignment.job_uuid, assignment.generation, False)
        if attempt is not None and attempt.pid and state.cleaned.get(assignment.job) != mark:
            state.cleaned[assignment.job] = mark
            work.emit(Clean(assignment.job, assignment.job_uuid, assignment.generation, ended=False))
    for job, (uuid, generation, ended) in list(state.cleaned.items()):
        switch = wants.switches.get(job)
        over = switch is None or switch.phase.ended or switch.job_uuid != uuid
        busy = any(each.id.task.job == job and not each.settled for each in state.attempts.values())
        if over and not busy:
            if not ended:
                work.emit(Clean(job, uuid, generation, ended=True))
            del state.cleaned[job]


def _take_over(work: Work, wants: Wants) -> None:
    """Have files of an earlier life cleaned with their job, as none of its tasks may come here again."""
    for job, switch in wants.switches.items():
        if switch.job_uuid in work.state.found:
            work.state = replace(work.state, found=work.state.found - {switch.job_uuid})
            work.state.cleaned.setdefault(job, (switch.job_uuid, switch.generation, False))


def _stage(assignment: Assignment, closing: Closing, boot_id: str) -> Stage:
    return Stage(
        assignment.job,
        assignment.job_uuid,
        assignment.plan_id,
        assignment.generation,
        closing.base,
        assignment.checkpoint_uri,
        assignment.checkpoint_mode,
        boot_id,
    )


def _stop_commit(work: Work, job: str) -> None:
    found = work.state.commits.pop(job, None)
    if found is not None:
        work.emit(StopCommit(job, *found[:2]))


def _record(state: AgentState, attempt: Attempt) -> AttemptReport:
    task, launcher = attempt.id.task, state.launchers.get(attempt.launcher_id)
    return AttemptReport(
        task.job,
        task.role,
        task.index,
        attempt.id.generation,
        attempt.id.number,
        attempt.plan_id,
        state.settings.node,
        state.life,
        AttemptState.RUNNING if attempt.end is None else AttemptState.EXITED,
        attempt.pid,
        attempt.start_ticks,
        attempt.address,
        attempt.end.as_exit() if attempt.end is not None else None,
        drained=attempt.drained and not attempt.alive,
        gpus=attempt.gpus,
        look=attempt.look,
        uncommitted=attempt.uncommitted,
        warm=attempt.warm,
        stays=attempt.stays,
        adds_workers=launcher is not None and launcher.adds_workers,
        drops_workers=launcher is not None and launcher.drops_workers,
    )
