"""The ClusterSpec of a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.contract.desired import RoleAddresses
from supervisor.contract.errors import InvariantBroken
from supervisor.contract.observed import Prepared
from supervisor.control.decide.facts.cluster_spec import build
from tests.support.builders import job_spec, plan_for, prepared_for

SPEC = job_spec({"worker": 2, "evaluator": 1, "ps": 1})
PLAN = plan_for(SPEC, {"worker.1": "n2"}, generation=4)
PS = prepared_for(PLAN)["ps.0"]
EVALUATOR = prepared_for(PLAN)["evaluator.0"]


def changed(member: str, record: Prepared) -> dict[str, Prepared]:
    return prepared_for(PLAN) | {member: record}


def without(member: str) -> dict[str, Prepared]:
    return {name: record for name, record in prepared_for(PLAN).items() if name != member}


def test_addresses_by_role_in_the_order_of_the_job_followers_outside() -> None:
    built = build(SPEC, PLAN, prepared_for(PLAN))
    assert (built.job, built.generation, built.plan_id) == ("digits", 4, "plan-1")
    assert built.roles == (
        RoleAddresses("worker", ("n1:20000", "n2:20001")),
        RoleAddresses("ps", ("n1:20003",)),
    )
    assert built.outside == (RoleAddresses("evaluator", ("n1:20002",)),)


@pytest.mark.parametrize(
    ("prepared", "message"),
    [
        (without("ps.0"), "ps.0 is not prepared"),
        (without("evaluator.0"), "evaluator.0 is not prepared"),
        (changed("ps.0", replace(PS, address="n1:20000")), "worker.0 and ps.0 both have n1:20000"),
        (
            changed("evaluator.0", replace(EVALUATOR, address="n1:20000")),
            "worker.0 and evaluator.0 both have n1:20000",
        ),
        (changed("ps.0", replace(PS, address="")), "ps.0 has no address: none reported"),
        (changed("ps.0", replace(PS, failure="no free port")), "ps.0 has no address: no free port"),
        (
            changed("ps.0", replace(PS, node="n9")),
            "ps.0 belongs on n1, but is prepared on n9 for plan plan-1",
        ),
        (
            changed("ps.0", replace(PS, plan_id="old")),
            "ps.0 belongs on n1, but is prepared on n1 for plan old",
        ),
    ],
)
def test_a_plan_that_is_not_whole_is_refused(prepared: dict[str, Prepared], message: str) -> None:
    with pytest.raises(InvariantBroken, match=message) as raised:
        build(SPEC, PLAN, prepared)
    assert str(raised.value).startswith("plan plan-1 of digits, generation 4: ")


def test_a_task_that_the_plan_does_not_place_is_refused() -> None:
    part = replace(PLAN, placements=PLAN.placements[1:])
    with pytest.raises(InvariantBroken, match=r"worker\.0 is not placed"):
        build(SPEC, part, prepared_for(PLAN))


@given(
    counts=st.dictionaries(
        st.sampled_from(["chief", "ps", "worker", "evaluator"]), st.integers(1, 12), min_size=1
    )
)
def test_every_task_is_found_at_its_own_address(counts: dict[str, int]) -> None:
    spec = job_spec(counts)
    plan = plan_for(spec)
    prepared = prepared_for(plan)
    built = build(spec, plan, prepared)
    for task in spec.tasks():
        assert built.address(task.role, task.index) == prepared[task.member].address
