"""What the leader cannot give: which field of the job asks for it, and what a job without nodes waits for."""

from __future__ import annotations

import pytest

from supervisor.contract import keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.errors import Conflict, UserError
from supervisor.contract.incident import Cause
from supervisor.contract.job import RestartPolicy, Rule, Strategy
from supervisor.contract.views import SubmitRequest
from supervisor.wire.failures import from_failure, to_failure
from tests.guarantees.test_desk import Office, other
from tests.support.builders import job_spec, resources, role


async def test_the_role_that_asks_too_much_is_named_also_across_the_api() -> None:
    greedy = job_spec((role("small"), role("large", need=resources(gpus=9))), Strategy.PLAIN, name="greedy")
    for ask in (Office().desk.validate, Office().desk.submit):
        with pytest.raises(UserError, match="greedy/large:0 needs 9 GPUs, 0 free") as caught:
            await ask(SubmitRequest(greedy))
        assert from_failure(to_failure(caught.value)).field == ("roles", "large", "resources")


async def test_a_directory_that_is_taken_is_named_as_the_field_that_it_is() -> None:
    office = Office()
    with pytest.raises(Conflict) as caught:
        await office.desk.submit(SubmitRequest(other(office.world.spec.checkpoint.uri)))
    assert caught.value.field == ("checkpoint", "uri")


async def test_without_any_agent_a_job_is_accepted_and_says_what_it_waits_for() -> None:
    office = Office()
    office.world.write(*(Delete(keys.node(node)) for node in office.world.agents))
    greedy = job_spec((role("large", need=resources(gpus=9)),), Strategy.PLAIN, name="greedy")
    told = "it waits for a node: no agent is registered"
    assert (await office.desk.validate(SubmitRequest(greedy))).detail == told
    assert (await office.desk.submit(SubmitRequest(greedy))).detail.endswith(told)


async def test_a_rule_that_a_job_cannot_change_is_named() -> None:
    policy = RestartPolicy(rules={Cause.WALL_TIME.value: Rule.RESTART})
    with pytest.raises(UserError, match="the rule of wall_time cannot be changed") as caught:
        await Office().desk.validate(SubmitRequest(job_spec(restart=policy, name="other")))
    assert caught.value.field == ("restart", "rules", "wall_time")
