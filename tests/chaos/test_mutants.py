"""Bugs made by hand are noticed; what is not, or is noticed without the bug too, is said."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from agent.inside.processes import fence
from chaos.mutants import leftovers
from chaos.mutants.command import chosen_of, main
from chaos.mutants.edit import ROOT, BadEdit, Edit, copy_tree
from chaos.mutants.hunt import hunt, hunt_one
from chaos.mutants.launchers import STORIES
from chaos.mutants.mutant import Launchers, Mutant
from chaos.mutants.page import rule_of
from chaos.mutants.table import MUTANTS, by_name
from chaos.mutants.verdict import Fate
from chaos.sim.run import SCRATCH, scratch_parent
from tests.guarantees.table import RULES

QUICK = (
    "token not compared",
    "D not waited for",
    "a launcher without a deadline",
    "commit record before the rename",
    "port reused too early",
)
"""One for each kind of checker: of a write, a node's loss, a program's end, a store, real processes."""

HARMLESS = Edit("agent/inside/launcher/deadman.py", "one pull in flight", "a pull in flight")
CHECKERS = [
    *(ROOT / "chaos" / "sim").rglob("*.py"),
    *(ROOT / "chaos" / "promises").glob("*.py"),
    ROOT / "chaos" / "mutants" / "crashes.py",
    ROOT / "chaos" / "mutants" / "launchers.py",
]

IN_SLEEP = "import time; time.sleep(600)"
LONG, TRIES = "commit while closing", 40
"""A search for it without the mistake makes so many tries, each of a fraction of a second."""


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


@pytest.mark.slow
def test_what_is_no_mistake_survives_and_what_is_broken_anyway_proves_nothing(tmp_path: Path) -> None:
    mutant = replace(by_name("a launcher without a deadline"), edits=(HARMLESS,))
    (survivor,) = hunt([mutant], jobs=1, most=2)
    assert (survivor.fate, survivor.tries) == (Fate.SURVIVED, 2)
    sick = copy_tree(tmp_path / "sound")
    for edit in by_name(mutant.name).edits:
        edit.make(sick)
    assert hunt_one(mutant, tmp_path).fate is Fate.UNPROVEN
    lost = replace(mutant, edits=(Edit("agent/inside/launcher/deadman.py", "no such text", ""),))
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


def test_a_mistake_is_undone_and_no_bytecode_keeps_it(tmp_path: Path) -> None:
    source, edit = tmp_path / "f.py", Edit("f.py", "1", "2")
    source.write_text("a = 1\n")
    bytecode = Path(cache_from_source(str(source)))
    with edit.made(tmp_path) as mistaken:
        assert mistaken.read_text() == "a = 2\n"
        bytecode.parent.mkdir()
        bytecode.touch()
    assert (source.read_text(), bytecode.exists()) == ("a = 1\n", False)


def test_who_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert chosen_of([]) == MUTANTS
    assert {mutant.rule for mutant in chosen_of(["rule:9"])} == {9}
    assert [mutant.name for mutant in chosen_of(["older base"])] == ["older base"]
    assert main(["--list", "older base"]) == 0
    assert "older base" in capsys.readouterr().out
    with pytest.raises(SystemExit) as wrong:
        main(["no such bug"])
    assert wrong.value.code == 2


def test_the_quick_ones_are_caught_and_the_command_tells_by_whom(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, told = tmp_path / "page.md", tmp_path / "told.json"
    first, *others = QUICK
    for names in (others, [first]):
        assert main(["--jobs", "2", "--json", str(told), "--page", str(page), *names]) == 0
        assert re.search(r"\b(\d+) of \1 caught", capsys.readouterr().out)
    rows = {row["name"]: row for row in json.loads(told.read_text())["mutants"]}
    assert rows.keys() >= {*QUICK}, "what is known of others stays"
    assert {row["fate"] for row in rows.values()} == {Fate.CAUGHT.value}
    assert all(row["checker"] in by_name(name).promises for name, row in rows.items())
    assert rows["a launcher without a deadline"]["tries"] == 1
    assert "no task outlives D" in page.read_text()


def test_what_a_killed_hunt_has_left_is_swept_and_what_others_are_at_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = tmp_path / f"{leftovers.TREES}-{gone.pid}-x" / "tree"
    launcher = tmp_path / f"{leftovers.LAUNCHERS}-{gone.pid}-y"
    seed = scratch_parent() / f"{SCRATCH}-{gone.pid}-1-z"
    ours = [tmp_path / f"{leftovers.prefix_of(kind)}z" for kind in (leftovers.TREES, leftovers.LAUNCHERS)]
    for each in (left, launcher, seed, *ours):
        each.mkdir(parents=True)
    marked = {**os.environ, fence.MARKER_VARIABLE: f"{launcher.name}#1"}
    runs = [
        subprocess.Popen([sys.executable, "-c", IN_SLEEP, str(left / "f.py")]),
        subprocess.Popen([sys.executable, "-c", IN_SLEEP], env=marked),
    ]
    stays = subprocess.Popen([sys.executable, "-c", IN_SLEEP, str(ours[0] / "f.py")])
    try:
        leftovers.sweep()
        assert [run.wait(60) for run in runs] == [-signal.SIGKILL] * 2
        assert stays.poll() is None
    finally:
        for run in (*runs, stays):
            run.kill()
            run.wait()
    assert sorted(tmp_path.iterdir()) == sorted(ours)
    assert not seed.exists()


def test_whoever_interrupts_a_hunt_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[int] = []

    def interrupt(_: str, number: int) -> None:
        seen.append(number)
        if number == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        list(hunt([replace(by_name(LONG), edits=(HARMLESS,))], jobs=1, tell=interrupt))
    assert len(seen) < TRIES
    assert not list(tmp_path.iterdir())


def test_a_probe_ends_with_whoever_started_it() -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "words = [sys.executable, '-m', 'chaos.mutants.probe', '--parent', str(os.getpid())]\n"
        f"subprocess.Popen([*words, '{LONG}'])\n"
        "time.sleep(600)\n"
    )
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as hunter:
        assert hunter.stdout is not None
        try:
            assert json.loads(hunter.stdout.readline())["at"] == "1"
        finally:
            hunter.kill()
        # The probe has it open, too, and would tell of all its tries.
        assert len(hunter.stdout.read().splitlines()) < TRIES - 1
