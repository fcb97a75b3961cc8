"""`python -m benchmarks.support.plot SCALE.json LOAD.json... >docs/scale.svg`: the curve of docs/scale.md.

Of the documents that `benchmarks.scale` and `benchmarks.load` print. Both axes are logarithmic.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 210, 30, 50
NODES = (10, 10_000)
COLOURS = ("#1f6feb", "#cf222e", "#1a7f37", "#9a6700", "#8250df")
TASKS = 4
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the plot."""

    name: str
    points: Sequence[Point]


def lines_of(documents: Sequence[Mapping[str, object]]) -> list[Line]:
    """The lines of these documents, each by the number of nodes."""
    found: dict[str, list[Point]] = {}
    for document in documents:
        for name, nodes, value in _values(document):
            if value > 0:
                found.setdefault(name, []).append((nodes, value))
    return [Line(name, sorted(points)) for name, points in found.items()]


def _values(document: Mapping[str, object]) -> Iterator[tuple[str, float, float]]:
    """Name, nodes and value."""
    found = json.loads(json.dumps(document))
    if found["benchmark"] == "scale":
        for row in found["leaders"]["now"]:
            nodes = row["jobs"] * TASKS + row["tasks_of_one_more"]
            if not row["tasks_of_one_more"]:
                yield "a look in memory, ms", nodes, row["look_ms"]
    elif "at rest" in found:
        rest, nodes = found["at rest"]["processes"], found["settings"]["agents"]
        yield "leader, % of a core", nodes, rest[found["at rest"]["leader"]]["percent"]
        etcd = [each["percent"] for name, each in rest.items() if name.startswith("etcd")]
        yield "etcd (all members), % of a core", nodes, sum(etcd)
        if "result" in found.get("kills", {}):
            yield (
                "exit report to restart, p50 ms",
                nodes,
                found["kills"]["result"]["report_to_restart_ms"]["p50"],
            )


def svg(lines: Sequence[Line]) -> str:
    """The plot."""
    values = [value for line in lines for _, value in line.points]
    low, high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {view} font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for nodes in _decades(*NODES):
        x = _place(nodes, *NODES, LEFT, WIDTH - RIGHT)
        parts += [_rule(x, TOP, x, HEIGHT - BOTTOM), _text(x, HEIGHT - BOTTOM + 18, f"{nodes:g}", "middle")]
    for value in _decades(low, high):
        y = _place(value, low, high, HEIGHT - BOTTOM, TOP)
        parts += [_rule(LEFT, y, WIDTH - RIGHT, y), _text(LEFT - 8, y + 4, f"{value:g}", "end")]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "nodes", "middle"))
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        places = [
            (_place(nodes, *NODES, LEFT, WIDTH - RIGHT), _place(value, low, high, HEIGHT - BOTTOM, TOP))
            for nodes, value in line.points
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        y = TOP + 10 + 20 * number
        parts.append(f'<circle cx="{WIDTH - RIGHT + 16}" cy="{y - 4}" r="4" fill="{colour}"/>')
        parts.append(_text(WIDTH - RIGHT + 26, y, line.name, "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _decades(low: float, high: float) -> list[float]:
    first, last = round(math.log10(low)), round(math.log10(high))
    return [10.0**power for power in range(first, last + 1)]


def _place(value: float, low: float, high: float, begin: float, end: float) -> float:
    share = (math.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low))
    return begin + share * (end - begin)


def _rule(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="#d0d7de"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def main(paths: Sequence[str]) -> None:
    """Print the plot of these documents."""
    sys.stdout.write(svg(lines_of([json.loads(Path(each).read_text()) for each in paths])))


if __name__ == "__main__":
    main(sys.argv[1:])
