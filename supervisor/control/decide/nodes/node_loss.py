"""Losing a node (rule 3): from suspicion to a lost mark, from an appeal to its withdrawal, from D to *lost*.

A node is suspected if it is silent, or if its beats say that etcd has not answered it for longer than a
healthy agent ever waits, or if it says that it has fenced all that its dead agent had started.

A mark is a declaration, not a proof. It is safe to replace a node's tasks once D has passed on this leader's
clock since it saw the mark: by then every read that could have let the agent go on is older than D. It is
safe at once while the node's key says that it is fenced: no agent can take that key over while the mark is
there. The transaction that replaces them turns the mark `final`, after which no appeal counts. It also
compares that no appeal has come that this leader has not seen: its watch may be late.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from supervisor.contract import keys
from supervisor.contract.boundaries import Absent, Compare, Op
from supervisor.contract.desired import Assignment, JobPhase, LostMark, Placement
from supervisor.contract.observed import AttemptReport, Incarnation
from supervisor.contract.promise import Taking
from supervisor.control.decide.facts import promises
from supervisor.control.decide.facts.standing import appeal_of, lost_from_ms
from supervisor.control.decide.nodes import cordons, power
from supervisor.control.decide.plan import Action, delete_all, put, unchanged, unchanged_or_absent
from supervisor.control.decide.snapshot import JobState, NodeState, Snapshot, Versioned

MARKS_KEPT_MS = 3_600_000
DISOBEDIENT_AFTER = 2
FENCED = "its agent is gone, and its node has ended all that ran there"
LOST = "node_lost"
"""Kind of the event that tells that the wait for a node is over."""
_RETURNS = frozenset({"node_back", power.DISPROVED})


def by_marks(
    snap: Snapshot, marks: Iterable[Versioned[LostMark]]
) -> tuple[tuple[Compare, ...], tuple[Op, ...]]:
    """The compares and writes of a transaction that takes tasks away by these marks.

    The compares fail if a mark was withdrawn or appealed against since this snapshot, or if the key of a node
    that is fenced was written since. The writes make the marks final: no later appeal counts.
    """
    compares, ops = list[Compare](), list[Op]()
    for mark in marks:
        compares.append(unchanged(mark))
        if (holder := snap.nodes[mark.value.node].fenced(mark.value.incarnation)) is not None:
            compares.append(unchanged(holder))
        if not mark.value.final:
            node, incarnation = mark.value.node, mark.value.incarnation
            known = snap.nodes[node].appeals.get(incarnation)
            compares.append(unchanged_or_absent(keys.appeal(node, incarnation), known))
            ops.append(put(mark.key, replace(mark.value, final=True)))
    return tuple(compares), tuple(ops)


def taking(snap: Snapshot, job: JobState, placements: Iterable[Placement]) -> Taking | None:
    """The tasks, maybe alive, that a transaction on the job's switch takes away; None for no task."""
    taken, plan_id = tuple(placements), job.switch.value.plan_id
    if not taken:
        return None
    nodes = tuple(sorted({placement.node for placement in taken}))
    assigned = (job.assigned(plan_id, placement.member) for placement in taken)
    attempts = tuple(str(held.value.attempt_id) for held in assigned if held is not None)
    return Taking(job.name, nodes, attempts, snap.token.create_revision, job.switch.mod_revision)


def decide(snap: Snapshot, picture: NodeState) -> list[Action]:
    """Marks, withdrawals and the removal of marks that nothing refers to any more."""
    if picture.node in snap.nodes_aside:
        return []
    return [
        *_mark_suspected(snap, picture),
        *_withdraw(picture),
        *_tell_lost(snap, picture),
        *_tell_return(snap, picture),
        *_forget_marks(snap, picture),
        *cordons.lift_what_is_over(snap, picture),
    ]


def _mark_suspected(snap: Snapshot, picture: NodeState) -> list[Action]:
    held = picture.incarnation
    if held is None or held.value.incarnation in picture.marks or promises.held_ms(snap, picture.node):
        return []
    reason = _suspicion(snap, picture)
    if not reason:
        return []
    # By its revision: a successor overwrites the key, and must not find a mark that came after it.
    life, node = held.value, picture.node
    lives = {life.incarnation}
    if revoked := snap.is_revoked(node):
        busy = {each for each in (life.incarnation, *life.succeeds) if _referred(snap, node, each)}
        if not busy:
            return []  # it gets no task, and each of its lives would be marked in turn
        # D counts from the marks of those that tasks are placed on, however often its agent registers.
        lives |= busy - set(picture.marks)
        reason = f"its certificates are revoked, and {reason}"
    # An agent that is revoked reaches etcd as long as its certificate lasts: its appeals do not count.
    first = LostMark(node, "", reason, final=revoked, boot_id=life.boot_id, fenced=reason == FENCED)
    return [_mark(replace(first, incarnation=each), unchanged(held)) for each in sorted(lives)]


