"""The tables of docs/metrics.md, as made from the metrics that the daemons define.

`python -m tests.support.metrics_page` writes them; `tests/metrics/test_page.py` holds the two together.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from supervisor.adapters.metrics.samples import Metric

PAGE = Path(__file__).resolve().parents[2] / "docs/metrics.md"
BEGIN, END = "<!-- metrics: begin -->\n", "<!-- metrics: end -->\n"
SECTIONS = {
    "Both daemons": ("supervisor.adapters.metrics.daemon",),
    "Each supervisor": ("supervisor.metrics.own",),
    "The supervisor that leads": ("supervisor.metrics.cluster", "supervisor.metrics.incidents"),
    "Each agent": ("agent.metrics",),
}


def metrics_of(section: str) -> list[Metric]:
    """The metrics that the modules of a section define, in the order of the source."""
    found: list[Metric] = []
    for name in SECTIONS[section]:
        module = importlib.import_module(name)
        known = (each for each in vars(module).values() if isinstance(each, Metric))
        found += [each for each in known if _is_of(each, section)]
    return found


def _is_of(metric: Metric, section: str) -> bool:
    """Whether it is not imported from a module of the first section."""
    common = importlib.import_module(SECTIONS["Both daemons"][0])
    return section == "Both daemons" or metric not in vars(common).values()


def all_metrics() -> list[Metric]:
    """All metrics of both daemons."""
    return [each for section in SECTIONS for each in metrics_of(section)]


def render() -> str:
    """A table for each section."""
    lines: list[str] = []
    for section in SECTIONS:
        lines += [f"### {section}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|"]
        for each in metrics_of(section):
            labels = ", ".join(f"`{label}`" for label in each.labels)
            lines.append(f"| `{each.name}` | {each.kind.value} | {labels} | {each.text} |")
        lines.append("")
    return "\n".join(lines)


def filled(page: str) -> str:
    """The page with the present tables in it."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{render()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
