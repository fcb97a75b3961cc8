"""The base of a generation: chosen when the switch closes, staged on every node, or bad (rules 7, 8)."""

from __future__ import annotations

from dataclasses import replace

from recovery.formats.selection import Chosen, NoneLeft, candidates, select_base
from supervisor.contract import keys
from supervisor.contract.checkpoint import CheckpointRef, CommitState
from supervisor.contract.desired import Closing, JobPhase, Plan
from supervisor.contract.observed import Staged, StageFailure
from supervisor.control.decide.assess.need import Need
from supervisor.control.decide.checkpoints import commit_list
from supervisor.control.decide.facts import cluster_spec
from supervisor.control.decide.facts.history import asked_base
from supervisor.control.decide.jobs import incidents
from supervisor.control.decide.jobs.failing import fail
from supervisor.control.decide.plan import Action, put, short, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned
from supervisor.control.decide.switch import Transition, turn

UNREADABLE_MS = 600_000
"""How long an unreadable base is waited for before the job stops for the operator."""


def close(snap: Snapshot, job: JobState, plan: Versioned[Plan], need: Need) -> Action:
    """Choose the base, write the ClusterSpec, stop commits (rule 7). No base left: fail (rule 8)."""
    asked = asked_base(job)
    if asked is not None:
        held = job.commits.get(asked)
        if held is None or held.value.state is not CommitState.COMMITTED:
            state = held.value.state.value if held is not None else "gone"
            return _decline(snap, job, need, f"checkpoint {asked} is {state}")
        return _close_with(snap, job, plan, need, asked)
    switch = job.switch.value
    chosen = select_base((held.value for held in job.commits.values()), switch)
    if isinstance(chosen, NoneLeft):
        bad = (
            f"; the newest, {chosen.newest_bad.ref}, {chosen.newest_bad.reason}" if chosen.newest_bad else ""
        )
        return fail(snap, job, need, f"no checkpoint is left that can be restored{bad}")
    base = chosen.record.ref if isinstance(chosen, Chosen) else None
    return _close_with(snap, job, plan, need, base)


def _close_with(
    snap: Snapshot, job: JobState, plan: Versioned[Plan], need: Need, base: CheckpointRef | None
) -> Action:
    prepared = {
        placement.member: job.prepared[(plan.value.plan_id, placement.member)].value
        for placement in plan.value.placements
    }
    spec = cluster_spec.build(job.planned(plan.value), plan.value, prepared)
    asked = asked_base(job) is not None
    closing = Closing(plan.value.plan_id, base, asked)
    return Action(
        kind="close",
        job=job.name,
        text=f"generation {plan.value.generation} is prepared; its base is {base or 'none: from scratch'}",
        compares=(
            unchanged(job.switch),
            unchanged(plan),
            commit_list.head_unchanged(job),
        ),
        ops=(
            put(keys.cluster_spec(job.name, plan.value.plan_id), spec),
            turn(job.switch, Transition.CLOSE, closing=closing),
            *incidents.at_close(snap, job, need, plan.value),
        ),
        fields={"plan": plan.value.plan_id, "base": str(base)},
    )


def stage(
    snap: Snapshot, job: JobState, plan: Versioned[Plan], need: Need, closing: Closing
) -> list[Action] | None:
    """The actions on the base of a closed switch; empty while nodes stage it, None once every node has it."""
    asked = asked_base(job)
    if asked is not None and closing.base != asked:
        return [_reopen(job, f"an operator asks for checkpoint {asked}")]
    if asked is None and closing.asked:
        return [_reopen(job, "an operator asks for a restart from the newest checkpoint")]
    staged = _staged_of(snap, job, plan.value, closing.base)
    bad = [held for held in staged if held.value.failure is StageFailure.BAD]
    if bad and closing.base is not None:
        return [_quarantine(job, closing.base, bad[0].value.detail)]
    unknown = [held for held in staged if held.value.failure is StageFailure.UNKNOWN]
    if unknown:
        # Not from before the switch named this very base: a node's answer is one key for all bases.
        since_ms = max(job.switch.seen_ms, min(held.created_ms for held in unknown))
        return _without_base(snap, job, need, unknown[0].value, snap.now_ms - since_ms)
    ready = {held.value.node for held in staged if held.value.failure is None}
    if {placement.node for placement in plan.value.placements} - ready:
        return []
    return None