def _suspicion(snap: Snapshot, picture: NodeState) -> str:
    """Why its agent, alive or not, will not run tasks much longer; empty for no reason to think so."""
    # One that has appealed is about to join: a new mark would keep it from that (rule 3.9).
    appealed = any(snap.now_ms - seen_ms < snap.timing.d_ms for seen_ms in picture.appealed_ms())
    if picture.incarnation is not None and picture.incarnation.value.fenced and not appealed:
        return FENCED
    silence_ms, unread_ms = _silence_ms(snap, picture), snap.unread_ms(picture)
    if silence_ms >= _patience_ms(snap, picture):
        return f"no beat for {silence_ms} ms"
    return f"etcd has not answered it for {unread_ms} ms" if unread_ms else ""


def _silence_ms(snap: Snapshot, picture: NodeState) -> int:
    """An appeal is a sign of life too, also one of a successor, which cannot beat before it has joined."""
    if snap.is_revoked(picture.node):
        # Beats alone are: etcd takes what its agent writes until its certificate ends.
        beat_ms = picture.beat.received_ms if picture.beat is not None else snap.since_ms
        return snap.since_heard_ms(picture, max(snap.since_ms, beat_ms, picture.heard_before_ms or 0))
    return min([snap.silence_ms(picture), *(snap.now_ms - seen_ms for seen_ms in picture.appealed_ms())])


def _patience_ms(snap: Snapshot, picture: NodeState) -> int:
    """How long a silence is suspicious.

    An agent that has just registered, or that appealed and so is alive but does not reach us, gets D.
    """
    if picture.beat is None:
        return snap.timing.d_ms
    return snap.timing.d_ms if picture.appealed_ms() else snap.timing.suspect_ms


def vanished(snap: Snapshot, job: JobState) -> dict[str, Action]:
    """The marks of a job's nodes whose key expired, or whose place another incarnation has taken; by key."""
    actions: dict[str, Action] = {}
    for placement in _placements(job):
        picture = snap.nodes.get(placement.node)
        if promises.held_ms(snap, placement.node) or placement.node in snap.nodes_aside:
            continue
        if picture is not None:
            if picture.acts_for(placement.incarnation) or picture.mark_of(placement.incarnation):
                continue
            if picture.incarnation is None and _has_just_appealed(snap, picture, placement.incarnation):
                continue
            holder = picture.incarnation
        else:
            holder = None
        compare = Absent(keys.node(placement.node)) if holder is None else unchanged(holder)
        reason = "its key is gone" if holder is None else "another incarnation holds its key"
        key = keys.lost(placement.node, placement.incarnation)
        actions[key] = _mark(LostMark(placement.node, placement.incarnation, reason), compare)
    return actions


def _has_just_appealed(snap: Snapshot, picture: NodeState, incarnation: str) -> bool:
    """Its agent is alive, and has D from when its mark is gone: to write its key again, and to obey."""
    appeal = picture.appeals.get(incarnation)
    return appeal is not None and snap.now_ms - appeal.seen_ms < snap.timing.d_ms


def _mark(mark: LostMark, compare: Compare) -> Action:
    node, incarnation, reason = mark.node, mark.incarnation, mark.reason
    key = keys.lost(node, incarnation)
    then = "are replaced now" if mark.fenced else "are left alone until D has passed"
    return Action(
        kind="node_suspected",
        job="",
        text=f"node {node} is suspected: {reason}; its tasks {then}",
        compares=(compare, Absent(key)),
        ops=(put(key, mark),),
        fields={"node": node, "incarnation": incarnation, "reason": reason},
    )


def _withdraw(picture: NodeState) -> list[Action]:
    actions = []
    for incarnation, mark in picture.marks.items():
        appeal = appeal_of(picture, mark)
        if appeal is None:
            continue
        who = "its successor" if appeal.value.successor else "it"
        text = f"node {picture.node} is not lost: {who} appealed; nothing was restarted"
        fields = {"node": picture.node, "incarnation": incarnation}
        # Not the appeal: whoever has made it makes it again until it is heard.
        cleared = Action("node_cleared", "", text, (unchanged(mark),), delete_all((mark,)), fields)
        # A successor may be of another boot, after which nothing is left to take over.
        disproves = mark.value.off and not appeal.value.successor
        actions.append(_disproved(picture, cleared) if disproves else cleared)
    return actions


