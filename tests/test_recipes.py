"""CONTRIBUTING.md: a recipe names every place that its example is in, and the tables name every directory."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from supervisor.adapters.files.jobfile_model import JobModel
from supervisor.cli.main import VERBS
from tests.support import job_page

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
PRODUCT = ("supervisor", "agent", "recovery")
PARTS = ("restart", "checkpoint", "limits", "progress", "code")
"""Parts of a job file whose fields pages name as `PART.FIELD`."""


@dataclass(frozen=True)
class Recipe:
    """The example that a recipe follows. `within`: where its places are counted."""

    heading: str
    pattern: str
    within: tuple[str, ...] = PRODUCT


RECIPES = (
    Recipe("To add a cause of a restart", r"base_missed|BASE_MISSED"),
    Recipe("To add a field of the job file", r"\blag_bound"),
    Recipe("To add a verb of supervisorctl", r"\buncordon\b", ("supervisor/cli",)),
    Recipe("To add an RPC", r"\bUncordon(?:Request)?\b"),
    Recipe("To add a key in etcd", r"\bkeys\.quarantine\b|\bGpuQuarantine\b|\"quarantines/"),
)


def section(heading: str, level: str = "###") -> str:
    _, _, rest = PAGE.partition(f"\n{level} {heading}\n")
    assert rest, f"CONTRIBUTING.md has no {heading!r}"
    return re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]


def places(recipe: Recipe) -> set[str]:
    paths = (
        path for top in recipe.within for path in (ROOT / top).rglob("*") if path.suffix in {".py", ".proto"}
    )
    return {str(path.relative_to(ROOT)) for path in paths if re.search(recipe.pattern, path.read_text())}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.heading)
def test_a_recipe_names_every_place_of_its_example(recipe: Recipe) -> None:
    named = set(re.findall(r"`([a-z_]+/[\w./-]+\.(?:py|md|proto))`", section(recipe.heading)))
    found = places(recipe)
    assert found - named == set(), "the example is also here"
    assert len(found) > 1
    assert sorted(each for each in named if not (ROOT / each).is_file()) == []


def test_every_directory_of_tests_is_in_the_table() -> None:
    there = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert set(re.findall(r"`tests/(\w+)/`", section("Where the tests are", "##"))) == there


def test_every_directory_with_slow_tests_is_in_the_list() -> None:
    slow = {
        path.relative_to(ROOT / "tests").parts[0]
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.slow" in path.read_text() and path.name != "test_recipes.py"
    }
    assert set(re.findall(r"`tests/(\w+)/`", section("What only `make test-all` runs"))) == slow


def test_every_verb_is_on_the_page_about_the_command_line() -> None:
    text = (ROOT / "docs/cli.md").read_text()
    assert [verb for verb in VERBS if not re.search(rf"(?<![\w-]){verb}(?![\w-])", text)] == []


def test_the_page_about_the_job_file_has_every_key_once_and_no_other() -> None:
    """A new one gets a row in the table of its section in docs/job-file.md."""
    told = [job_page.plain(key.name) for key in job_page.key_rows()]
    assert sorted(told) == sorted(job_page.schema())


def test_pages_name_fields_that_a_job_file_has() -> None:
    wrong = []
    known = {}
    for part in PARTS:
        kind = JobModel.model_fields[part].annotation
        known[part] = {name for each in (kind, *get_args(kind)) for name in getattr(each, "model_fields", ())}
        assert known[part]
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for part, field in re.findall(rf"`({'|'.join(PARTS)})\.(\w+)", path.read_text()):
            if field not in known[part]:
                wrong.append(f"{path.name}: {part}.{field}")
    assert wrong == []


@pytest.mark.parametrize(
    ("page", "heading", "figure"),
    [
        ("README.md", "What a failure costs", r"\d+ / \d+|\b0\.\d{3}\b"),
        ("docs/engines.md", "Seen", r"\b[01]\.\d\d\b"),
    ],
)
def test_the_figures_of_a_page_are_those_of_the_benchmarks(page: str, heading: str, figure: str) -> None:
    _, _, rest = (ROOT / page).read_text().partition(f"## {heading}\n")
    told, _, _ = rest.partition("\n## ")
    figures = set(re.findall(figure, told))
    measured = (ROOT / "benchmarks/README.md").read_text()
    assert len(figures) > 3
    assert sorted(each for each in figures if each not in measured) == []
