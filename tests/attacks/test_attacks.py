"""Attacks that are made for real leave nothing behind and change nothing; the page tells of all of them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.attacks.attack import Where
from tests.attacks.corpus import ATTACKS
from tests.attacks.run import Outcome, attacks, elsewhere
from tests.attacks.table import JSON_FILE, PAGE_FILE, page, read

QUICK = (
    "billion-laughs",
    "placeholders",
    "digits",
    "links-to-secrets",
    "read-state",
    "kill-agent",
    "daemonise",
    "forge-mark",
    "hello-of-another",
    "garbage-to-agent",
    "planted-locks",
    "stop-other",
    "exec-other",
    "directory-of-other",
    "as-agent",
    "etcd-keys",
)


def with_problems(found: Sequence[Outcome]) -> list[str]:
    return [json.dumps((each.name, each.problems), indent=1) for each in found if each.problems]


@pytest.mark.timeout(600)
def test_a_dozen_attacks_on_a_node_whose_agent_is_root() -> None:
    found = list(elsewhere(Where.ROOT, attacks(Where.ROOT, QUICK)))
    assert with_problems(found) == []
    assert len(found) == len(QUICK)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("where", Where, ids=lambda where: where.name)
def test_all_attacks(where: Where) -> None:
    chosen = attacks(where)
    found = list(elsewhere(where, chosen))
    assert with_problems(found) == []
    assert [each.name for each in found] == [each.name for each in chosen]


def test_each_has_a_name_of_its_own() -> None:
    assert len({each.name for each in ATTACKS}) == len(ATTACKS)


def test_the_page_tells_of_each_attack_that_it_was_made_and_had_no_effect() -> None:
    document = read(JSON_FILE)
    made = {(each.name, each.where) for each in document.outcomes if not each.problems}
    assert {(each.name, where.name) for where in Where for each in attacks(where)} <= made
    assert PAGE_FILE.read_text() == page(document)
