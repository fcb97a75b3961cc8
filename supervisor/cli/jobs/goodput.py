"""The goodput ledger of a job as lines for people (docs/goodput.md)."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.contract.job.goodput import Category
from supervisor.contract.views.jobs import GoodputView

WIDTH = 40
"""Characters of the bar that stands for all of the time."""
NAMES = {
    Category.PRODUCTIVE: "productive",
    Category.REDOING: "making lost steps again",
    Category.SAVING: "saving",
    Category.STARTING: "starting",
    Category.DETECT: "recovering: noticing",
    Category.DECIDE: "recovering: deciding",
    Category.PREPARE: "recovering: preparing tasks",
    Category.FENCE: "recovering: waiting for the fence",
    Category.RESTORING: "recovering: bringing the checkpoint",
    Category.START: "recovering: starting tasks",
    Category.FIRST_STEP: "recovering: to the first step",
    Category.WAITING_ROOM: "waiting for room",
    Category.WAITING_STORE: "waiting for the store",
    Category.STOPPED: "stopped",
}
RECOVERING = (
    *(Category.DETECT, Category.DECIDE, Category.PREPARE, Category.FENCE),
    *(Category.RESTORING, Category.START, Category.FIRST_STEP),
)
COLUMNS: Sequence[tuple[str, Sequence[Category]]] = (
    ("productive", (Category.PRODUCTIVE,)),
    ("redoing", (Category.REDOING,)),
    ("saving", (Category.SAVING,)),
    ("starting", (Category.STARTING,)),
    ("recovering", RECOVERING),
    ("waiting", (Category.WAITING_ROOM, Category.WAITING_STORE)),
    ("stopped", (Category.STOPPED,)),
)
"""The columns of the table of all jobs."""


def line(goodput: GoodputView) -> str:
    """One line: `goodput: 93.4 % of 1 h 02 min; saving 2.1 %, starting 4.5 %`."""
    spent = [
        f"{name} {percent(sum_of(goodput, of), goodput.elapsed_ms)}"
        for name, of in COLUMNS[1:]
        if sum_of(goodput, of) * 1000 >= goodput.elapsed_ms > 0
    ]
    now = f"; now {NAMES[Category(goodput.now)]}" if goodput.now not in ("", "productive") else ""
    rest = f"; {', '.join(spent)}" if spent else ""
    return f"goodput: {share(goodput)} of {duration(goodput.elapsed_ms)}{rest}{now}"


def share(goodput: GoodputView | None) -> str:
    """The productive part of a job's time: `93.4 %`, or a dash while nothing is counted."""
    return f"{100 * goodput.share:.1f} %" if goodput is not None else "-"


def lines(goodput: GoodputView) -> list[str]:
    """A line for each category: its name, its time, its share and a bar."""
    width = max(len(name) for name in NAMES.values())
    return [
        f"{NAMES[category].ljust(width)}  {duration(spent_ms):>12}  "
        f"{percent(spent_ms, goodput.elapsed_ms):>7}  {_bar(spent_ms, goodput.elapsed_ms)}".rstrip()
        for category in NAMES
        if (spent_ms := goodput.spent_ms.get(category.value, 0))
    ]


def sum_of(goodput: GoodputView, categories: Sequence[Category]) -> int:
    """The time that was spent on some categories."""
    return sum(goodput.spent_ms.get(each.value, 0) for each in categories)


def percent(part_ms: int, whole_ms: int) -> str:
    """`4.5 %`."""
    return f"{100 * part_ms / whole_ms:.1f} %" if whole_ms else "-"


def duration(milliseconds: int) -> str:
    """`0.42 s`, `12.3 s`, `5 min 03 s`, `3 h 20 min`, `2 d 03 h`."""
    seconds = milliseconds / 1000
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for most, unit, of, small in ((3600, "min", 60, "s"), (86_400, "h", 3600, "min")):
        if whole < most:
            return f"{whole // of} {unit} {whole % of * 60 // of:02d} {small}"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"


def _bar(part_ms: int, whole_ms: int) -> str:
    return "#" * max(1, round(WIDTH * part_ms / whole_ms)) if whole_ms else ""
