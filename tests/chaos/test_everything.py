"""All parts of chaos in so much time: how it is divided, and what becomes of parts that fail or go on."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from chaos.duration import shown
from chaos.runner.everything import CUT, EVERYTHING, PARTS, Everything, Limits, Part


def part(name: str, share: float, code: str) -> Part:
    """It runs this program, which is told its time."""
    return Part(name, "a part", share, lambda limits: ("-c", code, str(limits.for_s)))


def everything(
    directory: Path, for_s: float, *parts: Part, over_s: float = 30.0
) -> tuple[list[str], Everything]:
    said: list[str] = []
    limits = Limits(directory, 7, for_s, 1.0)
    return said, Everything(limits, said.append, parts, (sys.executable,), over_s)


def test_what_a_part_does_not_need_the_later_ones_have(tmp_path: Path) -> None:
    said, all_of_it = everything(tmp_path, 1000.0, part("a", 1, ""), part("b", 1, ""), part("c", 2, ""))
    sums = all_of_it.perform()
    assert [done.name for done in sums.parts] == ["a", "b", "c"]
    limits = [done.limit_s for done in sums.parts]
    assert 240 < limits[0] <= 250
    assert 320 < limits[1] <= 334
    assert 950 < limits[2] <= 1000
    assert sums.exit_code == 0
    assert json.loads((tmp_path / EVERYTHING).read_text())["parts"][2]["code"] == 0
    assert said[0] == "1 of 3: a, a part; 4 min"


def test_a_part_that_fails_keeps_none_from_running(tmp_path: Path) -> None:
    said, all_of_it = everything(tmp_path, 60.0, part("a", 1, "raise SystemExit(3)"), part("b", 1, ""))
    sums = all_of_it.perform()
    assert [done.code for done in sums.parts] == [3, 0]
    assert sums.exit_code == 1
    assert any(line.startswith("a: exit code 3") for line in said)


def test_a_part_that_goes_on_and_on_is_ended(tmp_path: Path) -> None:
    endless = part("a", 1, "import time\nwhile True: time.sleep(0.1)")
    began_s = time.monotonic()
    _, all_of_it = everything(tmp_path, 30.0, endless, part("b", 99, ""), over_s=0.5)
    sums = all_of_it.perform()
    assert time.monotonic() - began_s < 30
    assert [done.code for done in sums.parts] == [CUT, 0]
    assert sums.exit_code == 1


def test_a_part_is_in_a_process_group_of_its_own(tmp_path: Path) -> None:
    """A terminal's Ctrl-C reaches us alone: our signal is the only one that it gets."""
    _, all_of_it = everything(tmp_path, 60.0, part("a", 1, "import os; assert os.getpgrp() == os.getpid()"))
    assert all_of_it.perform().exit_code == 0


def test_each_seed_has_seeds_of_its_own() -> None:
    found = []
    for seed in (7, 8):
        words = list(PARTS[1].words(Limits(Path("x"), seed, 600.0, 3.0)))
        first, _, last = words[words.index("--seeds") + 1].partition("..")
        found.append(range(int(first), int(last) + 1))
    assert not set(found[0]) & set(found[1])


def test_each_part_is_told_its_time() -> None:
    limits = Limits(Path("x"), 7, 600.0, 3.0)
    for each in PARTS:
        words = each.words(limits)
        assert words[list(words).index("--for") + 1] == "600s"


def test_durations_for_people() -> None:
    assert [shown(each) for each in (7, 99, 600, 7200)] == ["7 s", "99 s", "10 min", "2.0 h"]
