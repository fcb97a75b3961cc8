"""The table of guarantees is true: each row's code is there, and its test fails when the rule is disabled."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from chaos.mutants import leftovers
from chaos.mutants.edit import ROOT, Edit, copy_tree
from tests.guarantees.guarantee import Guarantee
from tests.guarantees.table import NOT_COVERED, RULES, TABLE, render

RUN_S = 240
HANGS_S = 60
"""A test that takes so long after a mistake hangs, and has failed."""
SHARES = 8
"""The tests of all rows pass in so many runs: one takes longer than any row."""


def edit_of(row: Guarantee) -> Edit:
    return Edit(row.file, row.snippet, row.broken)


def name_of(row: Guarantee) -> str:
    where, _, function = row.test.partition("::")
    return f"rule{row.rule}-{Path(where).stem}-{function}"


@pytest.mark.parametrize("row", TABLE, ids=name_of)
def test_the_code_that_keeps_the_promise_is_there_once(row: Guarantee) -> None:
    # BadEdit: the file has changed. Mend the row, and run its slow test.
    edit_of(row).mistaken((ROOT / row.file).read_text())


@cache
def functions_of(path: str) -> frozenset[str]:
    parsed = ast.walk(ast.parse((ROOT / path).read_text()))
    return frozenset(node.name for node in parsed if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("row", TABLE, ids=name_of)
def test_the_named_test_exists(row: Guarantee) -> None:
    path, _, function = row.test.partition("::")
    assert function.partition("[")[0] in functions_of(path)


def test_every_rule_is_covered_or_says_why_not() -> None:
    rows = {row.rule for row in TABLE}
    assert rows <= set(RULES)
    assert set(RULES) == rows | set(NOT_COVERED)
    assert len({row.promise for row in TABLE}) == len(TABLE), "a promise has one row"
    assert all("|" not in row.promise + row.test for row in TABLE)


def test_the_page_is_made_from_the_table() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    assert page == render(), "run: python -m tests.guarantees.table >docs/guarantees.md"


def run_tests(tree: Path, tests: list[str], each_s: int) -> subprocess.CompletedProcess[str]:
    """Run them with the tree's own code, one after the other, in a process of their own.

    Each may take `each_s`. The bytecode stays in the tree: half the time of most rows is to compile it.
    """
    ours = ("PYTEST_", "COV_", "PYTHONDONTWRITEBYTECODE")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    options = ["-q", "-rfE", "--no-header", f"--timeout={each_s}", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=tree,
        env=env | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    """One copy of the tree for all rows, where other users may enter, as the tasks of some are theirs."""
    with tempfile.TemporaryDirectory(prefix="guarantee-") as directory:
        Path(directory).chmod(0o755)
        yield copy_tree(Path(directory))
        leftovers.kill(Path(directory))


@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_S)
@pytest.mark.parametrize("share", range(SHARES))
def test_unmodified_all_of_them_pass(tree: Path, share: int) -> None:
    tests = sorted({row.test for row in TABLE})
    first, end = (len(tests) * each // SHARES for each in (share, share + 1))
    done = run_tests(tree, tests[first:end], RUN_S // 2)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_S)
@pytest.mark.parametrize("row", TABLE, ids=name_of)
def test_it_fails_when_the_rule_is_disabled(row: Guarantee, tree: Path) -> None:
    with edit_of(row).made(tree) as code:
        lint = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "F82,E9", str(code)]
        names = subprocess.run(lint, capture_output=True, text=True, check=False)
        assert names.returncode == 0, f"a mistake, but no program any more:\n{names.stdout}"
        try:
            done = run_tests(tree, ["-x", row.test], HANGS_S)
        finally:
            leftovers.kill(tree)
    assert done.returncode == 1, f"{row.promise}\n{done.stdout}{done.stderr}"
    assert f"FAILED {row.test}" in done.stdout, f"no test failed:\n{done.stdout}{done.stderr}"