def _disproved(picture: NodeState, action: Action) -> Action:
    """The same, for a node that lives although its fence device has said that it is off."""
    reason = "its fence device said that its machine is off, but it ran"
    compares, ops = cordons.for_wrong_device(picture, reason)
    return replace(
        action,
        kind=power.DISPROVED,
        text=f"{action.text}; {reason}: it gets no new task. Correct `fence`, then uncordon it",
        compares=(*action.compares, *compares),
        ops=(*action.ops, *ops),
    )


def _tell_lost(snap: Snapshot, picture: NodeState) -> list[Action]:
    """An event for each life that is lost for good; once."""
    lost = [mark for life, mark in picture.marks.items() if _is_lost(snap, picture, life, mark)]
    if not lost:
        return []
    told = {held.value.fields.get("incarnation") for held in snap.events if held.value.kind == LOST}
    actions = []
    for mark in lost:
        node, incarnation, reason = mark.value.node, mark.value.incarnation, mark.value.reason
        if incarnation not in told:
            fields = {"node": node, "incarnation": incarnation, "reason": reason}
            actions.append(Action(LOST, "", f"node {node} is lost: {reason}", (unchanged(mark),), (), fields))
    return actions


def _is_lost(snap: Snapshot, picture: NodeState, life: str, mark: Versioned[LostMark]) -> bool:
    """Whether nothing of a life can be alive any more, and no other holds the node's key."""
    held = picture.incarnation
    if appeal_of(picture, mark) is not None or (held is not None and not held.value.acts_for(life)):
        return False
    return snap.now_ms >= lost_from_ms(snap, picture, mark) and not promises.held_ms(snap, picture.node)


def _tell_return(snap: Snapshot, picture: NodeState) -> list[Action]:
    """When a node that was lost registers anew, its boot says whether the machine was lost or the agent."""
    held = picture.incarnation
    lost = [mark for mark in picture.marks.values() if mark.value.final and mark.value.boot_id]
    if held is None or not lost or snap.is_revoked(picture.node):
        return []
    told = {event.value.fields.get("incarnation") for event in snap.events if event.value.kind in _RETURNS}
    actions = []
    for mark in lost:
        incarnation = mark.value.incarnation
        if incarnation in told or picture.acts_for(incarnation):
            continue
        same = mark.value.boot_id == held.value.boot_id
        what = "agent" if same else "machine"
        why = (
            "the machine has run all the time, so that only its agent or its link was lost"
            if same
            else "the machine was restarted meanwhile"
        )
        text = f"node {picture.node} is back: {why}"
        fields = {"node": picture.node, "incarnation": incarnation, "lost": what}
        back = Action("node_back", "", text, (unchanged(mark), unchanged(held)), (), fields)
        actions.append(_disproved(picture, back) if same and mark.value.off else back)
    return actions


def _forget_marks(snap: Snapshot, picture: NodeState) -> list[Action]:
    """Drop marks, and answered appeals, that no placement and no unconfirmed attempt refers to."""
    current = picture.incarnation
    actions = []
    for incarnation, mark in picture.marks.items():
        replaced = current is not None and not picture.acts_for(incarnation)
        # They tell the brake which nodes are still away.
        held = snap.pause is not None and snap.pause.value.in_force
        old = current is None and not held and snap.now_ms - mark.created_ms > MARKS_KEPT_MS
        if (replaced or old) and not _referred(snap, picture.node, incarnation):
            appeal = picture.appeals.get(incarnation)
            ops = delete_all((mark,)) + (delete_all((appeal,)) if appeal is not None else ())
            actions.append(Action("mark_forgotten", "", "", (unchanged(mark),), ops))
    for incarnation, appeal in picture.appeals.items():
        answered = incarnation not in picture.marks
        if answered and snap.now_ms - appeal.seen_ms > snap.timing.d_ms:
            actions.append(Action("appeal_forgotten", "", "", (unchanged(appeal),), delete_all((appeal,))))
    return actions


def disobedient(snap: Snapshot, job: JobState) -> dict[str, Action]:
    """The ends of nodes whose agents beat, but have not ended an attempt of a job in time; by node.

    Such an agent is out of control (rule 10).
    """
    actions: dict[str, Action] = {}
    # From the switch, which orders the end: its plan may have been prepared long before.
    # Nor did anybody obey, or say that they had, while etcd was away.
    ordered_ms = max(job.switch.seen_ms, snap.etcd_since_ms)
    if snap.now_ms - ordered_ms < _obedience_ms(snap, job):
        return actions
    for held in job.attempts.values():
        report = held.value
        if not _should_have_ended(snap, job, report) and not _stays_too_long(snap, job, report):
            continue
        picture = snap.nodes.get(report.node)
        if picture is None or picture.incarnation is None or report.node in snap.nodes_aside:
            continue
        if _has_just_appealed(snap, picture, report.incarnation):
            continue
        mark = picture.mark_of(report.incarnation)
        acts = picture.acts_for(report.incarnation)
        if acts and mark is None and not promises.held_ms(snap, report.node):
            actions[picture.node] = _give_up(picture, picture.incarnation, held)
    return actions


