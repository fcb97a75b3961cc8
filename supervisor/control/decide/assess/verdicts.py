"""The verdict on a failure, from the job's whole history: its rule, its budget and the suspects."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from recovery.formats.selection import candidates
from recovery.policy.budget import Verdict, charge
from recovery.policy.history import Past, Present, Tally, tally
from recovery.policy.logs import error_of_the_code, left_lock
from recovery.policy.repeats import first_error, raised_on
from recovery.policy.rules import rule_of
from recovery.policy.suspects import BaseVerdict, NodeVerdict, suspect_base, suspect_node, try_elsewhere
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Cause, Raised
from supervisor.contract.job.spec import Rule, Scope
from supervisor.contract.observed import ExitReason
from supervisor.control.decide.facts.history import (
    has_stepped,
    has_trained,
    life_of,
    newest_commit,
    sizes_before,
    steps_are_read,
)
from supervisor.control.decide.snapshot import JobState, Snapshot


@dataclass(frozen=True, slots=True)
class Suspect:
    """The failure to judge. `scope` is how much it restarts if nobody is suspected.

    `member` is empty for a lost node. `stepped`: the failed attempt has made a step; `known_ms` as in `Need`.
    `began`: the revision of etcd when the attempt began; None where no attempt has failed, 0 where one lost
    its launcher before it ran. `error`: the error of its code that ended it. `warm`: it was started warm, or
    may have been. `code`: its exit code; 0 for any other end. `found_lock`: it found the lockfile of a cache.
    """

    incident: str
    cause: Cause
    scope: Scope
    member: str
    node: str
    stepped: bool
    known_ms: int
    began: int | None = None
    error: Raised | None = None
    warm: bool = True
    code: int = 0
    found_lock: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome.

    Attributes:
        cause: that of the accused; USER_ERROR where the program fails of its own code, as `cause_why` says;
            LEFT_LOCK where it found what a killed attempt had left.
        verdict: the budget's word; its ledger is what the restart writes.
        away: the task is to go to another node, for the reason `away_why` (may be empty).
        bad_node: the node that the cause has returned on.
        bad_base: what the failures say of the checkpoint that the generation in force started from.
        cold: the program raised an error of its code, which the next start is to repeat without a warm start;
            or its start hung.
        undone: it failed before its first step after a resize, which is taken back: the counts of before.
    """

    cause: Cause
    verdict: Verdict
    away: bool = False
    away_why: str = ""
    bad_node: NodeVerdict | None = None
    bad_base: BaseVerdict | None = None
    cause_why: str = ""
    cold: bool = False
    undone: dict[str, int] = field(default_factory=dict)


def judge(snap: Snapshot, job: JobState, accused: Suspect) -> Judgement:
    """Judge a failure that nobody asked for."""
    life = life_of(job, without=accused.incident)
    present = _present(snap, job, accused)
    task = job.task(accused.member) if accused.member else None
    if task is None:
        rule = rule_of(job.record.value.spec, accused.cause)
        # A warm start may hang of the fork alone: the next one is cold.
        hung = accused.cause is Cause.NEVER_READY and not present.stepped
        return Judgement(accused.cause, _verdict(job, life, present, rule, None), cold=hung)
    if undone := _undone(snap, job, accused, task):
        verdict = _verdict(job, life, replace(present, cause=Cause.RESIZED), Rule.RESTART, None)
        counts = {role.name: role.count for role in job.record.value.spec.roles}
        now = ", ".join(f"{role}={counts[role]}" for role in undone)
        why = f"it failed before its first step with {now}, and is not charged"
        return Judgement(Cause.RESIZED, verdict, cause_why=why, undone=undone)
    elsewhere = any(name != accused.node and snap.usable(node) for name, node in snap.nodes.items())
    error = _error(snap, job, accused, present)
    seen_on = frozenset[str]()
    if error is not None:
        startup_ms = job.record.value.spec.limits.startup_ms
        seen_on = raised_on(error, life, present, _ended_beside(job, accused), startup_ms)
    cause_why = ""
    everywhere = not elsewhere or bool(seen_on - {accused.node})
    if error is not None and seen_on and everywhere and _is_cold(job, accused):
        where = ", ".join(sorted(seen_on))
        cause_why = f"the same {error.name} at {error.frames[-1]} as on {where}, before any step"
        present = replace(present, cause=Cause.USER_ERROR)
    elif _found_a_lock_left(life, accused):
        present = replace(present, cause=Cause.LEFT_LOCK)
    rule = rule_of(job.record.value.spec, present.cause, task, job.saver, accused.code)
    plan = job.plan_in_force
    homes = [p.node for p in plan.value.placements] if plan is not None else []
    read = steps_are_read(snap, job)
    bad_node = _bad_node(snap, life, present, homes, accused.began or None) if elsewhere else None
    tried = try_elsewhere(life, present, steps_are_read=read)
    # The first time only where it costs the other tasks nothing.
    new = error is not None and not everywhere
    tried = tried or (new and (accused.scope is Scope.ALL or bool(seen_on)))
    away = elsewhere and (rule is Rule.ELSEWHERE or bad_node is not None or tried)
    bad_base = suspect_base(
        life,
        present,
        older=_others(job, present.base),
        suspected=frozenset(ref for ref, commit in job.commits.items() if commit.value.suspected),
        steps_are_read=read,
        elsewhere=elsewhere,
    )
    return Judgement(
        cause=present.cause,
        cause_why=cause_why,
        cold=error is not None,
        verdict=_verdict(job, life, present, rule, bad_base),
        away=away,
        away_why=f": {bad_node.reason}" if bad_node is not None else "",
        bad_node=bad_node,
        bad_base=bad_base,
    )


