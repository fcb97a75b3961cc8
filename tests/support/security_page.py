"""The table of rights in docs/security.md, as made from `supervisor/contract/access.py`.

`python -m tests.support.security_page` writes it; `tests/test_gates.py` holds the two together.
"""

from __future__ import annotations

from pathlib import Path

from supervisor.contract.access import TABLE

PAGE = Path(__file__).resolve().parents[2] / "docs/security.md"
BEGIN, END = "<!-- rights: begin -->\n", "<!-- rights: end -->\n"


def render() -> str:
    """The table, in the order of the source."""
    rows = ["| method | callers |", "|---|---|"]
    rows += [f"| `{method}` | {right.value} |" for method, right in TABLE.items()]
    return "\n".join(rows) + "\n"


def filled(page: str) -> str:
    """The page with the present table in it."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{render()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
