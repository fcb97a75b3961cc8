"""How a job's saves become commits: what its saver's node says of it, the lag, and what is told of both.

A commit that works writes nothing but itself; only its troubles become events. The age of a commit is this
supervisor's own: since it first saw the record, on its own clock. A new leader counts afresh.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from supervisor.contract.checkpoint import CommitState
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Event
from supervisor.contract.job.spec import Strategy
from supervisor.contract.observed import SaverBeat, UnusableSave
from supervisor.control.decide.checkpoints.advice import saves_of
from supervisor.control.decide.plan import Action, short, unchanged
from supervisor.control.decide.snapshot import JobState, Snapshot, Versioned

TELL_MS = 3_000
"""Trouble that is over before is not worth an operator's time."""

STUCK_MS = 10_000
"""A commit that has not moved for so long is trouble, although nothing has failed yet."""

USUAL = 3
"""A pause that is so many times the longest one between commits is worth a warning."""

FIRST_PAUSE_MS = 3_600_000
"""The same after a single commit: the program's own pace is not known yet."""

STAGED = "staged"
FAILING, WORKING = "commits_failing", "commits_work_again"
LAGGING, CAUGHT_UP = "commits_lagging", "commits_caught_up"
SKIPPED = "saves_skipped"
UNUSABLE = "saves_unusable"
MISSING = "commits_missing"
KINDS = frozenset({FAILING, WORKING, LAGGING, CAUGHT_UP, SKIPPED, UNUSABLE, MISSING})


def saver_beat(snap: Snapshot, job: JobState) -> SaverBeat | None:
    """The beat about the generation's saver; None while its node is silent, or it has not begun (rule 10)."""
    plan, saver = job.plan_in_force, job.saver.member
    if plan is None:
        return None
    for placement in plan.value.placements:
        picture = snap.nodes.get(placement.node)
        if placement.member != saver or picture is None or picture.beat is None:
            continue
        if not picture.acts_for(placement.incarnation) or snap.silence_ms(picture) >= snap.timing.suspect_ms:
            continue
        found = picture.beat.savers.get(job.name)
        if found is not None and found.generation == job.switch.value.generation:
            return found
    return None


def lag_ms(snap: Snapshot, job: JobState) -> int:
    """How long a job has trained since its newest commit, or its generation's start; -1: it does not run."""
    switch = job.switch
    if switch.value.phase is not JobPhase.RUNNING or job.plan_in_force is None:
        return -1
    attempts = [
        held.created_ms
        for attempt, held in job.attempts.items()
        if attempt.generation == switch.value.generation
    ]
    began_ms = min(attempts, default=switch.seen_ms)
    commits = [held.created_ms for held in job.commits.values() if held.value.state is CommitState.COMMITTED]
    return max(0, snap.now_ms - max([began_ms, *commits]))


def still_moves(snap: Snapshot, job: JobState) -> bool:
    """Whether the last commit of a job that ends is on its way: then it gets the time that it needs."""
    beat = saver_beat(snap, job)
    return beat is not None and 0 <= beat.still_ms < snap.timing.commit_deadline_ms


def uncommitted(snap: Snapshot, job: JobState) -> str:
    """A finished save of the generation in force that is no commit, as its node tells, and where it is.

    Empty when there is none.
    """
    beat, plan = saver_beat(snap, job), job.plan_in_force
    if beat is None or plan is None or beat.pending is None or beat.pending in job.commits:
        return ""
    nodes = [each.node for each in plan.value.placements if each.member == job.saver.member]
    return f"{beat.pending}{kept_on(job, nodes[0])}"


def kept_on(job: JobState, node: str) -> str:
    """The place of a save that is not committed, to be put after its name; empty if it is in the store."""
    return f" (a copy stays on {node})" if job.record.value.spec.checkpoint.mode == STAGED else ""


def files_differ(job: JobState) -> bool:
    """Whether saves on another node than the saver's may be ones that the saver's node does not have.

    In a ring all save at once, and TensorFlow throws away the saves of all but one.
    """
    spec = job.record.value.spec
    return spec.checkpoint.mode == STAGED and spec.strategy is not Strategy.MULTIWORKER


def elsewhere(snap: Snapshot, job: JobState) -> Iterator[tuple[str, str]]:
    """For each task beside the saver that has saved where only its own node sees the files: node and line."""
    plan, saver = job.plan_in_force, job.saver
    if plan is None or not files_differ(job):
        return
    nodes = {each.member: each.node for each in plan.value.placements}
    seen = {attempt.task: saves for attempt, saves in sorted(saves_of(snap, job), key=lambda each: each[0])}
    for task, saves in seen.items():
        node = nodes.get(task.member)
        if not saves.inside or task == saver or node is None or share_files(snap, nodes[saver.member], node):
            continue
        line = f"{task} has saved below $CHECKPOINT_DIR on {node}, and only saves of {saver} are committed"
        yield node, line


def share_files(snap: Snapshot, one: str, other: str) -> bool:
    """Whether tasks on two nodes find the same files in `$CHECKPOINT_DIR`."""
    first, second = (snap.nodes[each].incarnation if each in snap.nodes else None for each in (one, other))
    return first is not None and second is not None and first.value.shares_files(second.value)


def missing(snap: Snapshot, job: JobState, beat: SaverBeat | None) -> str:
    """A warning that a job trains on without a commit, and no save waits; otherwise empty."""
    checkpoint, lag = job.record.value.spec.checkpoint, lag_ms(snap, job)
    bound_ms = checkpoint.lag_bound_ms
    if bound_ms is None or lag < max(bound_ms, _usual_ms(job)) or (beat is not None and beat.waiting_ms >= 0):
        return ""
    sought = "a file that checkpoint.pattern names" if checkpoint.patterns else "a checkpoint"
    why = f"no finished save of {job.saver} that could be {sought} was found below $CHECKPOINT_DIR"
    if beat is None:
        why = f"the node of {job.saver}, which ought to save, says nothing of its saves"
    elif beat.unusable:
        why = f"what was found cannot be used: {beat.unusable[-1]}"
    return f"nothing has been committed for {lag / 60_000:.0f} min: {why}"


