"""The parts of docs/design.md that are made from the code: keys of etcd, profiles, transitions of a switch.

`python -m tests.support.design_page` writes them; `tests/test_design.py` holds page and code together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from supervisor.contract import keys
from supervisor.contract.timing import DEFAULT, FAST
from supervisor.control.decide.switch import Moves, SwitchState, Transition

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/design.md"
DURATIONS = (
    ("d_ms", "D"),
    ("suspect_ms", "silence after which a node is suspected"),
    ("beat_ms", "between two beats of an agent, and two reads"),
    ("pull_ms", "between two pulls of a launcher"),
    ("rpc_deadline_ms", "deadline of a call"),
    ("etcd_failover_ms", "etcd changes its leader"),
    ("agent_restart_ms", "an agent restarts"),
    ("kill_time_ms", "a task is killed"),
    ("drift_ms", "clocks drift apart within D"),
)


def key_table() -> str:
    """Each family of keys: what it holds, what a write compares, how large it may be, when it goes."""
    rows = ["| key | record | a write compares | at most | removed by |", "|---|---|---|---|---|"]
    for each in keys.FAMILIES:
        shape = "/".join(part.upper() for part in each.shape.split("/")) if each.shape else ""
        size = f"{each.max_bytes // 1024} KiB"
        cells = (f"`{each.prefix}{shape}`", f"`{each.record.__name__}`", each.writer.value, size)
        rows.append(f"| {' | '.join(cells)} | {each.removed.value} |")
    return "\n".join(rows) + "\n"


def profile_table() -> str:
    """The durations of the two profiles."""
    rows = ["| duration | `fast`: a LAN | `default`: etcd as installed |", "|---|---|---|"]
    for name, meaning in DURATIONS:
        rows.append(f"| {meaning} (`{name}`) | {getattr(FAST, name)} | {getattr(DEFAULT, name)} |")
    return "\n".join(rows) + "\n"


SWITCH = "supervisor/control/decide/switch.py"
CALLS = {Transition.SUBMIT: r"\bfirst_switch\(", Transition.DELETE: r"\bcheck_removal\("}
"""The transitions that have a function of their own; `turn` is told the name of any other."""
ANY = set(SwitchState) - {SwitchState.NONE, SwitchState.PARKED}


def transition_table() -> str:
    """Each transition of a switch, and the modules that decide on it."""
    rows = [
        "| transition | from | to | when | may change | rules | decided in |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in Transition:
        row, first = each.value, True
        for sources, targets in _grouped(row.moves):
            cells = [""] * 5
            if first:
                changes = ", ".join(f"`{name}`" for name in row.changes) or "the whole record"
                modules = ", ".join(f"`{path}`" for path in deciders(each))
                cells = [f"`{each.name.lower()}`", row.when, changes, ", ".join(row.rules), modules]
            rows.append(f"| {cells[0]} | {sources} | {targets} | {' | '.join(cells[1:])} |")
            first = False
    return "\n".join(rows) + "\n"


def deciders(transition: Transition) -> list[str]:
    """The modules that make a transition."""
    call = CALLS.get(transition, rf"Transition\.{transition.name}\b")
    paths = (str(path.relative_to(ROOT)) for path in sorted((ROOT / "supervisor").rglob("*.py")))
    return [path for path in paths if path != SWITCH and re.search(call, (ROOT / path).read_text())]


def _grouped(moves: Moves) -> list[tuple[str, str]]:
    """The cells `from` and `to`: one pair for the states that lead to the same ones."""
    if all(targets == (source,) for source, targets in moves.items()):
        return [(_states(moves), "the same")]
    groups: dict[tuple[SwitchState, ...], list[SwitchState]] = {}
    for source, targets in moves.items():
        groups.setdefault(targets, []).append(source)
    return [(_states(sources), _states(targets)) for targets, sources in groups.items()]


def _states(states: Iterable[SwitchState]) -> str:
    found = list(states)
    return "any other" if set(found) == ANY else "; ".join(f"`{each.value}`" for each in found)


def diagram() -> str:
    """The phases of a job, and the transitions from one to another; `park` and `release` are left out."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for each in Transition:
        for source, target in ((old, new) for old, to in each.value.moves.items() for new in to):
            ends = _phase(source), _phase(target)
            restarts = "incident" in each.value.changes
            if SwitchState.PARKED not in (source, target) and (ends[0] != ends[1] or restarts):
                names = arrows.setdefault(ends, [])
                names += [each.name.lower()] if each.name.lower() not in names else []
    lines = [f"    {old} --> {new}: {', '.join(names)}" for (old, new), names in arrows.items()]
    return "\n".join(("```mermaid", "stateDiagram-v2", *lines, "```")) + "\n"


def _phase(state: SwitchState) -> str:
    return "[*]" if state is SwitchState.NONE else state.value.partition(",")[0]


TABLES = {
    "keys": key_table,
    "profiles": profile_table,
    "diagram": diagram,
    "transitions": transition_table,
}


def part(page: str, name: str) -> str:
    """The part of the page between the two marks of this name."""
    _, begin, rest = page.partition(f"<!-- {name}: begin -->\n")
    found, end, _ = rest.partition(f"<!-- {name}: end -->\n")
    assert begin, f"no mark for {name}"
    assert end, f"no mark for the end of {name}"
    return found


def filled(page: str) -> str:
    """The page with the present tables in it."""
    for name, table in TABLES.items():
        begin = f"<!-- {name}: begin -->\n"
        page = page.replace(f"{begin}{part(page, name)}", f"{begin}{table()}", 1)
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