def _found_a_lock_left(life: tuple[Past, ...], accused: Suspect) -> bool:
    """Whether a restart before left the lock of a cache, for the first time: it ended who held the lock."""
    if accused.cause is not Cause.PROGRAM_EXIT or not accused.found_lock or not life:
        return False
    last = life[-1].incident
    return last.cause not in {Cause.SUBMITTED, Cause.LEFT_LOCK} and not left_lock(last.tail)


def _undone(snap: Snapshot, job: JobState, accused: Suspect, task: TaskId) -> dict[str, int]:
    """The counts to go back to, where a program fails before its first step with others; empty elsewhere."""
    if not accused.cause.program_fault or accused.cause is Cause.WALL_TIME or accused.stepped:
        return {}
    return sizes_before(snap, job, task)


def _error(snap: Snapshot, job: JobState, accused: Suspect, present: Present) -> Raised | None:
    """The error that the program raised before it trained; None also if the job rules on `program_exit`.

    A task outside the ClusterSpec does not count: an evaluator may find no checkpoint yet.
    """
    spec = job.record.value.spec
    outside = spec.role(job.task(accused.member).role).outside
    if outside or Cause.PROGRAM_EXIT.value in spec.restart.rules:
        return None
    return first_error(present, accused.error, trained=has_trained(snap, job))


def _is_cold(job: JobState, accused: Suspect) -> bool:
    """Whether a failed attempt had no warm start that it could have failed of."""
    return not job.record.value.spec.preload or not accused.warm


def _ended_beside(job: JobState, accused: Suspect) -> list[tuple[str, Raised | None]]:
    """Node and error of the other tasks that have ended by themselves in the generation in force."""
    generation = job.switch.value.generation
    return [
        (held.value.node, error_of_the_code(held.value.exit.tail, held.value.exit.raised))
        for attempt, held in job.attempts.items()
        if attempt.generation == generation and attempt.task.member != accused.member
        if held.value.exit is not None and held.value.exit.reason is ExitReason.EXIT
    ]


def _bad_node(
    snap: Snapshot, life: tuple[Past, ...], present: Present, homes: list[str], began: int | None
) -> NodeVerdict | None:
    """The verdict on the failure's node. Failures from before a lift of its cordon do not count."""
    node = snap.nodes.get(present.node)
    if node is None or (began is not None and node.pardons(began)):
        return None
    return suspect_node(tuple(past for past in life if not node.pardons(past.revision)), present, homes)


def standing_of(snap: Snapshot, job: JobState, member: str = "") -> Tally:
    """How much of its budget a job has used, for `status` and `explain`; nothing has failed just now."""
    switch, policy = job.switch.value, job.record.value.spec.restart
    life = life_of(job)
    accused = Suspect(switch.incident, Cause.OPERATOR, Scope.TASK, member, "", False, snap.now_ms)
    return tally(life, _present(snap, job, accused), policy.window_ms)


def _present(snap: Snapshot, job: JobState, accused: Suspect) -> Present:
    return Present(
        cause=accused.cause,
        scope=accused.scope,
        member=accused.member,
        node=accused.node,
        stepped=has_stepped(snap, job) if accused.scope is Scope.ALL else accused.stepped,
        base=job.switch.value.base,
        newest=newest_commit(job),
        at_ms=accused.known_ms,
        wall_ms=snap.wall_ms - (snap.now_ms - accused.known_ms),
        ran=accused.began != 0,
    )


def _verdict(
    job: JobState, life: tuple[Past, ...], present: Present, rule: Rule, bad_base: BaseVerdict | None
) -> Verdict:
    """The budget's word, unless the cause or the verdict on the base ends the job anyway."""
    policy, ledger = job.record.value.spec.restart, job.switch.value.ledger
    if rule is Rule.FAIL:
        reason = f"a restart does not mend {present.cause.value} (restart.rules)"
        return Verdict(ledger, allowed=False, backoff_ms=0, reason=reason)
    if bad_base is not None and bad_base.fails:
        return Verdict(ledger, allowed=False, backoff_ms=0, reason=bad_base.reason)
    return charge(ledger, present.cause, present.newest, policy, tally(life, present, policy.window_ms))


def _others(job: JobState, base: CheckpointRef | None) -> int:
    """How many checkpoints could be restored instead of `base`."""
    usable = candidates((held.value for held in job.commits.values()), job.switch.value)
    return sum(record.ref != base for record in usable)
