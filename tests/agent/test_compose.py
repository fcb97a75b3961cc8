"""Command, environment and order of start of a task."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agent.core.compose import start_message
from agent.core.desired import recipe_of
from agent.core.instructions import Launch
from agent.inside.child import partial
from agent.inside.child.cadence import VARIABLE
from supervisor.contract.desired import Assignment, Cadence, ClusterSpec, RoleAddresses

SPEC = ClusterSpec(
    "job",
    1,
    "p",
    (RoleAddresses("ps", ("h:1", "h:2")), RoleAddresses("worker", ("h:3",))),
    (RoleAddresses("dispatcher", ("h:4",)),),
)
WANTED = Assignment("job", "u", "worker", 0, 1, "p", "n1", "i1", 1, ("python", "x.py"), "/w")


def launch(*after: str) -> Launch:
    wanted = replace(WANTED, after=after, startup_ms=5_000)
    return Launch("l1", wanted, SPEC, None, "p.worker.0", warm=True, address="h:3")


def test_a_saver_is_told_how_often_the_job_fails() -> None:
    assert VARIABLE not in start_message(launch(), "i1", "/a", "/c").env
    told = replace(WANTED, cadence=Cadence(2.1, 8_640_000, 0.01, steers=True, cost_ms=40))
    message = start_message(replace(launch(), assignment=told), "i1", "/a", "/c")
    assert message.env[VARIABLE] == "2.1 8640000 0.01 1 40"


def test_a_chief_is_told_to_keep_what_was_not_lost() -> None:
    assert partial.VARIABLE not in start_message(launch(), "i1", "/a", "/c").env
    told = replace(WANTED, partial_ps=True)
    message = start_message(replace(launch(), assignment=told), "i1", "/a", "/c")
    assert message.env[partial.VARIABLE] == partial.PARTIAL


def test_a_program_gets_its_protocol_however_it_reads_it() -> None:
    order = replace(WANTED, protocol="grpc+verbs", argv=("x", "{protocol}"), templated=True)
    message = start_message(replace(launch(), assignment=order), "i1", "/a", "/c")
    assert (message.argv[1], message.env["TFSUP_PROTOCOL"]) == ("grpc+verbs", "grpc+verbs")
    assert json.loads(message.env["TF_CONFIG"])["rpc_layer"] == "grpc+verbs"


def test_a_task_waits_for_every_task_of_the_roles_that_come_first() -> None:
    message = start_message(launch("ps", "dispatcher"), "i1", "/a", "/c")
    assert message.wait_for == ("ps:0=h:1", "ps:1=h:2", "dispatcher:0=h:4")
    assert message.wait_ms == 5_000
    assert start_message(launch(), "i1", "/a", "/c").wait_for == ()


def test_placeholders_are_filled_in_command_and_environment_alike() -> None:
    asked = {"HOSTS": "{ps_hosts}", "JSON": '{{"index": {task_index}}}', "PLAIN": "${HOME}"}
    order = replace(WANTED, argv=("python", "{checkpoint_dir}/{{x}}"), env=asked, templated=True)
    message = start_message(replace(launch(), assignment=order), "i1", "/a", "/c")
    assert message.argv == ("python", "/c/{x}")
    assert {name: message.env[name] for name in asked} == {
        "HOSTS": "h:1,h:2",
        "JSON": '{"index": 0}',
        "PLAIN": "${HOME}",
    }


def test_a_server_is_given_the_directory_of_the_model_that_its_job_publishes() -> None:
    argv = ("serve", "--model_base_path={model_base}")
    order = replace(WANTED, argv=argv, model_base="/store/models/net", templated=True)
    message = start_message(replace(launch(), assignment=order), "i1", "/a", "/c")
    assert message.argv[1] == "--model_base_path=/store/models/net"


def test_a_job_of_an_earlier_release_keeps_its_environment_as_it_is() -> None:
    order = replace(WANTED, argv=("sh", "{{task_index}}"), env={"HOSTS": "{ps_hosts} {{x}}"})
    message = start_message(replace(launch(), assignment=order), "i1", "/a", "/c")
    assert message.argv == ("sh", "{0}")
    assert message.env["HOSTS"] == "{ps_hosts} {{x}}"


@pytest.mark.parametrize("runtime", ["process", "docker"])
def test_a_launcher_imports_without_what_depends_on_addresses(runtime: str) -> None:
    order = replace(WANTED, env={"A": "{{x}}", "HOSTS": "{ps_hosts}"}, templated=True)
    assert recipe_of(order, runtime).env == {"A": "{x}"}
    assert recipe_of(replace(order, templated=False), runtime).env == order.env


def test_a_role_that_the_spec_lacks_is_an_error() -> None:
    with pytest.raises(KeyError, match="tensorboard"):
        start_message(launch("tensorboard"), "i1", "/a", "/c")


def test_only_the_first_attempt_of_a_generation_waits_for_others() -> None:
    first = replace(launch(), assignment=replace(WANTED, yields=True))
    again = replace(launch(), assignment=replace(WANTED, yields=True, attempt=2))
    assert start_message(first, "i1", "/a", "/c").yields
    assert not start_message(again, "i1", "/a", "/c").yields
    assert not start_message(launch(), "i1", "/a", "/c").yields


def test_tensorflow_makes_no_more_queues_than_its_cluster_has_tasks() -> None:
    def queues(spec: ClusterSpec, **env: str) -> str:
        wanted = replace(launch(), spec=spec, assignment=replace(WANTED, env=env))
        return start_message(wanted, "i1", "/a", "/c").env["TF_GRPC_WORKER_CACHE_QUEUES"]

    many = replace(SPEC, roles=(RoleAddresses("worker", tuple(f"h:{port}" for port in range(1, 200))),))
    assert queues(SPEC) == "4"
    assert queues(many) == "64"
    assert queues(SPEC, TF_GRPC_WORKER_CACHE_QUEUES="9") == "9"
