"""`python -m tests.attacks.table > docs/attacks.md`: every attack, wherever it can be made.

Progress goes to standard error, the outcomes also to a JSON file, which is written after each attack. What it
holds of others stays when a run is interrupted, with `--only` for some attacks, and with `--where` for some
kinds of node. Exit code 1: an attack did not end as it must; the table says so too.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.support.figures import machine
from chaos.cluster.program import REPOSITORY
from supervisor.contract import codec
from tests.attacks.attack import Attack, Where
from tests.attacks.corpus import ATTACKS, KINDS
from tests.attacks.run import Outcome, attacks, elsewhere

JSON_FILE = REPOSITORY / "docs" / "attacks.json"
PAGE_FILE = REPOSITORY / "docs" / "attacks.md"
TEXT_FILE = Path(__file__).with_name("attacks.md")
MARK = "<!-- table -->"
_SAID = 150
_SHOWN = {"harmless": "no effect", "stopped": "no effect, stopped"}
_PLACE = re.compile(r"^job\.yaml(:\d+)?: ")


@dataclass(frozen=True, slots=True)
class Document:
    """The JSON file. `machine` is that of the last run."""

    machine: dict[str, str] = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the attacks, print the page, and say how it went."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.table")
    parser.add_argument("--only", nargs="+", choices=[each.name for each in ATTACKS], default=[])
    parser.add_argument("--where", nargs="+", choices=[each.name for each in Where], default=[])
    parser.add_argument("--render", action="store_true", help="make none, print what the JSON file holds")
    flags = parser.parse_args(arguments)
    for where in Where:
        chosen = attacks(where, flags.only)
        if flags.render or not chosen or (flags.where and where.name not in flags.where):
            continue
        for outcome in elsewhere(where, chosen):
            _keep(outcome)
            found = "; ".join(outcome.problems) or outcome.end
            sys.stderr.write(f"{where.name} {outcome.name}: {found}, {outcome.seconds} s\n")
    document = read(JSON_FILE)
    sys.stdout.write(page(document))
    return 1 if any(each.problems for each in document.outcomes) else 0


def _keep(outcome: Outcome) -> None:
    """Runs of several kinds of node may go on at a time."""
    directory = os.open(JSON_FILE.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        _write(outcome)
    finally:
        os.close(directory)


def _write(outcome: Outcome) -> None:
    info = {name: str(value) for name, value in machine().items()}
    found = {(each.name, each.where): each for each in read(JSON_FILE).outcomes}
    found[outcome.name, outcome.where] = outcome
    places = [(attack.name, where.name) for attack in ATTACKS for where in Where]
    document = Document(info, tuple(found[place] for place in places if place in found))
    JSON_FILE.write_text(json.dumps(codec.to_plain(document), indent=1) + "\n")


def read(file: Path) -> Document:
    """The outcomes of earlier runs; none when there is no such file. Raises IncompatibleRecord."""
    if not file.exists():
        return Document()
    return codec.from_plain(Document, json.loads(file.read_text()))


def page(document: Document) -> str:
    """The whole of docs/attacks.md."""
    found = {(each.name, each.where): each for each in document.outcomes}
    said = document.machine
    lines = [f"Made on {said['date']}, {said['cores']} cores." if said else "Not made yet.", ""]
    heads = [where.value for where in Where]
    for title, kind in KINDS:
        lines += [
            f"## {title}",
            "",
            f"| attack | it tries | {' | '.join(heads)} | what is said |",
            "|---" * (len(heads) + 3) + "|",
            *(_line(attack, found) for attack in kind),
            "",
        ]
    return TEXT_FILE.read_text().replace(MARK, "\n".join(lines).rstrip())


def _line(attack: Attack, found: dict[tuple[str, str], Outcome]) -> str:
    outcomes = [found.get((attack.name, where.name)) for where in Where]
    cells = [_cell(attack, where, each) for where, each in zip(Where, outcomes, strict=True)]
    told = next((_told(each.said) for each in outcomes if each and each.end in ("refused", "failed")), "")
    return f"| `{attack.name}` | {_plain(attack.tries)} | {' | '.join(cells)} | {told} |"


def _cell(attack: Attack, where: Where, outcome: Outcome | None) -> str:
    if where in attack.not_in:
        return attack.not_in[where]
    if outcome is None:
        return "not made yet"
    if outcome.problems:
        return f"**has an effect**: {_told('; '.join(outcome.problems))}"
    return _SHOWN.get(outcome.end, outcome.end)


def _told(text: str) -> str:
    text = _PLACE.sub("", text.strip().partition("\n")[0])
    return _plain(text if len(text) <= _SAID else f"{text[:_SAID]}...")


def _plain(text: str) -> str:
    """One cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;").replace("{", "&#123;")


if __name__ == "__main__":
    sys.exit(main())
