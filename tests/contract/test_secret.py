"""Secrets in job specs and on their way: bounds, who may use them, which variables they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.contract import codec, secret
from supervisor.contract.job.bounds import objections
from supervisor.contract.job.spec import JobSpec
from supervisor.contract.secret import (
    SecretsAnswer,
    Source,
    environment_of,
    secrets_of,
    uses,
    value_objection,
)
from tests.support.builders import job_spec, role

JOB = job_spec()
SPEC = job_spec((replace(role("worker"), env={"PLAIN": "x", "A": "text"}, secrets={"B": "two"}), role("ps")))
SPEC = replace(SPEC, env={"B": "text", "C": "text"}, secrets={"A": "one", "D": "three"})


def test_the_variable_of_a_role_is_stronger_whatever_each_is() -> None:
    worker, ps = SPEC.roles
    assert secrets_of(SPEC, worker) == {"B": "two", "D": "three"}
    assert environment_of(SPEC, worker) == {"C": "text", "PLAIN": "x", "A": "text"}
    assert secrets_of(SPEC, ps) == {"A": "one", "D": "three"}
    assert environment_of(SPEC, ps) == {"B": "text", "C": "text"}


def test_each_field_that_names_a_secret_is_told() -> None:
    assert dict(uses(SPEC)) == {
        ("env", "A"): "one",
        ("env", "D"): "three",
        ("roles", "worker", "env", "B"): "two",
    }


def test_a_spec_of_an_earlier_release_has_none() -> None:
    raw = codec.encode(SPEC).replace(b'"secrets"', b'"unknown"')
    read = codec.decode(JobSpec, raw)
    assert not list(uses(read))


@pytest.mark.parametrize(
    ("job", "field", "text"),
    [
        (replace(JOB, secrets={"A": "no name"}), ("env", "A"), "secret 'no name' is not a valid name"),
        (replace(JOB, secrets={"TF_CONFIG": "one"}), ("env", "TF_CONFIG"), "set by tf-supervisor"),
        (replace(JOB, secrets={"A": "x"}, env={"A": "y"}), ("env", "A"), "is a text and a secret; keep one"),
        (
            replace(JOB, secrets={f"A{i}": "x" for i in range(17)}),
            ("roles", "ps", "env"),
            "17 secrets of a task; at most 16",
        ),
    ],
)
def test_what_a_client_may_not_send_is_refused_with_its_field(
    job: JobSpec, field: tuple[str, ...], text: str
) -> None:
    found = list(objections(job))
    assert any(each.where == field and text in each.text for each in found), found
    assert not list(objections(replace(JOB, secrets={"A": "x"})))


@pytest.mark.parametrize(
    ("allow", "serves"),
    [
        ({"*"}, True),
        ({"user:alice"}, True),
        ({"group:vision"}, True),
        ({"user:bob", "group:nlp", "user:vision", "group:user:alice", "group:"}, False),
    ],
)
def test_a_source_serves_its_owners_and_groups_alone(allow: set[str], serves: bool) -> None:
    assert Source(frozenset(allow)).serves("user:alice", "vision") is serves


def test_a_job_without_owner_and_group_is_served_by_the_star_alone() -> None:
    assert not Source(frozenset({"", "group:", "user:"})).serves("", "")
    assert Source(frozenset({"*"})).serves("", "")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"12345678", ""),
        ("Schlüssel-1".encode(), ""),
        (b"", "fewer than 8 characters"),
        (b"1234567", "fewer than 8 characters"),
        (b"  12345  ", "fewer than 8 characters"),
        (b"abcabcabcabc", "fewer than 4 different characters"),
        (b"0123456789" * 1639, "more than 16 KiB"),
        (b"12345678\n" * 128, ""),
        (b"12345678\n" * 129, "more than 128 lines"),
        (b"01234567\0", "NUL"),
        (b"0123456\xff", "not UTF-8"),
    ],
)
def test_values_that_cannot_be_given_or_masked_are_told_without_the_value(value: bytes, why: str) -> None:
    found = value_objection(value)
    assert why in found
    assert bool(found) is bool(why)
    assert not value or value.decode(errors="replace") not in found


def test_no_text_of_an_answer_holds_a_value() -> None:
    assert "Abcdefgh" not in repr(SecretsAnswer({"a": "Abcdefgh"}))
    assert secret.MOST_BYTES * secret.MOST_SECRETS < 512 * 1024, "of a message of 1 MiB"
