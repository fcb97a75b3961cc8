"""The writers of each key and their fences (rule 2), by etcd's own log; both readings of etcd agree."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from chaos.history.formats import BASE, DELETE, PUT, Compared, EtcdLine, Transaction
from chaos.history.history import History
from chaos.history.past import Moment, State, record
from chaos.history.records import BY_AGENT, BY_BOTH, BY_LEADER, LEADER, Commit, Incarnation, Prepared
from chaos.promises.violation import Broken

IMPORTED = "adopted"
"""Stands for the incarnation in a commit record that the leader made."""


def no_write_of_a_deposed(history: History) -> Iterator[Broken]:
    """No effective write with an old leader token or incarnation."""
    log = {each.revision: each for each in history.transactions}
    for moment, state in history.walk():
        transaction = log.get(moment.revision)
        for line in moment.changes:
            if line.kind == BASE:
                continue
            for text in _wrong(line, state, moment, transaction):
                shown = transaction.compares if transaction is not None else ()
                yield Broken(
                    f"revision {moment.revision}: {line.kind} of {line.key}: {text}",
                    moment.at_ms,
                    tuple(
                        f"compared {each.target} of {each.key} {each.result} {each.number}" for each in shown
                    ),
                )


def _wrong(line: EtcdLine, state: State, moment: Moment, log: Transaction | None) -> Iterator[str]:
    yield from _author(line, state, moment, log)
    if log is None:
        return
    if log.by_lease:
        if not (line.key == LEADER or line.key.startswith("nodes/")):
            yield "it was under a lease, which ran out"
    else:
        yield from _unfenced(line, log)


def _unfenced(line: EtcdLine, log: Transaction) -> Iterator[str]:
    key, leads, agent = line.key, _by_leader(log), _by_agent(log)
    if key == LEADER:
        if line.kind == PUT and not _compares(log, LEADER, number=0) and not leads:
            yield "whoever became leader did not compare that nobody was"
        elif line.kind == DELETE and not leads:
            yield "its transaction does not compare the leader token"
    elif key.startswith("appeals/"):
        marks = [each for each in log.compares if each.key.startswith("lost/") and each.number > 0]
        if not (marks or (line.kind == DELETE and leads)):
            yield "it does not compare the mark that it is about"
    elif key.startswith("nodes/"):
        if not (leads or any(each.key == key for each in log.compares)):
            yield "it does not compare who was registered"
    elif key.startswith(BY_LEADER) and not leads:
        yield "its transaction does not compare the leader token"
    elif key.startswith(BY_AGENT) and not (agent or (line.kind == DELETE and leads)):
        yield "its transaction does not compare an incarnation's key"
    elif key.startswith(BY_BOTH) and not (agent or leads):
        yield "its transaction compares neither leader token nor incarnation"


def _by_leader(log: Transaction) -> bool:
    return any(_names(each) and each.key == LEADER and each.target == "create" for each in log.compares)


def _by_agent(log: Transaction) -> bool:
    return any(_names(each) and each.key.startswith("nodes/") for each in log.compares)


def _names(each: Compared) -> bool:
    """Whether it insists on one life of the key: it was made, or last written, at this very revision."""
    return each.result == "=" and each.number > 0 and each.target in ("create", "mod")


def _compares(log: Transaction, key: str, number: int) -> bool:
    return any((each.key, each.result, each.number) == (key, "=", number) for each in log.compares)


def _author(line: EtcdLine, state: State, moment: Moment, log: Transaction | None) -> Iterator[str]:
    """Check by the state of etcd: the author that the record names was in force."""
    key = line.key
    if line.kind != PUT:
        return
    if key.startswith(BY_LEADER) and LEADER not in state.held:
        yield "nobody led"
    if key.startswith(("prepared/", "staged/", "attempts/")):
        named = record(Prepared, key, line.value)
        yield from _registered(state, named.node, named.incarnation)
    elif key.startswith("commits/") and key not in state.held:
        commit = record(Commit, key, line.value)
        if commit.incarnation != IMPORTED and not _recorded_again(key, state, log):
            yield from _registered(state, commit.node, commit.incarnation)
    elif key.startswith("nodes/"):
        fresh = record(Incarnation, key, line.value)
        marked = [life for life in fresh.lives if state.mark(fresh.node, life) is not None]
        lifted = {each.key for each in moment.deleted("lost/")}
        for life in marked if not fresh.fenced else ():
            if f"lost/{fresh.node}/{life}" not in lifted:
                yield f"{life} is marked lost"


def _recorded_again(key: str, state: State, log: Transaction | None) -> bool:
    """Leaders tell of the savers of long ago, but only of a job of which nothing is recorded."""
    head = f"heads/{key.split('/')[1]}"
    return head not in state.held and log is not None and _by_leader(log)


def _registered(state: State, node: str, incarnation: str) -> Iterator[str]:
    holder = state.incarnation(node)
    if holder is None:
        yield f"nobody was registered for {node}"
    elif incarnation not in holder.lives:
        yield f"{node} was {holder.incarnation}, the record is of {incarnation}"


def histories_are_whole(history: History) -> Iterator[Broken]:
    """Watch histories have neither gap nor duplicate."""
    yield from _versions(history)
    yield from _against_log(history)
    yield from _watchers(history)


def _versions(history: History) -> Iterator[Broken]:
    """Each key's writes are counted by etcd: what a watch shows must go on where it was."""
    last = 0
    for moment, state in history.walk():
        if moment.revision < last:
            yield Broken(f"revision {moment.revision} came after {last}", moment.at_ms)
        last = moment.revision
        seen: set[str] = set()
        for line in moment.changes:
            if line.kind == BASE:
                continue
            held = state.held.get(line.key)
            if line.key in seen:
                yield Broken(f"revision {moment.revision} shows {line.key} twice", moment.at_ms)
            seen.add(line.key)
            if line.kind == DELETE and held is None:
                yield Broken(f"revision {moment.revision}: {line.key} went, and had never come", moment.at_ms)
            elif line.kind == PUT:
                expected = (held.version + 1, held.created) if held is not None else (1, line.revision)
                if (line.version, line.created) != expected:
                    yield Broken(
                        f"revision {moment.revision}: {line.key} has version {line.version} of revision "
                        f"{line.created}; version {expected[0]} of {expected[1]} was next",
                        moment.at_ms,
                    )


