"""Commits, bases and what training goes on from (rules 7 to 9)."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.history.formats import PUT, WHOLE, EtcdLine, StoreLine
from chaos.history.history import History
from chaos.history.lives import FOREVER
from chaos.history.past import State, lineage, record
from chaos.history.records import COLLECTING, COMMITTED, Commit, Ref, Switch
from chaos.promises.generations import flips
from chaos.promises.violation import Broken


def committed_stays_restorable(history: History) -> Iterator[Broken]:
    """A committed checkpoint stays restorable until policy collects it; the newest two verified stay."""
    damaged = tuple(path for fault in history.run.faults for path in fault.damages)
    for commit, from_ms, until_ms in _committed_spans(history):
        path = commit.path.rpartition("/")[2]
        if any(commit.path.startswith(each) or each.startswith(path) for each in damaged):
            continue
        seen = [line for line in history.store if line.path.rpartition("/")[2] == path]
        if not seen and until_ms == FOREVER:
            # The last look is taken when the recording ends, at all that there is.
            yield Broken(
                f"{commit.ref} is committed, and was never seen in the store", from_ms, (commit.path,)
            )
        for line in seen:
            if from_ms <= line.after_ms and line.at_ms <= until_ms:
                yield from _unusable(commit, line)
    yield from _collected(history)


def _committed_spans(history: History) -> Iterator[tuple[Commit, float, float]]:
    """Each record that can be restored, and from when to when that was surely so."""
    since: dict[str, tuple[Commit, float]] = {}
    for moment, _ in history.walk():
        for line in moment.changes:
            if not line.key.startswith("commits/") or line.key.split("/")[1] not in history.jobs():
                continue
            commit = record(Commit, line.key, line.value) if line.kind != "delete" else None
            stays = commit is not None and commit.state == COMMITTED
            if line.key in since and not stays:
                before, from_ms = since.pop(line.key)
                yield before, from_ms, moment.after_ms
            elif commit is not None and stays and line.key not in since:
                since[line.key] = (commit, moment.at_ms)
    yield from ((commit, from_ms, FOREVER) for commit, from_ms in since.values())


def _unusable(commit: Commit, line: StoreLine) -> Iterator[Broken]:
    if line.found != WHOLE:
        yield Broken(
            f"{commit.ref} is committed, and in the store it is {line.found}: {line.why}",
            line.at_ms,
            (line.path,),
        )
    elif (line.manifest, line.size) != (commit.manifest_crc32c, commit.size):
        yield Broken(
            f"{commit.ref} is committed with manifest {commit.manifest_crc32c} and {commit.size} bytes; "
            f"the store has {line.manifest} and {line.size}",
            line.at_ms,
            (line.path,),
        )


def _collected(history: History) -> Iterator[Broken]:
    """A checkpoint is collected only if it may be; a collecting checkpoint never counts again."""
    for moment, state in history.walk():
        for line in moment.put("commits/"):
            job = line.key.split("/")[1]
            before, switch = state.get(Commit, line.key), state.switch(job)
            after = record(Commit, line.key, line.value)
            if before is None or switch is None or job not in history.jobs():
                continue
            if before.state == COLLECTING and after.state != COLLECTING:
                yield Broken(f"{after.ref} was being collected, and is {after.state} again", moment.at_ms)
            if before.state == COMMITTED and after.state == COLLECTING:
                reason = _must_stay(before, state, switch)
                if reason:
                    yield Broken(f"{after.ref} is collected: {reason}", moment.at_ms)


def _must_stay(commit: Commit, state: State, switch: Switch) -> str:
    closing = switch.closing.base if switch.closing is not None else None
    intent = state.intent(switch.job)
    asked = (
        intent.restart_from if intent is not None and intent.restart_serial > switch.restart_serial else None
    )
    if commit.job_uuid != switch.job_uuid:
        return ""
    if commit.pinned:
        return "it is pinned"
    if commit.ref in (switch.base, closing):
        return "it is the base of the switch"
    if commit.ref == asked:
        return "an operator asked for a restart from it"
    newest = lineage(state.commits(switch.job), switch)[:2]
    return f"it is among the newest two, {' and '.join(map(str, newest))}" if commit.ref in newest else ""


def base_is_the_newest_good(history: History) -> Iterator[Broken]:
    """The base is the newest good one on the lineage at the flip."""
    for moment, state in history.walk():
        for line in moment.put("switches/"):
            job = line.key.split("/")[1]
            before, after = state.switch(job), record(Switch, line.key, line.value)
            if job not in history.jobs() or before is None or not _is_flip(before, after):
                continue
            found = lineage(state.commits(job), before)
            newest = _asked(state, before, after) or (found[0] if found else None)
            if after.base != newest:
                yield Broken(
                    f"generation {after.generation} begins from {after.base}; the newest good is {newest}",
                    moment.at_ms,
                    (f"committed on the lineage: {', '.join(map(str, found)) or 'none'}",),
                )


def _is_flip(before: Switch, after: Switch) -> bool:
    """Not the generation that an import takes for itself: that starts nothing."""
    return (
        before.job_uuid == after.job_uuid
        and after.generation > before.generation
        and after.plan_id != before.plan_id
    )


def _asked(state: State, before: Switch, after: Switch) -> Ref | None:
    intent = state.intent(before.job)
    if intent is None or after.restart_serial <= before.restart_serial:
        return None
    return intent.restart_from


def first_step_is_the_bases(history: History) -> Iterator[Broken]:
    """The first step of a generation is its base's step; no commit of a lower generation follows it."""
    yield from _late_commits(history)
    for flip in flips(history):
        if flip.switch.plan_id == flip.before.plan_id:
            continue
        ours = [line for line in history.of_job(flip.job) if line.generation == flip.generation]
        base = flip.switch.base
        for line in ours:
            if line.kind == "restored":
                yield from _restored(line.step, line.chain, base, line.attempt, line.at_ms)
                break
        made = [line for line in ours if line.kind == "step"]
        trainers = {line.attempt for line in made}
        lowest = base.step if base is not None else 0
        if made and not lowest <= made[0].step <= lowest + 1 + len(trainers):
            yield Broken(
                f"{made[0].attempt} made step {made[0].step} first; the base of generation "
                f"{flip.generation} is {base}",
                made[0].at_ms,
            )


