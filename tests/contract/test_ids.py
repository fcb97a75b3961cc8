"""Names and their spellings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.contract.errors import UserError
from supervisor.contract.ids import AttemptId, TaskId, check_name
from tests.support.records import NAMES

INDEXES = st.integers(0, 999_999)


@given(job=NAMES, role=NAMES, index=INDEXES)
def test_a_task_reads_back_from_its_spelling(job: str, role: str, index: int) -> None:
    task = TaskId(job, role, index)
    assert TaskId.parse(str(task)) == task


@given(job=NAMES, role=NAMES, index=INDEXES)
def test_a_task_reads_back_from_its_member(job: str, role: str, index: int) -> None:
    task = TaskId(job, role, index)
    assert TaskId.from_member(job, task.member) == task


@given(text=st.text(max_size=30))
def test_what_is_not_a_task_is_a_user_error(text: str) -> None:
    try:
        task = TaskId.parse(text)
    except UserError:
        return
    assert check_name("job", task.job) == task.job


@pytest.mark.parametrize(
    "text",
    [
        "",
        "digits",
        "digits/worker",
        "digits/worker:",
        "digits/worker:-1",
        "digits/worker:x",
        "/worker:0",
        "digits/:0",
        "digits worker:0",
        "digits/worker:1234567",
        "digits/worker:²",
        "../x:0",
        "a/b/c:0",
    ],
)
def test_these_are_no_tasks(text: str) -> None:
    with pytest.raises(UserError):
        TaskId.parse(text)


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "9", "x" * 63])
def test_these_are_names(name: str) -> None:
    assert check_name("job", name) == name


@pytest.mark.parametrize("name", ["", "a/b", "-a", ".", "..", "_a", "a b", "a\n", "é", "x" * 64, "a\x00"])
def test_these_are_no_names(name: str) -> None:
    with pytest.raises(UserError, match="is not a valid name"):
        check_name("job", name)


@given(
    first=st.tuples(NAMES, INDEXES, st.integers(1, 9999), st.integers(1, 9999)),
    second=st.tuples(NAMES, INDEXES, st.integers(1, 9999), st.integers(1, 9999)),
)
def test_attempts_of_a_job_have_directories_of_their_own(
    first: tuple[str, int, int, int], second: tuple[str, int, int, int]
) -> None:
    one, other = (
        AttemptId(TaskId("j", role, index), gen, number) for role, index, gen, number in (first, second)
    )
    assert (one.dirname == other.dirname) == (one == other)


def test_an_attempt_names_task_generation_and_number() -> None:
    assert str(AttemptId(TaskId("digits", "ps", 0), 3, 2)) == "digits/ps:0@3.2"
