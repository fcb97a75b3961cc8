"""The tables of docs/restart-policy.md as the code has them: `python -m tests.decide.policy_table` writes."""

from __future__ import annotations

from pathlib import Path

from recovery.policy.logs import EXCEPTIONS, LAST_LINES, STATUS_CODES, Pattern
from recovery.policy.rules import TABLE
from recovery.policy.scope import TABLE as SCOPES
from supervisor.contract.job.spec import Scope

DOCUMENT = Path(__file__).parents[2] / "docs" / "restart-policy.md"


def causes() -> str:
    """Cause, how it is seen, what it leads to, whether it burns the budget, and what is special about it."""
    lines = ["| cause | seen by | rule | burns the budget | note |", "|---|---|---|---|---|"]
    for cause, row in TABLE.items():
        rule = f"{row.rule.value} (fixed)" if row.fixed else row.rule.value
        burns = "yes" if cause.program_fault else "no"
        lines.append(f"| `{cause.value}` | {row.seen_by} | {rule} | {burns} | {row.why} |")
    return "\n".join(lines)


def patterns() -> str:
    """The table of patterns for the end of a program's output."""
    lines = ["| what ended the program | its text holds | cause |", "|---|---|---|"]
    rows: list[tuple[str, Pattern]] = [("exception", row) for row in EXCEPTIONS]
    rows += [("last line", row) for row in LAST_LINES]
    for kind, row in rows:
        text = f"`{_cell(row.text)}`" if row.text else ""
        lines.append(f"| {kind} `{_cell(row.name)}` | {text} | `{row.cause.value}` |")
    for code, cause in STATUS_CODES.items():
        lines.append(f"| status `{code}` in a fatal line of C++, or alone | | `{cause.value}` |")
    return "\n".join(lines)


def scopes() -> str:
    """Strategy by role: what the loss of a process restarts."""
    roles = sorted({role for row in SCOPES.values() for role in row})
    lines = [f"| strategy | {' | '.join(roles)} | any other |", "|---" * (len(roles) + 2) + "|"]
    for strategy, row in SCOPES.items():
        cells = " | ".join(row.get(role, Scope.ALL).value for role in roles)
        lines.append(f"| `{strategy.value}` | {cells} | {Scope.ALL.value} |")
    return "\n".join(lines)


TABLES = {"causes": causes, "patterns": patterns, "scopes": scopes}


def rendered(text: str) -> str:
    """The document with its tables as the code has them."""
    for name, table in TABLES.items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        assert mark, f"{DOCUMENT.name} has no table {name}"
        after = rest[rest.index("\n<!-- end -->") :]
        text = f"{before}{mark}{table()}{after}"
    return text


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    DOCUMENT.write_text(rendered(DOCUMENT.read_text()))
