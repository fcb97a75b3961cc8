"""A lost node's tasks are dead before anything takes their place (rules 3 and 4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chaos.history.history import History
from chaos.history.lives import FOREVER, Life
from chaos.promises.generations import LOOKING_MS, THAW_KILL_MS, flips, generation_of
from chaos.promises.violation import Broken


@dataclass(frozen=True, slots=True)
class Marked:
    """A lost mark: surely there at `at_ms`, surely still there until `until_ms`."""

    node: str
    incarnation: str
    at_ms: float
    until_ms: float
    d_ms: int


def marks(history: History) -> list[Marked]:
    """The lost marks that were set during the recording."""
    found: list[Marked] = []
    open_marks: dict[str, tuple[float, int]] = {}
    for moment, state in history.walk():
        for line in moment.put("lost/"):
            if line.key not in state.held and moment.live:
                open_marks[line.key] = (moment.at_ms, state.d_ms)
        found += [
            _marked(line.key, *open_marks.pop(line.key), moment.after_ms)
            for line in moment.deleted("lost/")
            if line.key in open_marks
        ]
    return [*found, *(_marked(key, *entry, FOREVER) for key, entry in open_marks.items())]


def _marked(key: str, at_ms: float, d_ms: int, until_ms: float) -> Marked:
    _, node, incarnation = key.split("/")
    return Marked(node, incarnation, at_ms, until_ms, d_ms)


def lost_nodes_are_dead_before_d(history: History) -> Iterator[Broken]:
    """Tasks of a lost node are dead before D by the kernel's truth."""
    patience = history.run.patience
    for mark in marks(history):
        deadline_ms = mark.at_ms + mark.d_ms
        if mark.until_ms <= deadline_ms:
            continue  # withdrawn in time: its agent is alive, and nobody took its tasks' place
        for life in history.lives:
            if life.node == mark.node and not life.launcher and life.born_ms <= mark.at_ms:
                why = f"{mark.node} was marked lost {mark.d_ms} ms before"
                yield from _executed_after(life, deadline_ms, why, patience)
    for flip in flips(history):
        replaced = {mark.node for mark in marks(history) if mark.at_ms <= flip.at_ms < mark.until_ms}
        for life in history.lives:
            old = life.attempt.startswith(f"{flip.job}/") and generation_of(life.attempt) < flip.generation
            if old and life.node in replaced and not life.launcher and life.born_ms < flip.after_ms:
                why = f"generation {flip.generation} has taken the place of what was on {life.node}"
                yield from _executed_after(life, flip.at_ms, why, patience)


def _executed_after(life: Life, deadline_ms: float, why: str, patience: float) -> Iterator[Broken]:
    """Frozen is not dead: what thaws later has the time in which SIGKILL must be pending."""
    for span in life.runs(deadline_ms, FOREVER):
        thawed = any(thawed_ms == span.begin_ms for _, thawed_ms in life.thaws())
        limit_ms = LOOKING_MS * patience + (THAW_KILL_MS if thawed else 0)
        if span.end_ms - span.begin_ms > limit_ms:
            yield Broken(
                f"{life} was executed for {span.end_ms - span.begin_ms:.0f} ms although {why}",
                span.begin_ms,
            )
            return
