"""docs/design.md is the authority: what it says of the code is so, and each of its terms has one meaning."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.guarantees.table import RULES, TABLE
from tests.support import design_page

ROOT = design_page.PAGE.parents[1]
PRODUCT = ("supervisor", "agent", "recovery")
PAGES = ("docs/design.md", "docs/architecture.md", "CONTRIBUTING.md", "README.md")

OLD_NAMES = {
    "Failure": 3,
    "Finding": 3,
    "Judgement": 2,
    "Pardon": 1,
    "Place": 5,
    "Taking": 1,
    "Told": 1,
    "Word": 1,
}
"""Names that tell a newcomer nothing, or too many things, and how many classes have each of them yet."""


@cache
def classes() -> dict[str, list[str]]:
    """Name of a class -> the modules of the product that define it."""
    found: dict[str, list[str]] = {}
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not path.name.endswith("_pb2.py"):
                for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
                    found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return found


@cache
def known_tests() -> frozenset[str]:
    paths = (ROOT / "tests").rglob("test_*.py")
    return frozenset(name for path in paths for name in re.findall(r"def (test_\w+)", path.read_text()))


def page() -> str:
    return design_page.PAGE.read_text()


def rows(text: str) -> list[tuple[str, ...]]:
    """The cells of a table's rows, without its heading."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines[2:]]


def rule_text(number: int) -> str:
    """The part of the page about one rule."""
    _, _, rest = page().partition(f"### Rule {number}: {RULES[number]}\n")
    assert rest, f"the page has no rule {number} {RULES[number]}"
    return re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]


def test_the_tables_are_those_of_the_code() -> None:
    assert page() == design_page.filled(page()), "run: python -m tests.support.design_page"


@pytest.mark.parametrize("number", RULES)
def test_each_statement_of_a_rule_names_what_keeps_it(number: int) -> None:
    text = rule_text(number)
    stated = re.findall(rf"^({number}\.\d+)\. ", text, re.MULTILINE)
    assert stated == [f"{number}.{place}" for place in range(1, len(stated) + 1)]
    evidence = rows(text[text.index("| | kept by") :])
    assert list(dict.fromkeys(label for label, _, _ in evidence)) == stated
    for label, kept_by, test in evidence:
        file = kept_by.strip("`")
        assert (ROOT / file).is_file(), f"{label}: {file}"
        if test.startswith("none: "):
            continue
        name = test.strip("`")
        assert name in known_tests(), f"{label}: there is no {name}"
        files = {row.file for row in TABLE if row.test.rpartition("::")[2].partition("[")[0] == name}
        assert not files or file in files, f"{label}: {name} is a guarantee of {files}"


def test_each_term_has_one_meaning() -> None:
    terms = rows(design_page.part(page(), "glossary"))
    names = [term.casefold() for term, _, _ in terms]
    assert names == sorted(set(names))
    meanings = Counter(meaning for _, meaning, _ in terms)
    assert [meaning for meaning, times in meanings.items() if times > 1] == []
    for term, meaning, where in terms:
        assert meaning, term
        found = where.strip("`")
        if "/" in found:
            assert (ROOT / found).is_file(), f"{term}: {found}"
        else:
            assert len(classes().get(found, ())) == 1, f"{term}: {found} is {classes().get(found)}"


def test_the_old_names_are_given_to_no_new_class() -> None:
    more = {name: classes()[name] for name, most in OLD_NAMES.items() if len(classes().get(name, ())) > most}
    assert more == {}, "give the new class another name (glossary of docs/design.md)"


@pytest.mark.parametrize("name", PAGES)
def test_the_files_that_a_page_names_are_there(name: str) -> None:
    text = (ROOT / name).read_text()
    named = set(
        re.findall(r"`((?:supervisor|agent|recovery|chaos|tests|deploy|benchmarks)/[\w./-]*\w/?)`", text)
    )
    assert sorted(each for each in named if not (ROOT / each).exists()) == []


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a page, as links name them after the `#`."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings)


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")):
        for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            if "://" in link or link.startswith("mailto:"):
                continue
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{path.relative_to(ROOT)}: {link}")
    assert broken == []


def test_the_tests_of_bugs_are_there() -> None:
    text = (ROOT / "docs/bugs.md").read_text()
    named = set(re.findall(r"(?:::|`)(test_\w+)(?!\w|\.py)", text))
    assert named - known_tests() == set()


def test_every_package_is_in_the_table_of_folders() -> None:
    told = set(re.findall(r"`([\w/]+)/`", (ROOT / "docs/architecture.md").read_text()))
    packages = {
        str(path.relative_to(ROOT))
        for top in (*PRODUCT, "chaos")
        for path in (ROOT / top).iterdir()
        if (path / "__init__.py").exists()
    }
    assert packages - told == set()


def test_comments_cite_this_page_and_no_other_design() -> None:
    old = re.compile(r"\bDESIGN\b")
    places = [
        str(path.relative_to(ROOT))
        for package in (*PRODUCT, "chaos", "benchmarks")
        for path in sorted((ROOT / package).rglob("*.py"))
        if old.search(path.read_text())
    ]
    assert places == []


def test_what_is_decided_is_decided_where_the_page_says() -> None:
    _, _, rest = (ROOT / "docs" / "architecture.md").read_text().partition("## Where it is decided\n")
    table = rows(rest.partition("\n## ")[0].strip())
    named = [pair for _, where in table for pair in re.findall(r"`([\w/]+\.py)` `(\w+)`", where)]
    assert len(named) >= len(table)
    for path, name in named:
        code = (ROOT / path).read_text()
        assert re.search(rf"^\s*(async def |def |class ){name}\b|^{name}: ", code, re.MULTILINE), (path, name)
