"""Roles whose tasks end by themselves."""

from __future__ import annotations

import pytest

from recovery.policy.roles import RoleKind, kind_of, trains
from tests.support.builders import job_spec, role


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("chief", RoleKind.TRAINING),
        ("worker", RoleKind.TRAINING),
        ("trainer", RoleKind.TRAINING),
        ("ps", RoleKind.SERVER),
        ("dispatcher", RoleKind.SERVER),
        ("evaluator", RoleKind.SERVER),
        ("tensorboard", RoleKind.SERVER),
    ],
)
def test_kind_by_name(name: str, kind: RoleKind) -> None:
    assert kind_of(job_spec((role(name),)), name) is kind
    assert kind_of(job_spec((role(name, follow=True),)), name) is RoleKind.FOLLOWER


def test_a_job_trains_if_any_role_does() -> None:
    assert trains(job_spec({"ps": 1, "worker": 1}))
    assert not trains(job_spec({"ps": 1, "evaluator": 1}))


def test_a_role_that_the_job_does_not_have_is_an_error() -> None:
    with pytest.raises(KeyError):
        kind_of(job_spec({"worker": 1}), "ps")
