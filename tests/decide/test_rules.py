"""Rule per cause, and the document that shows it."""

from __future__ import annotations

import pytest

from recovery.policy.rules import TABLE, objection, rule_of
from supervisor.contract.incident import Cause
from supervisor.contract.job.spec import RestartPolicy, Rule
from tests.decide.policy_table import DOCUMENT, rendered
from tests.support.builders import job_spec


def test_every_cause_has_a_row() -> None:
    assert set(TABLE) == set(Cause)


def test_the_document_shows_the_tables_of_the_code() -> None:
    text = DOCUMENT.read_text()
    assert rendered(text) == text, "run: python -m tests.decide.policy_table"


@pytest.mark.parametrize("cause", [Cause.USER_ERROR, Cause.MISSING_PROGRAM, Cause.WALL_TIME, Cause.NAN_LOSS])
def test_what_a_restart_would_only_repeat_fails(cause: Cause) -> None:
    assert rule_of(job_spec(), cause) is Rule.FAIL


@pytest.mark.parametrize("cause", Cause)
def test_a_job_overrides_what_is_not_fixed(cause: Cause) -> None:
    spec = job_spec(restart=RestartPolicy(rules={cause.value: Rule.IGNORE}))
    expected = TABLE[cause].rule if TABLE[cause].fixed else Rule.IGNORE
    assert rule_of(spec, cause) is expected
    assert bool(objection(cause.value)) == TABLE[cause].fixed


def test_a_cause_that_does_not_exist() -> None:
    assert "unknown cause 'oops'" in objection("oops")
