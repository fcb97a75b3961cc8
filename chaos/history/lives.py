"""Processes as they lived, from the lines of the recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from chaos.history.formats import BORN, FROZEN, GONE, KILLED, RUNS, STATE, STOPPED, ProcessLine
from chaos.history.past import Moment, record
from chaos.history.records import Report

FOREVER = float("inf")
HELD = (STOPPED, FROZEN)


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which a process was surely in a state: it was seen in it at both ends."""

    state: str
    begin_ms: float
    end_ms: float


@dataclass(slots=True)
class Life:
    """One process of a task.

    Attributes:
        born_ms: when the kernel began it.
        seen_ms: it was surely alive until here. gone_ms: it was surely gone from here on.
        killed_ms: SIGKILL was pending, or it was being torn down; infinite if that was never seen.
        launcher: it is the parent of the attempts, not one.
        attempt: whose process it is; empty if no report tells.
    """

    pid: int
    ticks: int
    node: str
    marker: str
    parent: int
    inner: tuple[int, ...]
    command: str
    born_ms: float
    spans: list[Span] = field(default_factory=list)
    seen_ms: float = FOREVER
    gone_ms: float = FOREVER
    killed_ms: float = FOREVER
    launcher: bool = False
    attempt: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} ({self.attempt or self.command.strip() or 'unknown'}) on {self.node}"

    def runs(self, from_ms: float, to_ms: float) -> Iterator[Span]:
        """The spans between two times in which it surely ran: neither held nor told to die."""
        for span in self.spans:
            begin = max(span.begin_ms, from_ms)
            end = min(span.end_ms, to_ms, self.killed_ms)
            if span.state == RUNS and begin < end:
                yield Span(RUNS, begin, end)

    def may_run_at(self, at_ms: float) -> bool:
        """Whether nothing tells that it was not there at a time, was held then, or told to die."""
        held = any(span.state in HELD and span.begin_ms <= at_ms <= span.end_ms for span in self.spans)
        return self.born_ms <= at_ms < min(self.gone_ms, self.killed_ms) and not held

    def alive_at(self, at_ms: float) -> bool:
        """Whether it was surely there, held or not."""
        return self.born_ms <= at_ms < self.seen_ms

    def thaws(self) -> Iterator[tuple[float, float]]:
        """The times of its thaws: at the first of two it was still held, at the second not any more."""
        for before, after in zip(self.spans, self.spans[1:], strict=False):
            if before.state in HELD and after.state == RUNS:
                yield before.end_ms, after.begin_ms


def lives(lines: Iterable[ProcessLine], ended_ms: float) -> list[Life]:
    """The lives of all processes. `ended_ms`: the end of the recording; other processes were alive then."""
    found: dict[tuple[int, int], Life] = {}
    states: dict[tuple[int, int], list[tuple[str, float, float]]] = {}
    for line in lines:
        key = (line.pid, line.ticks)
        if line.kind == BORN:
            found[key] = Life(
                *(line.pid, line.ticks, line.node, line.marker, line.parent, line.inner, line.command),
                born_ms=line.after_ms,
            )
            states[key] = [(line.state, line.at_ms, line.at_ms)]
        elif key not in found:
            continue
        elif line.kind == STATE:
            states[key].append((line.state, line.after_ms, line.at_ms))
        elif line.kind == KILLED:
            found[key].killed_ms = line.after_ms
        elif line.kind == GONE:
            found[key].seen_ms, found[key].gone_ms = line.after_ms, line.at_ms
    for key, life in found.items():
        life.spans = list(_spans(states[key], min(life.seen_ms, ended_ms)))
    _find_launchers(list(found.values()))
    return sorted(found.values(), key=lambda life: life.born_ms)


def _spans(states: list[tuple[str, float, float]], end_ms: float) -> Iterator[Span]:
    for index, (state, _, begin_ms) in enumerate(states):
        until_ms = states[index + 1][1] if index + 1 < len(states) else end_ms
        yield Span(state, begin_ms, max(begin_ms, until_ms))


def _find_launchers(found: list[Life]) -> None:
    """Mark the launchers: processes with a marker whose parent does not have it."""
    marked = {(life.pid, life.marker) for life in found}
    for life in found:
        life.launcher = (life.parent, life.marker) not in marked


def name_attempts(found: list[Life], moments: Iterable[Moment]) -> None:
    """Say whose process each is: by the pid that its agent has reported, and by descent."""
    for moment in moments:
        for change in moment.put("attempts/"):
            report = record(Report, change.key, change.value)
            for life in found:
                if _is_reported(life, report, moment):
                    life.attempt = report.attempt_id
    for life in found:
        parent = next((each for each in found if each.pid == life.parent and _overlap(each, life)), None)
        if not life.attempt and parent is not None and not parent.launcher:
            life.attempt = parent.attempt


def _is_reported(life: Life, report: Report, moment: Moment) -> bool:
    return (
        not life.attempt
        and not life.launcher
        and life.node == report.node
        and report.pid in life.inner
        and life.born_ms <= moment.at_ms
        and (life.gone_ms >= moment.after_ms or report.state != "running")
    )


def _overlap(parent: Life, child: Life) -> bool:
    return parent.born_ms <= child.born_ms <= parent.gone_ms
