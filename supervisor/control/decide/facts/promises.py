"""Rule 11, the supervisor's side: the promises that it may give, and the takings that they forbid.

Safety. Between a supervisor and a life of a node there is never both a promise in force and a taking (a flip
or move that takes tasks away which are not confirmed dead) that is sent or may still take effect. Each is
noted on disk before it goes out, and each is refused while the other is noted. An agent extends only with the
promises of all supervisors that can ever lead, so no leader sends a taking before the extension is over. A
promise may be given although there is a mark. A mark that was on its way when the promise was given takes no
task away by itself; `node_loss` acts on it only after the promise has ended.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from supervisor.contract.containment import Tell, contained
from supervisor.contract.promise import OPEN, Promise, PromiseAnswer, PromiseRequest, Taking, Word
from supervisor.control.decide.snapshot import JobState, NodeState, Snapshot

LONGEST_LIFE = 64
"""Characters of an incarnation's name."""
MOST_LIVES = 16
"""Incarnations of one node that hold a promise at a time."""
KEPT_D = 2
"""A taking that took effect is over after so many D at the latest: by then rule 3 has ended what it took."""


def begin(word: Word | None, boot_id: str, now_ms: int, silence_ms: int) -> Word:
    """The promises and takings that a supervisor starts with. `word`: from its file; `silence_ms`: V + D."""
    if word is None:
        return Word(boot_id, now_ms + silence_ms, blind=True)
    # The release before keyed them by their incarnations alone. Of two for one life the later one counts.
    given = sorted(word.promises.values(), key=lambda each: each.until_ms)
    word = replace(word, promises={life_of(each.node, each.incarnation): each for each in given})
    if word.boot_id == boot_id:
        return word
    takings = tuple(replace(each, since_ms=OPEN) for each in word.takings)
    return Word(boot_id, now_ms + silence_ms, word.blind, {}, takings)


def held_ms(snap: Snapshot, node: str) -> int:
    """Milliseconds for which promises still forbid this supervisor to declare a node lost; 0 without any."""
    picture = snap.nodes.get(node)
    ends_ms = [
        promise.until_ms
        for promise in snap.word.promises.values()
        if promise.node == node and not _superseded(snap, picture, promise)
    ]
    if picture is None or picture.beat is None or not picture.beat.free:
        # One that says itself that no promise is in use cannot be using one that is forgotten here.
        ends_ms.append(snap.word.silent_until_ms)
    return max(0, max(ends_ms) - snap.now_ms) if ends_ms else 0


def _superseded(snap: Snapshot, picture: NodeState | None, promise: Promise) -> bool:
    """Another life holds the node's key: the one before is dead, and its launchers' last grants are over.

    Not so one that was seen to hold it before the promise was given: it is the earlier one, and who asked has
    come after it, when etcd did not answer here any more.
    """
    holder = picture.incarnation if picture is not None else None
    if holder is None or holder.value.incarnation == promise.incarnation:
        return False
    if holder.seen_ms <= promise.given_ms:
        return False
    return snap.now_ms - holder.seen_ms >= max(snap.timing.d_ms, holder.value.d_ms)


def consider(
    word: Word, request: PromiseRequest, now_ms: int, promise_ms: int, *, marked: bool, released: int
) -> tuple[Word, str]:
    """The word with the promise in it and "", or unchanged and why it is refused.

    `marked`: a lost mark for the asking life, or one that it acts for, is known here. `released`: the serial
    up to which that life has given up what it was promised.
    """
    life = life_of(request.node, request.incarnation)
    known = word.promises.get(life)
    if promise_ms <= 0:
        return word, "promises are off here (promise_for)"
    if word.blind:
        return word, "it has lost its file of promises, and has not seen etcd since"
    if len(request.incarnation) > LONGEST_LIFE:
        return word, f"its incarnation has a name of more than {LONGEST_LIFE} characters"
    if marked:
        return word, "it knows of a lost mark"
    if any(request.node in taking.nodes for taking in word.takings):
        return word, "it is taking tasks away from this node"
    if request.serial <= max(released, known.serial if known is not None else 0):
        return word, "the request came late"
    in_force = _in_force(word, now_ms)
    if known is None and sum(each.node == request.node for each in in_force.values()) >= MOST_LIVES:
        return word, f"{MOST_LIVES} incarnations of this node hold a promise already"
    promise = Promise(request.node, request.incarnation, request.serial, now_ms + promise_ms, now_ms)
    return replace(word, promises={**in_force, life: promise}), ""


def life_of(node: str, incarnation: str) -> str:
    """The key of a promise. The node is in it, so that naming another node's incarnation takes none."""
    return f"{node}/{incarnation}"


def refusal(supervisor: str, request: PromiseRequest, why: str) -> PromiseAnswer:
    """The answer that promises nothing."""
    return PromiseAnswer(supervisor, request.serial, 0, why)


def release(word: Word, node: str, incarnation: str, released: int) -> Word:
    """A node's life says that it has given up what it was promised up to this serial."""
    mine = life_of(node, incarnation)
    known = word.promises.get(mine)
    if known is None or known.serial > released:
        return word
    return replace(word, promises={life: each for life, each in word.promises.items() if life != mine})


def take(snap: Snapshot, word: Word, taking: Taking, now_ms: int) -> Word | None:
    """The word with the taking in it; None when one of its nodes has been promised something meanwhile."""
    present = replace(snap, word=word, now_ms=now_ms)
    if any(held_ms(present, node) for node in taking.nodes):
        return None
    return word if taking in word.takings else replace(word, takings=(*word.takings, taking))


def settle(snap: Snapshot, word: Word, tell: Tell) -> Word:
    """Without the takings that are over, as far as etcd shows it.

    A taking stays while an error is met about its job, which goes to `tell`.
    """
    takings: list[Taking] = []
    for taking in word.takings:
        kept = taking
        with contained(partial(tell, taking.job)):
            found = _settled(snap, taking)
            if found is None:
                continue
            kept = found
        takings.append(kept)
    return replace(word, takings=tuple(takings), promises=_in_force(word, snap.now_ms))


def _settled(snap: Snapshot, taking: Taking) -> Taking | None:
    """A taking as etcd shows it; None for one that is over."""
    if taking.job in snap.aside:
        return taking
    job, since_ms = snap.jobs.get(taking.job), taking.since_ms
    if since_ms == OPEN and _is_past(snap, job, taking):
        since_ms = snap.now_ms
    if since_ms == OPEN or (job is not None and not _is_over(snap, job, taking, since_ms)):
        return replace(taking, since_ms=since_ms)
    return None


def _is_past(snap: Snapshot, job: JobState | None, taking: Taking) -> bool:
    """It has happened, or its compares can never hold again."""
    return (
        job is None
        or job.switch.mod_revision != taking.switch_revision
        or snap.token.create_revision != taking.token
    )


def _is_over(snap: Snapshot, job: JobState, taking: Taking, since_ms: int) -> bool:
    if snap.now_ms - since_ms >= KEPT_D * snap.timing.d_ms:
        return True
    dead = {str(attempt) for attempt, held in job.attempts.items() if held.value.confirmed_dead}
    return dead.issuperset(taking.attempts)


def _in_force(word: Word, now_ms: int) -> dict[str, Promise]:
    return {life: each for life, each in word.promises.items() if each.until_ms > now_ms}
