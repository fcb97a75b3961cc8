"""What tasks are told of their cluster."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.contract.desired import ClusterSpec, RoleAddresses
from supervisor.contract.ids import TaskId
from supervisor.contract.tf_config import fill, tf_config

SPEC = ClusterSpec(
    job="digits",
    generation=1,
    plan_id="p",
    roles=(
        RoleAddresses("chief", ("h1:1",)),
        RoleAddresses("ps", ("h1:2", "h2:2")),
        RoleAddresses("data-worker", ("h3:9",)),
    ),
    outside=(RoleAddresses("evaluator", ("h3:3",)),),
)
CLUSTER = {"chief": ["h1:1"], "ps": ["h1:2", "h2:2"], "data-worker": ["h3:9"]}
PS_1 = TaskId("digits", "ps", 1)


def filled(*argv: str, task: TaskId = PS_1) -> tuple[str, ...]:
    return fill(argv, SPEC, task, "/ckpt/g1")


def test_a_member_sees_the_cluster_and_itself() -> None:
    assert json.loads(tf_config(SPEC, PS_1)) == {"cluster": CLUSTER, "task": {"type": "ps", "index": 1}}


def test_an_evaluator_sees_the_cluster_without_being_in_it() -> None:
    config = json.loads(tf_config(SPEC, TaskId("digits", "evaluator", 0)))
    assert config == {"cluster": CLUSTER, "task": {"type": "evaluator", "index": 0}}


@pytest.mark.parametrize(("role", "index", "error"), [("ps", 2, IndexError), ("worker", 0, KeyError)])
def test_a_stranger_gets_no_config(role: str, index: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        tf_config(SPEC, TaskId("digits", role, index))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--ps_hosts={ps_hosts}", "--ps_hosts=h1:2,h2:2"),
        ("{chief_hosts}", "h1:1"),
        ("--worker_hosts={worker_hosts}", "--worker_hosts="),
        ("--master_hosts={master_hosts}", "--master_hosts="),
        ("{data-worker_hosts}", "h3:9"),
        ("{evaluator_hosts}", "h3:3"),
        ("{job_name}:{task_index}", "ps:1"),
        ("{checkpoint_dir}/model", "/ckpt/g1/model"),
        ("--host={host} --port={port}", "--host=h2 --port=2"),
        ("{{job_name}}", "{ps}"),
        ("{other_hosts} {} {0} {job_name!r} {task_index:02} { job_name }", None),
        ('{"a": {"b": 1}}', None),
        ("{", None),
        ("${HOME}", None),
    ],
)
def test_exactly_the_placeholders_are_filled(text: str, expected: str | None) -> None:
    assert filled(text) == (text if expected is None else expected,)


def test_what_is_filled_in_is_not_filled_again() -> None:
    assert fill(("{checkpoint_dir}",), SPEC, PS_1, "/x/{job_name}") == ("/x/{job_name}",)


def test_a_task_that_has_moved_alone_is_told_its_own_port() -> None:
    evaluator = TaskId("digits", "evaluator", 0)
    assert fill(("{port}", "{evaluator_hosts}"), SPEC, evaluator, "/c", address="h9:7") == ("7", "h3:3")


@given(argv=st.lists(st.text("{}abc_ ", max_size=20), max_size=4))
def test_other_text_is_left_alone(argv: list[str]) -> None:
    assert filled(*argv) == tuple(argv)
