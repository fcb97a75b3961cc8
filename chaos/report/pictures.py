"""Pictures of a run and of durations, as SVG that takes its colours from the page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chaos.report.markup import Markup, el, join
from chaos.report.read import PHASES, Run, Stretch

WIDTH = 960.0
LABEL = 130.0
ROW = 20.0
TOP = 22.0
BEFORE_MS, AFTER_MS = 3_000.0, 2_000.0
_LETTER = 6.2
_GRID_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_MOST_GRID = 12


@dataclass(frozen=True, slots=True)
class _Axis:
    """From milliseconds to places."""

    begin_ms: float
    end_ms: float

    def at(self, ms: float) -> float:
        share = (min(max(ms, self.begin_ms), self.end_ms) - self.begin_ms) / (self.end_ms - self.begin_ms)
        return LABEL + share * (WIDTH - LABEL)

    def bar(self, begin_ms: float, end_ms: float, row: int, kind: str, text: str, tip: str = "") -> Markup:
        """A bar in a row, with its text where there is room for it; the whole text shows on a touch."""
        x, width = self.at(begin_ms), max(1.5, self.at(end_ms) - self.at(begin_ms))
        y = TOP + row * ROW
        room = int((width - 4) / _LETTER)
        shown = text if len(text) <= room else text[: max(0, room - 1)] + "…" if room > 3 else ""
        lasted = f"{tip or text}: {(end_ms - begin_ms) / 1000:.2f} s"
        return el(
            "g",
            el("title", lasted),
            el("rect", x=x, y=y + 2, width=width, height=ROW - 4, rx=2, class_=kind),
            el("text", shown, x=x + 3, y=y + ROW - 6.5, class_="on" if kind.startswith("phase ") else "in")
            if shown
            else "",
        )


def timeline(run: Run) -> Markup:
    """The picture of a run over time: faults, incidents by phases, leaders, generations, attempts."""
    axis = _axis(run)
    rows = list(_rows(run))
    height = TOP + len(rows) * ROW + 6
    parts: list[Markup] = [*_grid(axis, height)]
    for number, (label, stretches) in enumerate(rows):
        parts.append(el("text", label[:22], x=0, y=TOP + number * ROW + ROW - 6.5, class_="label"))
        parts += [
            axis.bar(each.begin_ms, each.end_ms, number, each.kind, each.text, each.tip)
            for each in stretches
            if each.end_ms > axis.begin_ms and each.begin_ms < axis.end_ms
        ]
    parts += _moments(run, axis, height)
    title = el("title", f"{run.file.id}: what happened, in seconds since the first fault")
    return el(
        "svg", title, *parts, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", class_="timeline", width=WIDTH
    )


@dataclass(frozen=True, slots=True)
class _Bar:
    begin_ms: float
    end_ms: float
    kind: str
    text: str
    tip: str = ""


def _axis(run: Run) -> _Axis:
    file = run.file
    begins = [fault.begin_ms for fault in file.faults if fault.begin_ms >= 0]
    begin_ms = min(begins, default=max(file.healthy_ms, file.began_ms)) - BEFORE_MS
    ends = [file.converged_ms, file.healed_ms, *(each.at_ms for each in file.violations)]
    end_ms = max(ends) if max(ends) > begin_ms else file.ended_ms
    return _Axis(begin_ms, max(end_ms, begin_ms + BEFORE_MS) + AFTER_MS)


def _rows(run: Run) -> Iterator[tuple[str, list[_Bar]]]:
    end_ms = max(run.file.ended_ms, _axis(run).end_ms)
    for fault in run.file.faults:
        until_ms = fault.heal_ms if fault.heal_ms >= 0 else end_ms
        tip = f"{fault.name} of {fault.target}: {fault.evidence}"
        yield "fault", [_Bar(fault.begin_ms, until_ms, "fault", f"{fault.name} {fault.target}", tip)]
    for incident in run.story.incidents:
        if incident.cause == "submitted":
            continue
        at_ms, bars = incident.began_ms, list[_Bar]()
        for phase, lasted_ms in incident.phases_ms.items():
            tip = f"{incident.cause} of {incident.task} ({incident.scope}): {phase}"
            bars.append(_Bar(at_ms, at_ms + lasted_ms, f"phase p{_colour(phase)}", phase, tip))
            at_ms += lasted_ms
        yield f"{incident.cause}", bars
    names = dict.fromkeys(("leader", "job", *(each.row for each in run.story.stretches)))
    for row in names:
        found = [each for each in run.story.stretches if each.row == row]
        if found:
            kind = {"leader": "leads", "job": "phase-of-job"}.get(row, "runs")
            yield row, [_Bar(*_span(each, found, end_ms), kind, each.text) for each in found]


def _colour(phase: str) -> int:
    """The number of its colour in the page's key; a phase that is not known has the last."""
    return PHASES.index(phase) if phase in PHASES else len(PHASES) - 1