def _reopen(job: JobState, why: str) -> Action:
    """Commits may go on; the plan stays, and is closed for anew."""
    return Action(
        kind="reopened",
        job=job.name,
        text=f"another base is chosen: {why}",
        compares=(unchanged(job.switch),),
        ops=(turn(job.switch, Transition.REOPEN, closing=None),),
    )


def _decline(snap: Snapshot, job: JobState, need: Need, why: str) -> Action:
    """An operator's restart from a checkpoint that cannot be restored: what runs goes on as it is."""
    if job.switch.value.phase is not JobPhase.RUNNING:
        return fail(snap, job, need, why)
    serial = job.intent.value.restart_serial
    answered = turn(job.switch, Transition.DECLINE, closing=None, restart_serial=serial)
    text = f"{need.detail}; it is declined: {why}"
    return Action(
        kind="restart_declined",
        job=job.name,
        text=text,
        compares=(unchanged(job.switch), unchanged(job.intent)),
        ops=(answered, *incidents.failed(snap, job, need, text)),
        fields={"incident": need.incident},
    )


def _without_base(snap: Snapshot, job: JobState, need: Need, staged: Staged, waited_ms: int) -> list[Action]:
    """The base cannot be read: unknown is not bad (rule 8). Wait; then what the job says, or the operator."""
    switch = job.switch.value
    older = [
        record.ref
        for record in candidates((held.value for held in job.commits.values()), switch)
        if staged.base is not None and record.ref < staged.base
    ]
    asked = asked_base(job) is not None
    # With nothing to fall back to it is no use to be quick.
    quick = older or asked
    fallback_ms = job.record.value.spec.checkpoint.fallback_after_ms if quick else None
    if waited_ms < (UNREADABLE_MS if fallback_ms is None else fallback_ms):
        return []
    what = f"checkpoint {staged.base}" if staged.base is not None else "its checkpoint directory"
    reason = f"{what} could not be read for {waited_ms} ms: {staged.detail}"
    if asked:
        return [_decline(snap, job, need, reason)]
    if fallback_ms is None or switch.closing is None:
        return [fail(snap, job, need, f"{reason}; mend the store, then `supervisorctl start {job.name}`")]
    closing = replace(switch.closing, base=older[0])
    return [
        Action(
            kind="fallback",
            job=job.name,
            text=f"{reason}; the job's fallback_after allows the one before, {older[0]}",
            compares=(unchanged(job.switch), commit_list.head_unchanged(job)),
            ops=(turn(job.switch, Transition.FALL_BACK, closing=closing),),
        )
    ]


def _staged_of(
    snap: Snapshot, job: JobState, plan: Plan, base: CheckpointRef | None
) -> list[Versioned[Staged]]:
    return [
        held
        for (plan_id, _), held in job.staged.items()
        if plan_id == plan.plan_id and held.value.base == base and not _booted_since(snap, held.value)
    ]


def _booted_since(snap: Snapshot, staged: Staged) -> bool:
    picture = snap.nodes.get(staged.node)
    held = picture.incarnation if picture is not None else None
    return held is not None and held.value.boot_id != staged.boot_id


def unstaged_reason(snap: Snapshot, job: JobState, plan: Plan, closing: Closing) -> str:
    """The nodes that staging waits for, with the reason of a failure; for `status`, empty without any."""
    staged = _staged_of(snap, job, plan, closing.base)
    unknown = [held.value for held in staged if held.value.failure is StageFailure.UNKNOWN]
    if unknown:
        return f"{unknown[0].node} to read {closing.base}: {unknown[0].detail}"
    ready = {held.value.node for held in staged}
    nodes = sorted({placement.node for placement in plan.placements} - ready)
    return f"{', '.join(nodes)} to stage {closing.base}" if nodes else ""


def _quarantine(job: JobState, base: CheckpointRef, detail: str) -> Action:
    """Take a bad base out of use and reopen the switch: the one before is next (rule 8)."""
    reason = short(f"failed verification: {detail}")
    marked = replace(job.commits[base].value, state=CommitState.QUARANTINED, reason=reason)
    compares, ops = commit_list.changed(job, marked)
    return Action(
        kind="checkpoint_quarantined",
        job=job.name,
        text=f"checkpoint {base} is bad and will not be restored: {detail}",
        compares=(unchanged(job.switch), *compares),
        ops=(*ops, turn(job.switch, Transition.REOPEN, closing=None)),
        fields={"checkpoint": str(base), "detail": detail},
    )
