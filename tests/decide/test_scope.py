"""The table of DESIGN section 6, cell by cell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.decide.scope import scope_of
from supervisor.contract.job import Scope, Strategy
from tests.support.builders import job_spec, role

ROLES = {"chief": 1, "ps": 1, "worker": 2, "evaluator": 1, "tensorboard": 1, "trainer": 1}
IN_PLACE = {(Strategy.ASYNC, "worker"), (Strategy.COORDINATOR, "worker")}


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("name", ["chief", "ps", "worker", "trainer"])
def test_members_of_the_cluster(strategy: Strategy, name: str) -> None:
    if (strategy, name) in IN_PLACE:
        expected = Scope.TASK, f"{strategy.value}.{name}.in_place"
    else:
        expected = Scope.ALL, f"{strategy.value}.{name}.all"
    assert scope_of(job_spec(ROLES, strategy), name) == expected


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("name", ["evaluator", "tensorboard"])
def test_observers_fall_alone(strategy: Strategy, name: str) -> None:
    assert scope_of(job_spec(ROLES, strategy), name) == (Scope.TASK, f"{strategy.value}.{name}.alone")


@pytest.mark.parametrize("strategy", Strategy)
def test_any_role_that_follows_falls_alone(strategy: Strategy) -> None:
    spec = job_spec((role("worker"), role("ps", follow=True)), strategy)
    assert scope_of(spec, "ps") == (Scope.TASK, f"{strategy.value}.ps.alone")


def test_an_evaluator_inside_the_cluster_comes_back_in_place() -> None:
    spec = job_spec((role("worker"), role("evaluator")), Strategy.SYNC)
    assert scope_of(spec, "evaluator") == (Scope.TASK, "sync.evaluator.in_place")


@pytest.mark.parametrize(
    ("strategy", "name", "scope", "rule"),
    [
        (Strategy.ASYNC, "worker", Scope.ALL, "async.worker.all.job"),
        (Strategy.ASYNC, "ps", Scope.TASK, "async.ps.in_place.job"),
        (Strategy.SYNC, "worker", Scope.TASK, "sync.worker.in_place.job"),
        (Strategy.SYNC, "evaluator", Scope.ALL, "sync.evaluator.all.job"),
        (Strategy.SYNC, "tensorboard", Scope.TASK, "sync.tensorboard.alone.job"),
    ],
)
def test_a_job_may_override_a_cell(strategy: Strategy, name: str, scope: Scope, rule: str) -> None:
    assert scope_of(job_spec(ROLES, strategy, scope={name: scope}), name) == (scope, rule)


def test_a_role_that_the_job_does_not_have_is_an_error() -> None:
    with pytest.raises(KeyError):
        scope_of(job_spec({"worker": 1}), "ps")


@given(
    strategy=st.sampled_from(Strategy),
    name=st.sampled_from(sorted(ROLES)),
    overrides=st.dictionaries(st.sampled_from(sorted(ROLES)), st.sampled_from(Scope)),
)
def test_scope_is_never_smaller_than_the_table_unless_the_job_says_so(
    strategy: Strategy, name: str, overrides: dict[str, Scope]
) -> None:
    scope, rule = scope_of(job_spec(ROLES, strategy, scope=overrides), name)
    small = (strategy, name) in IN_PLACE or name in {"evaluator", "tensorboard"}
    assert scope is overrides.get(name, Scope.TASK if small else Scope.ALL)
    assert rule.endswith(".job") == (name in overrides)
