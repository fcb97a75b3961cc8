"""Findings of checks: one line each, with advice for problems."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from supervisor.cli import render


class State(Enum):
    """The state of a finding.

    FAIL: it cannot work. WARN: it works, but less well or less safely than possible.
    """

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `advice` is the remedy; empty if none is needed."""

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
    render.table(("check", "state", "found", "what to do"), rows)
