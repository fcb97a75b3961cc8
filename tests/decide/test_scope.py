"""The table of docs/strategies.md, cell by cell."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.policy.scope import come_back_together, may_move, scope_of
from supervisor.contract.ids import TaskId
from supervisor.contract.job.spec import JobSpec, PsRecovery, Scope, Strategy
from tests.support.builders import job_spec, role

ROLES = {"chief": 1, "master": 1, "ps": 1, "worker": 2, "evaluator": 1, "tensorboard": 1, "trainer": 1}
IN_PLACE = {(Strategy.ASYNC, "worker"), (Strategy.COORDINATOR, "worker")}


def of(spec: JobSpec, role: str, index: int = 0) -> tuple[Scope, str]:
    return scope_of(spec, TaskId(spec.name, role, index))


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("name", ["chief", "master", "ps", "worker", "trainer"])
def test_members_of_the_cluster(strategy: Strategy, name: str) -> None:
    if (strategy, name) in IN_PLACE:
        expected = Scope.TASK, f"{strategy.value}.{name}.in_place"
    else:
        expected = Scope.ALL, f"{strategy.value}.{name}.all"
    assert of(job_spec(ROLES, strategy), name) == expected


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("name", ["evaluator", "tensorboard"])
def test_observers_fall_alone(strategy: Strategy, name: str) -> None:
    assert of(job_spec(ROLES, strategy), name) == (Scope.TASK, f"{strategy.value}.{name}.alone")


@pytest.mark.parametrize("strategy", Strategy)
def test_any_role_that_follows_falls_alone(strategy: Strategy) -> None:
    spec = job_spec((role("worker"), role("ps", follow=True)), strategy)
    assert of(spec, "ps") == (Scope.TASK, f"{strategy.value}.ps.alone")


def test_an_evaluator_inside_the_cluster_comes_back_in_place() -> None:
    spec = job_spec((role("worker"), role("evaluator")), Strategy.SYNC)
    assert of(spec, "evaluator") == (Scope.TASK, "sync.evaluator.in_place")


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
    assert of(job_spec(ROLES, strategy, scope={name: scope}), name) == (scope, rule)


def test_a_ps_that_is_restored_by_itself_restarts_alone() -> None:
    spec = job_spec(ROLES)
    partial = replace(spec, restart=replace(spec.restart, ps_recovery=PsRecovery.PARTIAL))
    assert of(partial, "ps") == (Scope.TASK, "async.ps.in_place.job")
    assert [of(partial, name) for name in ROLES if name != "ps"] == [
        of(spec, name) for name in ROLES if name != "ps"
    ]


def test_a_role_that_the_job_does_not_have_is_an_error() -> None:
    with pytest.raises(KeyError):
        of(job_spec({"worker": 1}), "ps")


@given(
    strategy=st.sampled_from(Strategy),
    name=st.sampled_from(sorted(ROLES)),
    overrides=st.dictionaries(st.sampled_from(sorted(ROLES)), st.sampled_from(Scope)),
)
def test_scope_is_never_smaller_than_the_table_unless_the_job_says_so(
    strategy: Strategy, name: str, overrides: dict[str, Scope]
) -> None:
    scope, rule = of(job_spec(ROLES, strategy, scope=overrides), name)
    small = (strategy, name) in IN_PLACE or name in {"evaluator", "tensorboard"}
    assert scope is overrides.get(name, Scope.TASK if small else Scope.ALL)
    assert rule.endswith(".job") == (name in overrides)


@pytest.mark.parametrize("strategy", [Strategy.ASYNC, Strategy.COORDINATOR])
def test_the_worker_that_saves_is_the_chief_where_there_is_none(strategy: Strategy) -> None:
    spec = job_spec({"ps": 1, "worker": 2}, strategy)
    assert of(spec, "worker", 0) == (Scope.ALL, f"{strategy.value}.worker.all.saver")
    assert of(spec, "worker", 1) == (Scope.TASK, f"{strategy.value}.worker.in_place")


def test_a_master_saves_so_that_worker_0_comes_back_alone() -> None:
    spec = job_spec({"master": 1, "ps": 1, "worker": 2})
    assert of(spec, "worker", 0) == (Scope.TASK, "async.worker.in_place")
    assert of(spec, "master", 0) == (Scope.ALL, "async.master.all")


def test_a_job_may_have_its_saver_back_in_place() -> None:
    spec = job_spec({"ps": 1, "worker": 2}, scope={"worker": Scope.TASK})
    assert of(spec, "worker", 0) == (Scope.TASK, "async.worker.in_place.job")


def test_who_saves_outside_the_cluster_is_nobodys_chief() -> None:
    spec = job_spec((role("exporter", follow=True), role("ps")), Strategy.PLAIN)
    assert of(spec, "exporter") == (Scope.TASK, "plain.exporter.alone")


@given(
    strategy=st.sampled_from(Strategy),
    counts=st.dictionaries(st.sampled_from(sorted(ROLES)), st.integers(1, 3), min_size=1),
    overrides=st.dictionaries(st.sampled_from(sorted(ROLES)), st.sampled_from(Scope)),
)
def test_what_saves_inside_the_cluster_never_comes_back_alone_unasked(
    strategy: Strategy, counts: dict[str, int], overrides: dict[str, Scope]
) -> None:
    spec = job_spec(counts, strategy, scope=overrides)
    for task in spec.tasks():
        scope, rule = scope_of(spec, task)
        if task == spec.saver and not spec.role(task.role).outside and task.role not in overrides:
            assert scope is Scope.ALL
        elif task.role not in overrides:
            others = [other for other in spec.tasks() if other.role == task.role and other != spec.saver]
            assert {scope_of(spec, other)[0] for other in others} <= {scope}
        assert rule.endswith(".saver") <= (task == spec.saver)


@pytest.mark.parametrize(
    ("strategy", "member", "asked", "moves"),
    [
        (Strategy.ASYNC, "worker:1", None, True),
        (Strategy.COORDINATOR, "worker:1", None, True),
        (Strategy.ASYNC, "worker:1", Scope.ALL, False),
        (Strategy.SYNC, "worker:1", Scope.TASK, False),
        (Strategy.ASYNC, "worker:0", Scope.TASK, False),
        (Strategy.ASYNC, "ps:0", Scope.TASK, False),
    ],
)
def test_what_moves_is_a_worker_that_the_others_can_spare(
    strategy: Strategy, member: str, asked: Scope | None, moves: bool
) -> None:
    spec = replace(job_spec({"ps": 1, "worker": 2}), strategy=strategy)
    if asked is not None:
        spec = replace(spec, restart=replace(spec.restart, scope={"worker": asked, "ps": asked}))
    assert may_move(spec, TaskId.parse(f"{spec.name}/{member}")) == moves


def test_the_worker_that_may_restore_moves_no_more_than_the_one_that_was_seen_to_save() -> None:
    spec = job_spec({"ps": 1, "worker": 3}, Strategy.ASYNC)
    workers = [task for task in spec.tasks() if task.role == "worker"]
    assert [may_move(spec, task, workers[2]) for task in workers] == [False, True, False]


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("asked", [None, *Scope])
def test_parameter_servers_of_an_asynchronous_job_come_back_together_unless_it_says_all(
    strategy: Strategy, asked: Scope | None
) -> None:
    spec = job_spec(ROLES, strategy, scope={"ps": asked} if asked is not None else {})
    together = {role for role in ROLES if come_back_together(spec, TaskId(spec.name, role, 0))}
    expected = strategy is Strategy.ASYNC and asked is not Scope.ALL
    assert together == ({"ps"} if expected else set())
