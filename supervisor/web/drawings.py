"""Drawings of a job, as numbers for the templates: its time line and the lineage of its checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.incident import PHASES, Outcome
from supervisor.contract.views.jobs import CheckpointView, IncidentView

LEAST_SHARE = 0.25
"""Least width of a mark, in per cent of the time line."""
LEAST_SPAN_MS = 1_000
TICKS = 6
STEPS_MS = tuple(
    count * unit
    for unit, counts in (
        (1, (100, 200, 500)),
        (1_000, (1, 2, 5, 10, 20, 30)),
        (60_000, (1, 2, 5, 10, 20, 30)),
        (3_600_000, (1, 2, 3, 6, 12)),
        (86_400_000, (1, 2, 7, 14, 28, 91, 364)),
    )
    for count in counts
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar: a phase of a recovery. `x` and `width` are per cent of the whole."""

    name: str
    x: float
    width: float
    ms: int


@dataclass(frozen=True, slots=True)
class Mark:
    """An incident on a time line."""

    incident: IncidentView
    x: float
    width: float
    pieces: tuple[Piece, ...]
    begins_ms: int
    ends_ms: int


@dataclass(frozen=True, slots=True)
class Band:
    """A generation on a time line."""

    generation: int
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A moment on the axis."""

    x: float
    wall_ms: int


@dataclass(frozen=True, slots=True)
class TimeLine:
    """The generations and incidents of a job from one moment to another. `all_ms`: the span of all."""

    from_ms: int
    to_ms: int
    all_ms: tuple[int, int]
    bands: tuple[Band, ...]
    marks: tuple[Mark, ...]
    ticks: tuple[Tick, ...]

    @property
    def span_ms(self) -> int:
        """Its length."""
        return self.to_ms - self.from_ms

    def zoomed(self, factor: float) -> tuple[int, int]:
        """The span around the same middle, that much longer."""
        middle, half = (self.from_ms + self.to_ms) // 2, max(LEAST_SPAN_MS, int(self.span_ms * factor)) // 2
        return middle - half, middle + half

    def shifted(self, share: float) -> tuple[int, int]:
        """The span that is so much of its length later."""
        by_ms = int(self.span_ms * share)
        return self.from_ms + by_ms, self.to_ms + by_ms


def begins_ms(incident: IncidentView) -> int:
    """The moment of the failure, before it was detected."""
    return incident.wall_ms - incident.phases_ms.get("detected", 0)


def ends_ms(incident: IncidentView, now_ms: int) -> int:
    """The moment at which it was over."""
    if incident.outcome is Outcome.OPEN:
        return max(now_ms, begins_ms(incident) + incident.total_ms)
    return begins_ms(incident) + incident.total_ms


def pieces_of(incident: IncidentView, total_ms: int = 0) -> tuple[Piece, ...]:
    """The phases of a recovery, as parts of `total_ms`; by default of its own length."""
    known = [(name, incident.phases_ms[name]) for name in PHASES if name in incident.phases_ms]
    whole = total_ms or sum(ms for _, ms in known)
    pieces, at = list[Piece](), 0
    for name, ms in known:
        if ms > 0 and whole > 0:
            pieces.append(Piece(name, 100 * at / whole, 100 * ms / whole, ms))
        at += ms
    return tuple(pieces)


def time_line(
    incidents: Sequence[IncidentView], now_ms: int, from_ms: int | None = None, to_ms: int | None = None
) -> TimeLine | None:
    """The time line of a job from its submission until now, or of a part of it; None without an incident."""
    if not incidents:
        return None
    first = min(map(begins_ms, incidents))
    whole = (first, max(now_ms, first + LEAST_SPAN_MS))
    begin = whole[0] if from_ms is None else from_ms
    end = max(whole[1] if to_ms is None else to_ms, begin + LEAST_SPAN_MS)
    span = end - begin

    def at(moment: int) -> float:
        return min(100.0, max(0.0, 100 * (moment - begin) / span))

    marks = []
    for each in incidents:
        starts, stops = begins_ms(each), ends_ms(each, now_ms)
        if stops < begin or starts > end:
            continue
        width = max(LEAST_SHARE, at(stops) - at(starts))
        pieces, passed = list[Piece](), starts
        for piece in pieces_of(each):
            x, until = at(passed), at(passed + piece.ms)
            passed += piece.ms
            if until > x:
                pieces.append(Piece(piece.name, x, until - x, piece.ms))
        marks.append(Mark(each, min(at(starts), 100 - width), width, tuple(pieces), starts, stops))
    return TimeLine(
        begin, end, whole, _bands(incidents, begin, end, now_ms), tuple(marks), _ticks(begin, end)
    )


def _bands(incidents: Sequence[IncidentView], begin: int, end: int, now_ms: int) -> tuple[Band, ...]:
    """The generations: each begins with the switch of the incident that made it."""
    starts: dict[int, int] = {}
    for each in incidents:
        if "switched" in each.phases_ms:
            until = PHASES.index("switched") + 1
            switched = begins_ms(each) + sum(each.phases_ms.get(name, 0) for name in PHASES[:until])
            starts.setdefault(each.generation, switched)
    bands, ordered = list[Band](), sorted(starts.items(), key=lambda item: item[1])
    for index, (generation, starts_ms) in enumerate(ordered):
        stops_ms = ordered[index + 1][1] if index + 1 < len(ordered) else now_ms
        x = min(100.0, max(0.0, 100 * (starts_ms - begin) / (end - begin)))
        until_x = min(100.0, max(0.0, 100 * (stops_ms - begin) / (end - begin)))
        if until_x > x:
            bands.append(Band(generation, x, until_x - x))
    return tuple(bands)


def _ticks(begin: int, end: int) -> tuple[Tick, ...]:
    step = next((each for each in STEPS_MS if (end - begin) / each <= TICKS), (end - begin) // TICKS)
    first = -(-begin // step) * step
    return tuple(Tick(100 * (moment - begin) / (end - begin), moment) for moment in range(first, end, step))[
        : 4 * TICKS
    ]


ROW, LEFT, RIGHT = 34, 46, 24
MOST_ROWS, MOST_DOTS = 12, 60
LEAST_GAP = 16


@dataclass(frozen=True, slots=True)
class Dot:
    """A checkpoint in the drawing."""

    checkpoint: CheckpointView
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Line:
    """A line from a checkpoint to the one after it, or to the first of a generation that began from it."""

    x1: float
    y1: float
    x2: float
    y2: float
    on_lineage: bool


@dataclass(frozen=True, slots=True)
class Lineage:
    """The checkpoints of the last generations: a row for each, steps to the right."""

    width: float
    height: float
    dots: tuple[Dot, ...]
    lines: tuple[Line, ...]
    rows: tuple[tuple[int, float], ...]
    left_out: int


def lineage(checkpoints: Sequence[CheckpointView], width: float = 720) -> Lineage | None:
    """The drawing of a list of checkpoints, the newest first; None for an empty one."""
    shown = sorted(checkpoints, key=lambda each: each.ref)[-MOST_DOTS:]
    generations = sorted({each.ref.generation for each in shown})[-MOST_ROWS:]
    shown = [each for each in shown if each.ref.generation in generations]
    if not shown:
        return None
    steps = sorted({each.ref.step for each in shown})
    width = max(width, LEFT + RIGHT + LEAST_GAP * (len(steps) - 1))
    gap = (width - LEFT - RIGHT) / max(1, len(steps) - 1)
    x_of = {step: LEFT + gap * index for index, step in enumerate(steps)}
    y_of = {generation: ROW * (index + 0.6) for index, generation in enumerate(generations)}
    dots = {each.ref: Dot(each, x_of[each.ref.step], y_of[each.ref.generation]) for each in shown}
    return Lineage(
        width,
        ROW * len(generations) + 8,
        tuple(dots.values()),
        _lines(dots),
        tuple(y_of.items()),
        len(checkpoints) - len(shown),
    )


def _lines(dots: Mapping[CheckpointRef, Dot]) -> tuple[Line, ...]:
    lines, last = list[Line](), dict[int, Dot]()
    for ref, dot in dots.items():
        parent = dot.checkpoint.parent
        before = last.get(ref.generation) or (dots.get(parent) if parent is not None else None)
        if before is not None:
            kept = dot.checkpoint.on_lineage and before.checkpoint.on_lineage
            lines.append(Line(before.x, before.y, dot.x, dot.y, kept))
        last[ref.generation] = dot
    return tuple(lines)


@dataclass(slots=True)
class Picked:
    """The part of a list that is shown on one page."""

    names: list[str] = field(default_factory=list)
    found: int = 0
    page: int = 1
    pages: int = 1


def picked(names: Sequence[str], page: int, size: int) -> Picked:
    """The page of a list, or its last page if it has fewer."""
    pages = max(1, -(-len(names) // size))
    page = min(max(1, page), pages)
    return Picked(list(names[(page - 1) * size : page * size]), len(names), page, pages)
