"""Bugs made by hand are noticed; what is not, or is noticed without the bug too, is said."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.mutants.command import chosen_of, main
from chaos.mutants.edit import ROOT, BadEdit, Edit, copy_tree
from chaos.mutants.hunt import hunt, hunt_one
from chaos.mutants.launchers import STORIES
from chaos.mutants.mutant import Launchers, Mutant
from chaos.mutants.page import rule_of
from chaos.mutants.table import MUTANTS, by_name
from chaos.mutants.verdict import Fate
from tests.guarantees.table import RULES

QUICK = (
    "token not compared",
    "D not waited for",
    "a launcher without a deadline",
    "commit record before the rename",
    "port reused too early",
)
"""One for each kind of checker: of a write, a node's loss, a program's end, a store, real processes."""

HARMLESS = Edit("agent/inside/deadman.py", "one pull in flight", "a pull in flight")
CHECKERS = [
    *(ROOT / "chaos" / "sim").glob("*.py"),
    *(ROOT / "chaos" / "promises").glob("*.py"),
    ROOT / "chaos" / "mutants" / "crashes.py",
    ROOT / "chaos" / "mutants" / "launchers.py",
]


def name_of(mutant: Mutant) -> str:
    return mutant.name


@pytest.mark.parametrize("mutant", MUTANTS, ids=name_of)
def test_its_mistake_can_be_made(mutant: Mutant) -> None:
    texts: dict[str, str] = {}
    for edit in mutant.edits:
        texts[edit.file] = edit.mistaken(texts.get(edit.file) or (ROOT / edit.file).read_text())


def test_each_rule_has_a_mutant_and_each_mutant_a_checker() -> None:
    assert {mutant.rule for mutant in MUTANTS} >= set(RULES)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    known = "\n".join(path.read_text() for path in CHECKERS)
    for mutant in MUTANTS:
        assert mutant.promises
        for promise in mutant.promises:
            assert f'"{promise}"' in known, f"nobody checks that {promise}"
        if isinstance(mutant.hunter, Launchers):
            assert mutant.hunter.story in {story.name for story in STORIES}


def test_the_page_tells_of_all_mutants_and_that_they_were_caught() -> None:
    rows = [row.split(" | ") for row in (ROOT / "docs" / "mutants.md").read_text().splitlines()]
    told = {(row[0].removeprefix("| "), row[1]) for row in rows if len(row) > 5}
    assert told >= {(rule_of(mutant), mutant.name) for mutant in MUTANTS}, (
        "run: python -m chaos mutants --page docs/mutants.md"
    )
    assert not [row for row in rows if any(each.value in row for each in (Fate.SURVIVED, Fate.UNPROVEN))]


@pytest.mark.timeout(300)
def test_the_quick_ones_are_caught(tmp_path: Path) -> None:
    verdicts = {verdict.name: verdict for verdict in hunt([by_name(name) for name in QUICK], jobs=2)}
    assert {name: verdict.fate for name, verdict in verdicts.items()} == dict.fromkeys(QUICK, Fate.CAUGHT), (
        verdicts
    )
    assert all(verdict.checker in by_name(name).promises for name, verdict in verdicts.items())


@pytest.mark.timeout(300)
def test_what_is_no_mistake_survives_and_what_is_broken_anyway_proves_nothing(tmp_path: Path) -> None:
    mutant = replace(by_name("a launcher without a deadline"), edits=(HARMLESS,))
    (survivor,) = hunt([mutant], jobs=1, most=2)
    assert (survivor.fate, survivor.tries) == (Fate.SURVIVED, 2)
    sick = copy_tree(tmp_path / "sound")
    for edit in by_name(mutant.name).edits:
        edit.make(sick)
    assert hunt_one(mutant, tmp_path).fate is Fate.UNPROVEN
    lost = replace(mutant, edits=(Edit("agent/inside/deadman.py", "no such text", ""),))
    assert hunt_one(lost, tmp_path).fate is Fate.UNPROVEN


@pytest.mark.parametrize(
    ("edit", "text", "why"),
    [
        (Edit("f.py", "a", "b"), "a = a\n", "2 times"),
        (Edit("f.py", "a", "b"), "c = 1\n", "0 times"),
        (Edit("f.py", "a", "a"), "a = 1\n", "nothing is replaced"),
        (Edit("f.py", "1", "("), "a = 1\n", "never closed"),
    ],
)
def test_a_mistake_that_cannot_be_made_is_said(edit: Edit, text: str, why: str) -> None:
    with pytest.raises(BadEdit, match=why):
        edit.mistaken(text)


def test_who_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert chosen_of([]) == MUTANTS
    assert {mutant.rule for mutant in chosen_of(["rule:9"])} == {9}
    assert [mutant.name for mutant in chosen_of(["older base"])] == ["older base"]
    assert main(["--list", "older base"]) == 0
    assert "older base" in capsys.readouterr().out
    with pytest.raises(SystemExit) as wrong:
        main(["no such bug"])
    assert wrong.value.code == 2


@pytest.mark.timeout(120)
def test_the_command_tells_who_caught_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, told = tmp_path / "page.md", tmp_path / "told.json"
    assert (
        main(["--jobs", "1", "--json", str(told), "--page", str(page), "a launcher without a deadline"]) == 0
    )
    (row,) = json.loads(told.read_text())["mutants"]
    assert (row["fate"], row["checker"], row["tries"]) == ("caught", "no task outlives D", 1)
    assert "no task outlives D" in page.read_text()
    assert "1 of 1 caught" in capsys.readouterr().out
    assert main(["--jobs", "1", "--json", str(told), "a port that a zombie"]) == 0
    assert len(json.loads(told.read_text())["mutants"]) == 2, "what is known of others stays"