def _span(stretch: Stretch, row: Sequence[Stretch], end_ms: float) -> tuple[float, float]:
    """The begin and end of a stretch; without a known end, it lasts until the next one in its row begins."""
    later = [each.begin_ms for each in row if each.begin_ms > stretch.begin_ms]
    return stretch.begin_ms, stretch.end_ms if stretch.end_ms is not None else min(later, default=end_ms)


def _grid(axis: _Axis, height: float) -> Iterator[Markup]:
    zero_ms = axis.begin_ms + BEFORE_MS
    lasts_s = (axis.end_ms - axis.begin_ms) / 1000
    step_s = next((each for each in _GRID_S if lasts_s / each <= _MOST_GRID), _GRID_S[-1])
    first = math.ceil((axis.begin_ms - zero_ms) / 1000 / step_s)
    for number in range(first, int((axis.end_ms - zero_ms) / 1000 / step_s) + 1):
        x = axis.at(zero_ms + number * step_s * 1000)
        yield el("line", x1=x, y1=TOP - 4, x2=x, y2=height, class_="grid")
        if x < WIDTH - 3 * _LETTER:
            yield el("text", f"{number * step_s} s", x=x, y=TOP - 9, class_="tick")


def _moments(run: Run, axis: _Axis, height: float) -> Iterator[Markup]:
    moments = [
        (run.file.healed_ms, "healed", "every fault is healed"),
        (run.file.converged_ms, "well", "the job is healthy again"),
        *((each.at_ms, "broken", f"{each.promise}: {each.text}") for each in run.file.violations),
        *((at_ms, "commit", "a checkpoint is committed") for at_ms in run.story.commits_ms),
    ]
    for at_ms, kind, text in moments:
        if axis.begin_ms <= at_ms <= axis.end_ms:
            x = axis.at(at_ms)
            y1 = height - 8 if kind == "commit" else TOP - 4
            yield el(
                "g", el("title", text), el("line", x1=x, y1=y1, x2=x, y2=height, class_=f"moment {kind}")
            )


STRIP_WIDTH, STRIP_HEIGHT = 260.0, 18.0
FROM_MS, TO_MS = 1.0, 120_000.0
_DECADES = ((1, "1 ms"), (10, "10"), (100, "100"), (1_000, "1 s"), (10_000, "10 s"), (100_000, "100 s"))


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the others does not exceed; there is one."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def strip(values: Sequence[float]) -> Markup:
    """Each duration as a dot, from 1 ms to 2 min on a logarithmic scale, and the median as a line."""
    middle = STRIP_HEIGHT / 2
    ticks = [el("line", x1=_log(ms), y1=0, x2=_log(ms), y2=STRIP_HEIGHT, class_="grid") for ms, _ in _DECADES]
    dots = [el("circle", cx=_log(value), cy=middle, r=2.6, class_="dot") for value in sorted(values)]
    median = _log(quantile(values, 0.5))
    line = el("line", x1=median, y1=1, x2=median, y2=STRIP_HEIGHT - 1, class_="median")
    said = ", ".join(seconds(value) for value in sorted(values)[:40])
    return el(
        "svg",
        el("title", f"{len(values)}: {said}"),
        join(*ticks, *dots, line),
        viewBox=f"0 0 {STRIP_WIDTH:g} {STRIP_HEIGHT:g}",
        width=STRIP_WIDTH,
        height=STRIP_HEIGHT,
        role="img",
        class_="strip",
    )


def scale() -> Markup:
    """The scale of a strip, in powers of ten."""
    words = [
        el(
            "text",
            text,
            x=_log(ms),
            y=12,
            class_="tick" if 1 < ms < TO_MS / 10 else "end" if ms > 1 else "dim",
        )
        for ms, text in _DECADES
    ]
    box = f"0 0 {STRIP_WIDTH:g} {STRIP_HEIGHT:g}"
    return el("svg", *words, viewBox=box, width=STRIP_WIDTH, height=STRIP_HEIGHT, role="img", class_="strip")


def _log(ms: float) -> float:
    share = math.log(min(max(ms, FROM_MS), TO_MS) / FROM_MS) / math.log(TO_MS / FROM_MS)
    return 3 + share * (STRIP_WIDTH - 6)


def seconds(ms: float) -> str:
    """A duration for people."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 100_000 else f"{ms / 60_000:.1f} min"
