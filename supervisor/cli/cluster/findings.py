"""What a check has found: one line each, with what to do where it is not well."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from supervisor.cli import render


class State(Enum):
    """FAIL: what was checked for cannot work. WARN: it works, less well or less safely than it could."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `advice` says what to do; empty where nothing is to be done."""

    check: str
    state: State
    detail: str
    advice: str = ""


def failed(findings: Iterable[Finding]) -> bool:
    """Whether one of them is a failure."""
    return any(finding.state is State.FAIL for finding in findings)


def show(findings: Iterable[Finding]) -> None:
    """Print them as a table."""
    rows = [(each.check, each.state.value, each.detail, each.advice) for each in findings]
    render.table(("CHECK", "STATE", "FOUND", "WHAT TO DO"), rows)
