"""The tables of docs/design.md that are made from the code: keys of etcd, profiles.

`python -m tests.support.design_page` writes them; `tests/test_design.py` holds page and code together.
"""

from __future__ import annotations

from pathlib import Path

from supervisor.contract import keys
from supervisor.contract.timing import DEFAULT, FAST

PAGE = Path(__file__).resolve().parents[2] / "docs/design.md"
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


TABLES = {"keys": key_table, "profiles": profile_table}


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
