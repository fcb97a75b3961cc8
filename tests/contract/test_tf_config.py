"""TF_CONFIG and the placeholders that describe a task's cluster to it."""

from __future__ import annotations

import json

import pytest

from supervisor.contract.desired import ClusterSpec, RoleAddresses
from supervisor.contract.ids import TaskId
from supervisor.contract.job.placeholders import fill, known_words
from supervisor.contract.job.tf_config import placeholder_values, tf_config

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


def filled(text: str, task: TaskId = PS_1, address: str = "") -> str:
    return fill(text, placeholder_values(SPEC, task, "/ckpt/g1", address=address))


def test_a_member_sees_the_cluster_and_itself() -> None:
    assert json.loads(tf_config(SPEC, PS_1)) == {"cluster": CLUSTER, "task": {"type": "ps", "index": 1}}


def test_an_evaluator_sees_the_cluster_without_being_in_it() -> None:
    config = json.loads(tf_config(SPEC, TaskId("digits", "evaluator", 0)))
    assert config == {"cluster": CLUSTER, "task": {"type": "evaluator", "index": 0}}


@pytest.mark.parametrize(("protocol", "told"), [("grpc", {}), ("grpc+verbs", {"rpc_layer": "grpc+verbs"})])
def test_a_resolver_is_told_of_another_protocol_than_grpc(protocol: str, told: dict[str, str]) -> None:
    assert json.loads(tf_config(SPEC, PS_1, protocol)) == json.loads(tf_config(SPEC, PS_1)) | told


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
        ("--address={address}", "--address=h2:2"),
    ],
)
def test_every_placeholder_has_its_value(text: str, expected: str) -> None:
    assert filled(text) == expected


def test_every_word_that_a_job_file_may_use_has_a_value() -> None:
    roles = [entry.role for entry in (*SPEC.roles, *SPEC.outside)]
    assert set(placeholder_values(SPEC, PS_1, "/c")) == known_words(roles)


def test_a_task_that_has_moved_alone_is_told_its_own_port() -> None:
    evaluator = TaskId("digits", "evaluator", 0)
    assert filled("{port} {evaluator_hosts}", evaluator, "h9:7") == "7 h3:3"


def test_an_address_of_ipv6_has_brackets_and_its_host_has_none() -> None:
    assert filled("{address} {host} {port}", address="[fd00::1]:7") == "[fd00::1]:7 fd00::1 7"
