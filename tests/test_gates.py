"""The gates themselves: what `make check` cannot see about the project's own files."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from supervisor.contract.access import TABLE
from tests.support import security_page

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PRODUCT = ("supervisor", "agent", "recovery", "chaos")
LOCKS = ("requirements.lock", "requirements-alone.lock", "deploy/spark/requirements.lock")


def locked_requirements() -> dict[str, list[str]]:
    """Name -> the lines that belong to it in the lock files."""
    requirements: dict[str, list[str]] = {}
    name = ""
    for line in "\n".join((ROOT / lock).read_text() for lock in LOCKS).splitlines():
        if match := re.match(r"([a-z0-9][a-z0-9._-]*)==", line):
            name = match.group(1)
        if name and line.strip() and not line.lstrip().startswith("#"):
            requirements.setdefault(name, []).append(line)
    return requirements


def dependency_lines() -> list[str]:
    """The lines of pyproject.toml that name a dependency: of the product and of its extras."""
    text = (ROOT / "pyproject.toml").read_text()
    project = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    return [line for line in project.splitlines() if line.lstrip().startswith('"')]


def test_every_locked_requirement_is_exact_and_hashed() -> None:
    requirements = locked_requirements()
    assert len(requirements) > 40
    for name, lines in requirements.items():
        assert re.match(rf"{re.escape(name)}==[0-9][0-9a-z.]* \\$", lines[0]), lines[0]
        assert len(lines) > 1, f"{name} has no hash"
        for line in lines[1:]:
            assert re.fullmatch(r" {4}--hash=sha256:[0-9a-f]{64}( \\)?", line), line


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_holds_no_address(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert not re.findall(r"://|--(?:index-url|extra-index-url|find-links|trusted-host)| @ ", text)


def test_the_lock_covers_every_dependency() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    wanted = [*PYPROJECT["project"]["dependencies"], *extras["demo"], *extras["dev"], *extras["spark"]]
    names = {re.split(r"[<>=~! ]", requirement)[0].replace(".", "-").lower() for requirement in wanted}
    assert names <= set(locked_requirements())


def test_nothing_brings_another_build_of_tensorflow() -> None:
    """tf_keras would: it is installed alone."""
    assert {"tensorflow-cpu", "tf-keras"} <= set(locked_requirements())
    assert "tensorflow" not in locked_requirements()
    assert "tf-keras==" not in (ROOT / "requirements.lock").read_text()


def test_every_dependency_says_what_it_is_for() -> None:
    lines = dependency_lines()
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert len(lines) == len(PYPROJECT["project"]["dependencies"]) + sum(map(len, extras.values()))
    unexplained = [line for line in lines if not re.search(r'",\s+# \S+ \S+', line)]
    assert unexplained == []


def test_nothing_of_tensorflow_is_a_dependency_of_the_product() -> None:
    product = " ".join(PYPROJECT["project"]["dependencies"]).lower()
    assert not re.findall(r"tensorflow|keras|numpy|scikit", product)


def test_every_method_has_a_row_in_the_table_of_rights() -> None:
    """Without one nobody may call it: say in supervisor/contract/access.py who may."""
    proto = (ROOT / "supervisor/wire/tfsup.proto").read_text()
    methods = set()
    for service, body in re.findall(r"^service (\w+) \{(.*?)^\}", proto, re.DOTALL | re.MULTILINE):
        methods |= {f"{service}.{name}" for name in re.findall(r"^  rpc (\w+)", body, re.MULTILINE)}
    assert {method for method in TABLE if not method.startswith("Http.")} == methods


def test_the_page_on_security_has_the_table_of_rights() -> None:
    page = security_page.PAGE.read_text()
    assert page == security_page.filled(page), "run: python -m tests.support.security_page"


def test_few_names_are_kept_that_nothing_uses() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    _, _, rest = text.partition("\nignore_names = [\n")
    rows = rest[: rest.index("\n]\n")].splitlines()
    assert len(rows) <= 10
    assert [row for row in rows if not re.search(r'",  # \S+ \S+', row)] == []


def test_every_directory_of_the_product_is_a_package() -> None:
    """One without `__init__.py` works from a checkout and is missing from the wheel."""
    directories = {path.parent for package in PRODUCT for path in (ROOT / package).rglob("*.py")}
    assert sorted(str(path) for path in directories if not (path / "__init__.py").exists()) == []


def test_no_folder_but_those_of_tests_has_more_than_twenty_modules() -> None:
    """Sort them into folders that each show one thought (decision 0054)."""
    packages = (*PRODUCT, "benchmarks")
    folders = Counter(path.parent for package in packages for path in (ROOT / package).rglob("*.py"))
    assert {str(folder.relative_to(ROOT)): count for folder, count in folders.items() if count > 20} == {}


def test_no_test_module_is_imported() -> None:
    """Move what tests share into a module of its own, beside its users or in tests/support."""
    # Only these are parsed, which saves most of the time.
    may_import = re.compile(r"^\s*(?:from|import)\b.*\btest_|^\s+[\w, ]*\btest_\w+[\w, ]*$", re.MULTILINE)
    imported = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in ("tests", "chaos", "benchmarks", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if may_import.search(text := path.read_text())
        for node in ast.walk(ast.parse(text))
        for name in imported_names(node)
        if any(part.startswith("test_") for part in name.split("."))
    ]
    assert imported == []


def imported_names(node: ast.AST) -> list[str]:
    """The dotted names that an import may mean: of a module, or of something in one."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module or ''}.{alias.name}" for alias in node.names]
    return []


def test_what_runs_inside_a_task_parses_as_python_3_8() -> None:
    for path in sorted((ROOT / "agent/inside").rglob("*.py")):
        ast.parse(path.read_text(), filename=str(path), feature_version=(3, 8))


def test_what_runs_inside_a_task_imports_the_standard_library_alone() -> None:
    foreign = set()
    for path in sorted((ROOT / "agent/inside").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            tops = {name.partition(".")[0] for name in names if not name.startswith("agent.inside")}
            foreign |= {f"{path.name}: {top}" for top in tops - sys.stdlib_module_names}
    assert foreign == set()


def test_no_check_is_silenced_in_place() -> None:
    silencer = re.compile("# " + "(?:type: ignore|noqa|ruff: noqa|mypy: ignore)")
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "*.py"], check=True, capture_output=True, text=True
    ).stdout.split("\0")
    hits = [name for name in tracked if name and silencer.search((ROOT / name).read_text())]
    assert [name for name in hits if not re.search(r"_pb2(_grpc)?\.pyi?$", name)] == []


def test_scripts_are_bash_that_stops_at_the_first_error() -> None:
    for path in [ROOT / ".ci/run", *(ROOT / "deploy").glob("*.sh")]:
        head = path.read_text().splitlines()
        assert head[0] == "#!/usr/bin/env bash", path
        assert "set -euo pipefail" in head, path
        only_sourced = path.name in ("apt.sh", "daemons.sh")
        assert bool(path.stat().st_mode & 0o111) != only_sourced, path
