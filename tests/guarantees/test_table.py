"""The table of guarantees is true: each row's code is there, and its test fails when the rule is disabled."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.guarantees.guarantee import Guarantee
from tests.guarantees.table import NOT_COVERED, RULES, TABLE, render

ROOT = Path(__file__).parents[2]
COPIED = ("supervisor", "agent", "recovery", "tests", "pyproject.toml")
RUN_S = 240


def name_of(row: Guarantee) -> str:
    where, _, function = row.test.partition("::")
    return f"rule{row.rule}-{Path(where).stem}-{function}"


@pytest.mark.parametrize("row", TABLE, ids=name_of)
def test_the_code_that_keeps_the_promise_is_there_once(row: Guarantee) -> None:
    text = (ROOT / row.file).read_text()
    assert text.count(row.snippet) == 1, f"{row.file} has changed: mend the row, and run its slow test"
    assert row.broken != row.snippet
    ast.parse(text.replace(row.snippet, row.broken))


@pytest.mark.parametrize("row", TABLE, ids=name_of)
def test_the_named_test_exists(row: Guarantee) -> None:
    path, _, function = row.test.partition("::")
    defined = {
        node.name
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert function.partition("[")[0] in defined


def test_every_rule_is_covered_or_says_why_not() -> None:
    rows = {row.rule for row in TABLE}
    assert rows <= set(RULES)
    assert set(RULES) == rows | set(NOT_COVERED)
    assert len({row.promise for row in TABLE}) == len(TABLE), "a promise has one row"
    assert all("|" not in row.promise + row.test for row in TABLE)


def test_the_page_is_made_from_the_table() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    assert page == render(), "run: python -m tests.guarantees.table >docs/guarantees.md"


def copy_tree(target: Path) -> Path:
    """The sources as git knows them, without what was built or written beside them."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *COPIED],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def run_tests(tree: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run them with the tree's own code, one after the other, in a process of their own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    options = ["-q", "-rfE", "--no-header", "--timeout=60", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=tree,
        env=env | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


def kill_leftovers(tree: Path) -> None:
    """A disabled fence leaves processes behind; they run the tree's code."""
    for process in psutil.process_iter(["cmdline"]):
        if any(str(tree) in word for word in process.info["cmdline"] or ()):
            with suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_S)
def test_unmodified_all_of_them_pass(tmp_path: Path) -> None:
    done = run_tests(copy_tree(tmp_path), sorted({row.test for row in TABLE}))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_S)
@pytest.mark.parametrize("row", TABLE, ids=name_of)
def test_it_fails_when_the_rule_is_disabled(row: Guarantee, tmp_path: Path) -> None:
    tree = copy_tree(tmp_path)
    code = tree / row.file
    code.write_text(code.read_text().replace(row.snippet, row.broken))
    lint = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "F82,E9", str(code)]
    names = subprocess.run(lint, capture_output=True, text=True, check=False)
    assert names.returncode == 0, f"a mistake, but no program any more:\n{names.stdout}"
    try:
        done = run_tests(tree, ["-x", row.test])
    finally:
        kill_leftovers(tree)
    assert done.returncode == 1, f"{row.promise}\n{done.stdout}{done.stderr}"
    assert f"FAILED {row.test}" in done.stdout, f"no test failed:\n{done.stdout}{done.stderr}"
