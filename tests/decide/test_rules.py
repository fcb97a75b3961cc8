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


def test_some_exit_codes_are_restarted_where_others_fail() -> None:
    spec = job_spec(restart=RestartPolicy(rules={"program_exit": Rule.FAIL}, retry_from=128))
    codes = {code: rule_of(spec, Cause.PROGRAM_EXIT, code=code) for code in (0, 1, 127, 128, 255)}
    assert codes == {0: Rule.FAIL, 1: Rule.FAIL, 127: Rule.FAIL, 128: Rule.RESTART, 255: Rule.RESTART}
    assert rule_of(spec, Cause.NAN_LOSS, code=200) is Rule.FAIL
    ignoring = job_spec(restart=RestartPolicy(rules={"program_exit": Rule.IGNORE}, retry_from=128))
    assert rule_of(ignoring, Cause.PROGRAM_EXIT, code=200) is Rule.IGNORE
    none = job_spec(restart=RestartPolicy(rules={"program_exit": Rule.FAIL}))
    assert rule_of(none, Cause.PROGRAM_EXIT, code=255) is Rule.FAIL


def test_a_cause_that_does_not_exist() -> None:
    assert "unknown cause 'oops'" in objection("oops")
