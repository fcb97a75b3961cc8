"""The verdicts on mutants, and the file that keeps them from one run to the next."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path


class Fate(Enum):
    """The fate of a mutant. Only CAUGHT is a success."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    UNPROVEN = "unproven"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a mutant.

    Attributes:
        checker: the promise that noticed; empty when none did.
        at: the seed, point or story that showed it.
        tries: runs up to that one, and with it.
        took_s: wall time of these runs.
        text: what the checker said, or why nothing is proven.
        others: promises, not its own, that were broken on the way, and kinds of runs that proved nothing.
    """

    name: str
    fate: Fate
    checker: str = ""
    at: str = ""
    tries: int = 0
    took_s: float = 0.0
    text: str = ""
    others: tuple[str, ...] = ()


def save(path: Path, verdicts: Iterable[Verdict]) -> None:
    """Write them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(each), "fate": each.fate.value, "took_s": round(each.took_s, 1)} for each in verdicts]
    path.write_text(json.dumps({"mutants": rows}, indent=1) + "\n")


def load(path: Path) -> dict[str, Verdict]:
    """The verdicts of earlier runs, by mutant's name; empty without a file."""
    if not path.exists():
        return {}
    found: dict[str, Verdict] = {}
    for row in json.loads(path.read_text())["mutants"]:
        verdict = Verdict(
            row["name"],
            Fate(row["fate"]),
            row["checker"],
            row["at"],
            row["tries"],
            row["took_s"],
            row["text"],
            tuple(row["others"]),
        )
        found[verdict.name] = verdict
    return found