def _restored(
    step: int, chain: tuple[int, ...], base: Ref | None, who: str, at_ms: float
) -> Iterator[Broken]:
    wanted = base.step if base is not None else -1
    if step != wanted:
        yield Broken(f"{who} restored step {step}; its base is {base}", at_ms)
    elif base is not None and chain and chain[-1] != base.generation:
        yield Broken(f"{who} restored weights of generation {chain[-1]}; its base is {base}", at_ms)


def _late_commits(history: History) -> Iterator[Broken]:
    """Rule 7: only the generation in force commits, and not while its switch is closing."""
    for moment, state in history.walk():
        for line in moment.put("commits/"):
            yield from _late_commit(line, state, moment.at_ms, history.jobs())


def _late_commit(line: EtcdLine, state: State, at_ms: float, jobs: list[str]) -> Iterator[Broken]:
    job = line.key.split("/")[1]
    switch, commit = state.switch(job), record(Commit, line.key, line.value)
    if line.kind != PUT or line.key in state.held or job not in jobs or commit.incarnation == "adopted":
        return
    if switch is None or switch.job_uuid != commit.job_uuid:
        yield Broken(f"{commit.ref} is committed for a job that is not there", at_ms)
    elif switch.generation != commit.ref.generation:
        yield Broken(f"{commit.ref} is committed in generation {switch.generation}", at_ms)
    elif switch.closing is not None:
        yield Broken(f"{commit.ref} is committed while the switch is closing", at_ms)
