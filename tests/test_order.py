"""The order in which several processes run the suite: the same tests, the long ones first in each share."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.durations import SECONDS
from tests.support.order import arranged

ROOT = Path(__file__).resolve().parents[1]


def some(module: str, count: int, *fixtures: str) -> list[pytest.Item]:
    named = (SimpleNamespace(nodeid=f"{module}::test_{each}", fixturenames=fixtures) for each in range(count))
    return [cast(pytest.Item, each) for each in named]


def names(items: list[pytest.Item]) -> list[str]:
    return [item.nodeid for item in items]


def modules(items: list[pytest.Item]) -> list[str]:
    return list(dict.fromkeys(item.nodeid.partition("::")[0] for item in items))


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> list[pytest.Item]:
    seconds = {"a.py": 50.0, "b.py": 40.0, "c.py": 30.0, "d.py": 30.0}
    monkeypatch.setattr("tests.support.order.SECONDS", seconds)
    served = some("c.py", 3, "hdfs") + some("x.py", 30) + some("d.py", 4, "hdfs", "tmp_path")
    return some("s.py", 40) + some("a.py", 5) + served + some("b.py", 2) + some("y.py", 18)


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 7, 200])
def test_no_test_is_lost_or_comes_twice_and_a_modules_keep_their_order(
    suite: list[pytest.Item], processes: int
) -> None:
    found = names(arranged(suite, processes))
    assert sorted(found) == sorted(names(suite))
    for module in modules(suite):
        assert [name for name in found if name.startswith(module)] == [
            name for name in names(suite) if name.startswith(module)
        ]


def test_each_share_begins_with_what_takes_long_and_ends_with_what_does_not(suite: list[pytest.Item]) -> None:
    found = arranged(suite, 3)
    size = len(suite) // 3
    first, second, third = found[:size], found[size : 2 * size], found[2 * size :]
    assert modules(first)[:2] == ["c.py", "d.py"], "one server for both"
    assert modules(second)[0] == "a.py"
    assert modules(third)[0] == "b.py"
    for share in (first, second, third):
        assert modules(share)[-1] in {"s.py", "x.py", "y.py"}


def test_every_module_that_is_said_to_take_long_is_there() -> None:
    assert [module for module in SECONDS if not (ROOT / module).exists()] == []