def _usual_ms(job: JobState) -> int:
    """A pause between commits of this generation that is nothing unusual; 0 if it has no commit.

    The clocks of nodes measure it: a wrong one only makes a warning come early or late.
    """
    generation = job.switch.value.generation
    made = sorted(held.value.wall_ms for ref, held in job.commits.items() if ref.generation == generation)
    gaps = [after - before for before, after in pairwise(made)]
    return USUAL * max(gaps) if gaps else FIRST_PAUSE_MS if made else 0


def trouble_of(beat: SaverBeat | None) -> tuple[str, int]:
    """Why finished saves do not become commits now, and for how long that is so; empty where they do."""
    if beat is None:
        return "", -1
    if not beat.trouble and beat.still_ms >= STUCK_MS:
        return "the commit in hand does not move", beat.still_ms
    return beat.trouble, beat.trouble_ms


def tell(snap: Snapshot, job: JobState) -> list[Action]:
    """Events about saves that do not become commits as they should."""
    if job.switch.value.phase.ended:
        return []
    beat, told = saver_beat(snap, job), [held for held in job.events if held.value.kind in KINDS]
    found = [_missing(snap, job, beat, told)]
    if beat is not None:
        found += [_failing(job, beat, told), _lagging(job, beat, told), _skipped(job, beat, told)]
        found += _unusable(job, beat, told)
    return [action for action in found if action is not None]


def _failing(job: JobState, beat: SaverBeat, told: list[Versioned[Event]]) -> Action | None:
    last, (trouble, since_ms) = _last(told, FAILING, WORKING), trouble_of(beat)
    if last is None or last.value.kind == WORKING:
        if trouble and since_ms >= TELL_MS:
            return _event(job, FAILING, f"{trouble} (for {since_ms / 1000:.0f} s); training goes on")
    elif not trouble and _committed_since(job, last):
        return _event(job, WORKING, "checkpoints are committed again")
    return None


def _lagging(job: JobState, beat: SaverBeat, told: list[Versioned[Event]]) -> Action | None:
    bound_ms = job.record.value.spec.checkpoint.lag_bound_ms
    last = _last(told, LAGGING, CAUGHT_UP)
    late = bound_ms is not None and beat.waiting_ms >= bound_ms
    if last is None or last.value.kind == CAUGHT_UP:
        if late:
            why = trouble_of(beat)[0] or "the store is slow"
            text = f"a finished save has not become a commit for {beat.waiting_ms / 1000:.0f} s: {why}"
            return _event(job, LAGGING, text)
    elif not late and _committed_since(job, last):
        return _event(job, CAUGHT_UP, "commits have caught up with the program's saves")
    return None


def _skipped(job: JobState, beat: SaverBeat, told: list[Versioned[Event]]) -> Action | None:
    """Told of the first, and whenever there are twice as many: a slow store would fill the list of events."""
    generation = str(beat.generation)
    before = [
        int(held.value.fields["skipped"])
        for held in told
        if held.value.kind == SKIPPED and held.value.fields.get("generation") == generation
    ]
    if beat.skipped < max(1, 2 * max(before, default=0)):
        return None
    why = "the store takes none now" if trouble_of(beat)[0] else "committing takes longer than they are apart"
    text = (
        f"{beat.skipped} finished saves of generation {generation} were skipped for newer ones so far, "
        f"{beat.last_skipped} the last: {why}"
    )
    return _event(job, SKIPPED, text, {"generation": generation, "skipped": str(beat.skipped)})


def unusable(beat: SaverBeat | None) -> tuple[str, ...]:
    """A line for each reason for which saves cannot be committed, with the newest save and the remedy."""
    newest = _newest_unusable(beat) if beat is not None else ()
    return tuple(f"a save cannot be committed: {each}" for each in newest)


def _newest_unusable(beat: SaverBeat) -> tuple[UnusableSave, ...]:
    return tuple({each.reason: each for each in beat.unusable}.values())


def _missing(
    snap: Snapshot, job: JobState, beat: SaverBeat | None, told: list[Versioned[Event]]
) -> Action | None:
    """Once in a generation."""
    generation = str(job.switch.value.generation)
    text = missing(snap, job, beat)
    before = (held for held in told if held.value.kind == MISSING)
    if not text or any(held.value.fields.get("generation") == generation for held in before):
        return None
    return _event(job, MISSING, short(text), {"generation": generation})


def _unusable(job: JobState, beat: SaverBeat, told: list[Versioned[Event]]) -> list[Action]:
    """Each reason once, as long as its event is kept: each save of the program may have the same one."""
    before = {held.value.fields.get("reason", "") for held in told if held.value.kind == UNUSABLE}
    return [
        _event(job, UNUSABLE, short(text), {"path": each.path, "reason": short(each.reason, 300)})
        for each, text in zip(_newest_unusable(beat), unusable(beat), strict=True)
        if short(each.reason, 300) not in before
    ]


def _last(told: list[Versioned[Event]], *kinds: str) -> Versioned[Event] | None:
    return next((held for held in reversed(told) if held.value.kind in kinds), None)


def _committed_since(job: JobState, event: Versioned[Event]) -> bool:
    return any(held.create_revision > event.create_revision for held in job.commits.values())


def _event(job: JobState, kind: str, text: str, fields: dict[str, str] | None = None) -> Action:
    return Action(kind, job.name, text, (unchanged(job.switch),), (), fields or {})
