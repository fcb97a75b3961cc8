"""Tasks that leave the processors to others when a whole generation starts."""

from __future__ import annotations

import pytest

from supervisor.contract.job.spec import Strategy
from supervisor.control.decide.jobs.prepare import waits_for_saver
from tests.support.builders import job_spec

ROLES = {"chief": 1, "ps": 1, "worker": 1, "evaluator": 1}


@pytest.mark.parametrize("strategy", [Strategy.ASYNC, Strategy.SYNC])
def test_replicas_wait_for_the_chief_that_sets_up_the_variables(strategy: Strategy) -> None:
    spec = job_spec(ROLES, strategy)
    assert [role for role in ROLES if waits_for_saver(spec, role, 0)] == ["worker"]


def test_without_a_chief_the_first_worker_sets_them_up() -> None:
    spec = job_spec({"ps": 1, "worker": 2})
    assert [index for index in (0, 1) if waits_for_saver(spec, "worker", index)] == [1]


@pytest.mark.parametrize(
    "strategy", [Strategy.COORDINATOR, Strategy.MULTIWORKER, Strategy.IN_GRAPH, Strategy.PLAIN]
)
def test_elsewhere_everybody_is_needed_for_the_first_step(strategy: Strategy) -> None:
    spec = job_spec({"chief": 1, "worker": 2}, strategy)
    assert not any(waits_for_saver(spec, role, 0) for role in ("chief", "worker"))
