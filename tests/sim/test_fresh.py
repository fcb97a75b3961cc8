"""Three hundred seeds of all families that nobody has run before: each commit gives other ones.

A fixed seed finds nothing twice. A failing one is printed with its replay; it goes into docs/bugs.md.
"""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from pathlib import Path

import pytest

from chaos.programs import REPOSITORY
from tests.sim.command import simulate

FAMILIES = {
    "--brief": (180, 60),
    "--short": (56, 28),
    "": (2, 2),
    "--dense": (4, 4),
    "--booked --brief": (10, 10),
    "--gpus --brief": (8, 8),
    "--outage --brief": (4, 4),
    "--flawed --brief": (8, 8),
    "--deleted --brief": (8, 8),
    "--powered --brief": (10, 10),
    "--stopped --brief": (10, 10),
}
"""What the simulator is asked for: how many seeds, and how many of them at a time.

All of them take about two minutes of a core.
"""
FIRST, SPACE = 10_000_000, 10**9
"""Seeds begin in this range, far from all that are fixed."""


SOURCES = ("agent", "chaos", "recovery", "supervisor")


def commit(root: Path) -> str:
    """40 hex digits: of the commit, or of the sources themselves where there is no history."""
    if (root / ".git").exists():
        asked = ["git", "-C", str(root), "rev-parse", "HEAD"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
    sources = hashlib.sha1(usedforsecurity=False)
    for file in sorted(file for name in SOURCES for file in (root / name).rglob("*.py")):
        sources.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return sources.hexdigest()


@cache
def first_seed() -> int:
    return FIRST + int(commit(REPOSITORY), 16) % SPACE


def parts() -> list[tuple[str, int, int]]:
    """The words of a command line, and the seeds as an offset and a count: none is run twice."""
    found, offset = [], 0
    for words, (count, at_a_time) in FAMILIES.items():
        for _ in range(count // at_a_time):
            found.append((words, offset, at_a_time))
            offset += at_a_time
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("words", "offset", "count"), parts())
def test_promises_hold_in_seeds_that_nobody_has_run(words: str, offset: int, count: int) -> None:
    first = first_seed() + offset
    seeds = f"{first}..{first + count - 1}"
    done = simulate(*words.split(), "--seeds", seeds, "--jobs", "1", timeout_s=590)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_three_hundred() -> None:
    assert sum(count for _, _, count in parts()) == 300


def test_without_a_history_the_sources_give_the_number(tmp_path: Path) -> None:
    assert commit(REPOSITORY) == commit(REPOSITORY)
    (tmp_path / "agent").mkdir()
    program = tmp_path / "agent" / "core.py"
    program.write_text("one = 1\n")
    before = commit(tmp_path)
    assert int(before, 16) > 0
    assert commit(tmp_path) == before
    program.write_text("one = 2\n")
    assert commit(tmp_path) != before
