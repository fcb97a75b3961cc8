"""Rule 11, the agent's side: when etcd is gone, tasks live on as long as all supervisors promise.

Safety. A promise counts from the stamp of the request that it answers, never from when the answer came, and
only with those of all supervisors that could ever lead. It extends a deadline that has not passed; it revives
nothing. Launchers are granted D at most, as ever. So when two reads have vouched for this node again, the
second of them sent after promises ceased to count, every launcher's deadline rests on a read alone: then the
next beat says that the promises are needed no more.
"""

from __future__ import annotations

from dataclasses import replace

from agent.core.events import Promised, TermsSeen
from agent.core.instructions import AskPromises
from agent.core.step_context import Work

PATIENCE_SHARE = 10


def on_terms(work: Work, event: TermsSeen) -> None:
    """The cluster's record says which one it is, who promises, and for how long."""
    work.state = replace(work.state, cluster=event.cluster or work.state.cluster)
    book = work.state.promises
    if (book.supervisors, book.for_ms) != (event.supervisors, event.for_ms):
        book = replace(book, supervisors=event.supervisors, for_ms=event.for_ms)
        work.state = replace(work.state, promises=book)
        if book.for_ms:
            names = ", ".join(book.supervisors)
            work.note(
                "without etcd, tasks run on for as long as all supervisors promise",
                for_ms=str(book.for_ms),
                supervisors=names,
            )


def on_read(work: Work, sent_ms: int) -> None:
    """A read sent at `sent_ms` has vouched for this node."""
    book = work.state.promises
    if book.asked == book.released:
        return
    if book.reads_ms < 0:
        if book.until_ms >= 0:
            work.note("etcd answers again: tasks run on without promises")
        book = replace(book, given={}, until_ms=-1, floor=book.asked, reads_ms=work.now_ms, said="")
    elif sent_ms >= book.reads_ms:
        book = replace(book, released=book.asked, reads_ms=-1)
    work.state = replace(work.state, promises=book)


def on_promised(work: Work, event: Promised) -> None:
    """A supervisor's answer."""
    state, book = work.state, work.state.promises
    if event.serial <= book.floor or book.reads_ms >= 0:
        return
    if not event.for_ms:
        _on_refused(work, event)
        return
    until_ms = max(event.sent_ms + event.for_ms, book.given.get(event.supervisor, 0))
    book = replace(book, given={**book.given, event.supervisor: until_ms})
    if state.may_run(work.now_ms) and all(name in book.given for name in book.supervisors):
        drift_ms = state.settings.timing.drift_ms * book.for_ms // state.d_ms
        all_ms = min(book.given[name] for name in book.supervisors) - drift_ms
        if all_ms > max(book.until_ms, state.deadline_ms or 0):
            if book.until_ms < 0:
                work.note(
                    "etcd does not answer; all supervisors promise to leave this node alone: tasks run on",
                    "warning",
                    for_ms=str(all_ms - work.now_ms),
                )
            book = replace(book, until_ms=all_ms)
    work.state = replace(work.state, promises=book)


def _on_refused(work: Work, event: Promised) -> None:
    told = f"{event.supervisor}: {event.refused}"
    if told != work.state.promises.said:
        work.note("a supervisor does not promise to leave this node alone", "warning", refused=told)
        work.state = replace(work.state, promises=replace(work.state.promises, said=told))


def tend(work: Work) -> None:
    """Ask when no read has vouched for this node for a while, and again while promises run out."""
    state, book, timing = work.state, work.state.promises, work.state.settings.timing
    if not book.supervisors or not book.for_ms or state.deadline_ms is None:
        return
    unread_ms = work.now_ms - (state.deadline_ms - state.d_ms)
    if unread_ms <= timing.beat_ms + timing.rpc_deadline_ms or not state.may_run(work.now_ms):
        return
    left_ms = max(0, book.until_ms - work.now_ms)
    pause_ms = max(timing.rpc_deadline_ms, left_ms // PATIENCE_SHARE)
    if left_ms > book.for_ms * 2 // 3 or 0 <= book.asked_ms > work.now_ms - pause_ms:
        return
    book = replace(book, asked=book.asked + 1, asked_ms=work.now_ms, reads_ms=-1)
    work.state = replace(work.state, promises=book)
    work.emit(AskPromises(book.asked, work.now_ms))