def _against_log(history: History) -> Iterator[Broken]:
    """Etcd's own log, replayed by our own rules, must give the same changes at the same revisions."""
    if not history.transactions:
        return
    shown = {
        moment.revision: (
            {line.key for line in moment.changes if line.kind == PUT},
            {line.key for line in moment.changes if line.kind == DELETE},
        )
        for moment in history.moments
        if not any(line.kind == BASE for line in moment.changes)
    }
    logged = {each.revision: (set(each.puts), set(each.deletes)) for each in history.transactions}
    last = min(max(shown, default=0), max(logged))
    first = min(shown, default=0)
    for revision in sorted(shown.keys() | logged.keys()):
        if first <= revision <= last and shown.get(revision) != logged.get(revision):
            yield Broken(
                f"revision {revision}: the watch shows {_told(shown.get(revision))}, etcd's log "
                f"{_told(logged.get(revision))}"
            )


def _told(found: tuple[set[str], set[str]] | None) -> str:
    if found is None:
        return "nothing"
    return ", ".join(sorted(found[0]) + [f"-{key}" for key in sorted(found[1])]) or "nothing"


def _watchers(history: History) -> Iterator[Broken]:
    """The product's own clients were sent every event since their first one, in the order of the writes."""
    lines = [line for moment in history.moments for line in moment.put("events/")]
    serials_written = (int(line.key.split("/")[1]) for line in sorted(lines, key=lambda line: line.revision))
    written = {serial: place for place, serial in enumerate(dict.fromkeys(serials_written))}
    # A client that comes late is sent no more than so many of those before.
    fresh = [int(line.key.split("/")[1]) for line in lines if line.kind == PUT]
    for name, seen in history.watches.items():
        serials = [each.serial for each in seen]
        for before, after in pairwise(seen):
            if before.serial not in written or after.serial not in written:
                continue
            first, last = written[before.serial], written[after.serial]
            if last <= first:
                yield Broken(f"{name}: event {after.serial} came after {before.serial}", after.at_ms)
            missed = [serial for serial, place in written.items() if first < place < last]
            if missed:
                yield Broken(f"{name}: events {missed} were not sent", after.at_ms)
        last_sent = max((written.get(serial, -1) for serial in serials), default=-1)
        unsent = [serial for serial in fresh if written[serial] > last_sent]
        if unsent:
            yield Broken(f"{name}: events {unsent}, the last ones, were not sent", history.ended_ms)
        foreign = sorted(set(serials) - written.keys())
        if foreign and not any(line.kind == BASE for moment in history.moments for line in moment.changes):
            yield Broken(f"{name}: events {foreign} are not in etcd", -1.0)
