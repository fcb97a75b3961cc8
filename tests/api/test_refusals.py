"""Jobs that the leader cannot serve: the field that asks too much, and the nodes that a job waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.contract import keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.errors import Conflict, FitsNowhere, UserError
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import ContainerSpec, JobSpec, Mount, RestartPolicy, Rule, Strategy, Ulimit
from supervisor.contract.views.jobs import SubmitRequest
from supervisor.wire.failures import from_failure, to_failure
from tests.control.leader import Leader, other_job
from tests.support.builders import job_spec, resources, role


async def test_the_role_that_asks_too_much_is_named_also_across_the_api() -> None:
    greedy = job_spec((role("small"), role("large", need=resources(gpus=9))), Strategy.PLAIN, name="greedy")
    leader = Leader()
    for node in leader.world.agents:
        leader.world.see_gpus(node)
    for ask in (leader.job_service.submissions.validate, leader.job_service.submissions.submit):
        with pytest.raises(UserError, match="greedy/large:0 needs 9 GPUs, 0 free") as caught:
            await ask(SubmitRequest(greedy))
        told = from_failure(to_failure(caught.value))
        assert (type(told), told.field) == (FitsNowhere, ("roles", "large", "resources"))


async def test_a_directory_that_is_taken_is_named_as_the_field_that_it_is() -> None:
    leader = Leader()
    with pytest.raises(Conflict) as caught:
        await leader.job_service.submissions.submit(
            SubmitRequest(other_job(leader.world.spec.checkpoint.uri))
        )
    assert caught.value.field == ("checkpoint", "uri")


async def test_without_any_agent_a_job_is_accepted_and_says_what_it_waits_for() -> None:
    leader = Leader()
    leader.world.write(*(Delete(keys.node(node)) for node in leader.world.agents))
    greedy = job_spec((role("large", need=resources(gpus=9)),), Strategy.PLAIN, name="greedy")
    told = "it waits for a node: no agent is registered"
    assert (await leader.job_service.submissions.validate(SubmitRequest(greedy))).detail == told
    assert (await leader.job_service.submissions.submit(SubmitRequest(greedy))).detail.endswith(told)


async def test_a_node_that_has_not_told_of_its_gpus_may_have_them() -> None:
    leader = Leader()
    leader.world.see_gpus("n0")
    greedy = job_spec((role("large", need=resources(gpus=1)),), Strategy.PLAIN, name="greedy")
    told = "it waits until n1, n2 told of their GPUs"
    assert (await leader.job_service.submissions.validate(SubmitRequest(greedy))).detail == told


async def test_a_label_that_nobody_has_is_named() -> None:
    picky = job_spec((role("large", need=resources(labels={"gpu": "b200"})),), Strategy.PLAIN, name="picky")
    with pytest.raises(UserError, match="needs a node with label gpu=b200; none of 3 nodes has it") as caught:
        await Leader().job_service.submissions.validate(SubmitRequest(picky))
    assert caught.value.field == ("roles", "large", "resources", "labels")


async def test_a_container_without_a_node_that_runs_any_is_named() -> None:
    boxed = replace(job_spec({"worker": 1}, Strategy.PLAIN, name="boxed"), container=ContainerSpec("tf"))
    with pytest.raises(UserError, match="none of 3 nodes has it") as caught:
        await Leader().job_service.submissions.validate(SubmitRequest(boxed))
    assert caught.value.field == ("container",)


async def test_a_rule_that_a_job_cannot_change_is_named() -> None:
    policy = RestartPolicy(rules={Cause.WALL_TIME.value: Rule.RESTART})
    with pytest.raises(UserError, match="the rule of wall_time cannot be changed") as caught:
        await Leader().job_service.submissions.validate(SubmitRequest(job_spec(restart=policy, name="other")))
    assert caught.value.field == ("restart", "rules", "wall_time")


def _other(container: ContainerSpec | None = None, env: dict[str, str] | None = None) -> JobSpec:
    return replace(job_spec(name="other"), container=container, env=env or {})


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (_other(container=ContainerSpec(network="container:etcd")), ("container", "network")),
        (_other(container=ContainerSpec(pids=-1)), ("container", "pids")),
        (
            _other(container=ContainerSpec(mounts=(Mount("/run/docker.sock", "/data"),))),
            ("container", "mounts", "0", "source"),
        ),
        (
            _other(container=ContainerSpec(ulimits=(Ulimit("rtprio", 9, 9),))),
            ("container", "ulimits", "rtprio"),
        ),
        (_other(env={"LD_PRELOAD": "/x.so"}), ("env", "LD_PRELOAD")),
        (_other(env={"NVIDIA_VISIBLE_DEVICES": "all"}), ("env", "NVIDIA_VISIBLE_DEVICES")),
    ],
)
async def test_a_client_that_read_no_job_file_gets_no_more_than_one_that_did(
    spec: JobSpec, field: tuple[str, ...]
) -> None:
    leader = Leader()
    for ask in (leader.job_service.submissions.validate, leader.job_service.submissions.submit):
        with pytest.raises(UserError) as caught:
            await ask(SubmitRequest(spec))
        assert from_failure(to_failure(caught.value)).field == field
    assert "other" not in leader.world.snapshot().jobs
