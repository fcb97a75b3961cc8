"""The files of a directory of strikes: which causes lead to which points, and the strikes so far.

The next call goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

STRIKES = "strikes.json"
NO_TIME, ILL, NOBODY = "there was no time", "the job was not well", "nobody came there again"
NOT_REACHED = "nothing that happens here leads there"

Plan = Mapping[str, Sequence[str]]
"""Points, and the names of causes that lead to each."""


@dataclass(slots=True)
class Strikes:
    """`strikes.json`: the points at which daemons were killed, and of the others, why not."""

    struck: list[str] = field(default_factory=list)
    missed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> Strikes:
        """The strikes in the directory; none without a file. Raises ValueError, KeyError for another file."""
        body = json.loads(_text(directory / STRIKES, '{"struck": [], "missed": {}}'))
        return cls(
            [str(each) for each in body["struck"]], {str(a): str(b) for a, b in body["missed"].items()}
        )

    def write(self, directory: Path) -> None:
        """Replace DIRECTORY/strikes.json."""
        (directory / STRIKES).write_text(json.dumps(asdict(self), indent=1) + "\n")

    def take(self, points: Iterable[str]) -> None:
        """These were struck, too."""
        for point in points:
            self.missed.pop(point, None)
            if point not in self.struck:
                self.struck.append(point)

    def miss(self, points: Mapping[str, str]) -> None:
        """These were not, and why."""
        self.missed |= {point: why for point, why in points.items() if point not in self.struck}

    def by_reason(self) -> dict[str, list[str]]:
        """The points that were missed, by why."""
        found: dict[str, list[str]] = {}
        for point, why in sorted(self.missed.items()):
            found.setdefault(why, []).append(point)
        return found


@dataclass(slots=True)
class Survey:
    """`leads-GROUND.json`: of each cause that was tried there, the points to which it has led."""

    path: Path
    reached: dict[str, list[str]]

    @classmethod
    def read(cls, directory: Path, ground: str) -> Survey:
        """The survey in the directory; empty without a file. Raises ValueError for another file."""
        path = directory / f"leads-{ground}.json"
        body = json.loads(_text(path, "{}"))
        return cls(path, {str(cause): [str(point) for point in points] for cause, points in body.items()})

    def take(self, cause: str, points: Iterable[str]) -> None:
        """Remember it, there too."""
        self.reached[cause] = sorted(points)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.reached, indent=1) + "\n")

    def plan(self, causes: Iterable[str]) -> Plan:
        """Point -> the causes that lead to it, in this order."""
        found: dict[str, list[str]] = {}
        for cause in causes:
            for point in self.reached.get(cause, ()):
                found.setdefault(point, []).append(cause)
        return found


def _text(path: Path, empty: str) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return empty