def _obedience_ms(snap: Snapshot, job: JobState) -> int:
    """How long after the switch an attempt may still be reported as running."""
    given_ms = job.switch.value.save_grace_ms
    if given_ms and job.switch.value.phase is JobPhase.FINISHING:
        given_ms += snap.timing.commit_deadline_ms
    return DISOBEDIENT_AFTER * snap.timing.d_ms + given_ms


def _should_have_ended(snap: Snapshot, job: JobState, report: AttemptReport) -> bool:
    """Whether an attempt lives, or may, that the switch does not stand behind.

    One whose launcher is gone and whose processes SIGKILL does not end keeps its successor from starting.
    """
    switch = job.switch.value
    if switch.held and report.plan_id == switch.plan_id and report.attempt.task.member in switch.held:
        held_ms = job.record.value.spec.limits.hold_on_failure_ms + DISOBEDIENT_AFTER * snap.timing.d_ms
        return snap.now_ms - job.switch.seen_ms > held_ms
    wanted = switch.phase is JobPhase.RUNNING and report.generation >= switch.generation
    return not report.confirmed_dead and not wanted


def _stays_too_long(snap: Snapshot, job: JobState, report: AttemptReport) -> bool:
    """Whether an attempt of a task that is to move or to leave has not ended in time, or one before it."""
    held = job.once(_ending).get((report.plan_id, report.attempt.task.member))
    if held is None or report.number > held.value.attempt:
        return False
    ordered_ms = max(held.seen_ms, snap.etcd_since_ms)
    return not report.confirmed_dead and snap.now_ms - ordered_ms > DISOBEDIENT_AFTER * snap.timing.d_ms


def _ending(job: JobState) -> dict[tuple[str, str], Versioned[Assignment]]:
    """The tasks whose attempts are to end, so that they can move or leave."""
    return {name: held for name, held in job.assignments.items() if held.value.ends}


def dismiss(picture: NodeState, holder: Versioned[Incarnation], reason: str) -> Action:
    """Have the agent of a node end. Its tasks are replaced after D, or when the node has fenced itself."""
    node, incarnation = picture.node, holder.value.incarnation
    held = picture.marks.get(incarnation)
    mark = held.value if held is not None else LostMark(node, incarnation, reason)
    key = keys.lost(node, incarnation)
    return Action(
        kind="node_dismissed",
        job="",
        text=f"node {node} is told to end: {reason}",
        compares=(unchanged(holder), unchanged_or_absent(key, held)),
        ops=(put(key, replace(mark, reason=reason, final=True, dismissed=True)),),
        fields={"node": node, "incarnation": incarnation, "reason": reason},
    )


def _give_up(picture: NodeState, holder: Versioned[Incarnation], ignored: Versioned[AttemptReport]) -> Action:
    attempt = str(ignored.value.attempt)
    reason = f"it did not end {attempt} when it should have"
    node, incarnation = picture.node, holder.value.incarnation
    mark = LostMark(node, incarnation, reason, final=True)
    compares, ops = cordons.for_disobedience(picture, reason, incarnation)
    return Action(
        kind="node_cordoned",
        job="",
        text=f"node {node} is given up and cordoned: {reason}; restart its agent to get it back",
        compares=(
            unchanged(holder),
            unchanged(ignored),
            Absent(keys.lost(node, incarnation)),
            *compares,
        ),
        ops=(put(keys.lost(node, incarnation), mark), *ops),
        fields={"node": node, "incarnation": incarnation, "attempt": attempt},
    )


def _placements(job: JobState) -> tuple[Placement, ...]:
    plan = job.plan_in_force
    if plan is None or job.switch.value.phase.ended:
        return ()
    return plan.value.placements


def _referred(snap: Snapshot, node: str, incarnation: str) -> bool:
    if snap.aside:
        return True  # what such a job refers to is not known
    for job in snap.jobs.values():
        if any(p.node == node and p.incarnation == incarnation for p in _placements(job)):
            return True
        for held in job.attempts.values():
            report = held.value
            if report.node == node and report.incarnation == incarnation:
                return True
    return False
