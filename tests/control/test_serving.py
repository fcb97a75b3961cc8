"""The task whose models are published is told so, and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.contract.desired import Placement, Plan
from supervisor.contract.job.spec import ServingSpec
from supervisor.control.decide.jobs.prepare import bare_assignment
from tests.support.builders import job_spec

SERVING = ServingSpec("net", "export/*", "worker")


@pytest.mark.parametrize(
    ("role", "index", "exports"), [("worker", 0, True), ("worker", 1, False), ("chief", 0, False)]
)
def test_one_task_exports_models(role: str, index: int, exports: bool) -> None:
    spec, placement = replace(job_spec(), serving=SERVING), Placement(role, index, "n0", "i0")
    found = bare_assignment(spec, "u", Plan("digits", "p", 1, "i", (placement,)), placement)
    assert found.serving == (SERVING if exports else None)
    assert found.model_base == "/checkpoints/digits/models/net", "any task may serve it"
