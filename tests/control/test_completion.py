"""The end of training, by the roles and exits of a job's tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.contract.job.spec import Strategy, SuccessPolicy
from supervisor.contract.observed import Exit, ExitReason
from supervisor.control.decide.assess.completion import Completion, CompletionState, completion
from tests.support.builders import ended, job_spec, report, reports, role

OK = ended(code=0)
FAILED = ended(code=1)
GRACE_MS = 10_000
SPEC = job_spec({"chief": 1, "ps": 1, "worker": 2, "evaluator": 1})
WORKERS = job_spec({"worker": 2}, Strategy.MULTIWORKER)


def judge(now_ms: int = 100_000, first_done_ms: int | None = None, **ends: Exit | None) -> Completion:
    return completion(SPEC, reports(**ends), now_ms, first_done_ms, GRACE_MS)


def test_all_training_tasks_exited_with_0() -> None:
    assert judge(chief_0=OK, ps_0=None, worker_0=OK, worker_1=OK, evaluator_0=None) == Completion(
        CompletionState.DONE, "3 training tasks exited with code 0", chief_done=True
    )


@pytest.mark.parametrize(
    ("ends", "waiting"),
    [
        ({}, "chief:0"),
        ({"chief_0": None, "worker_0": OK, "worker_1": OK}, "chief:0"),
        ({"chief_0": FAILED, "worker_0": OK, "worker_1": OK}, "chief:0"),
        ({"chief_0": ended(reason=ExitReason.KILLED, code=0), "worker_0": OK, "worker_1": OK}, "chief:0"),
        ({"chief_0": ended(signal=9), "worker_0": OK, "worker_1": OK}, "chief:0"),
    ],
)
def test_without_the_chief_it_is_not_over(ends: dict[str, Exit | None], waiting: str) -> None:
    result = completion(SPEC, reports(**ends), 100_000, None, GRACE_MS)
    assert result == Completion(CompletionState.NOT_YET, f"waits for digits/{waiting} to exit with code 0")


def test_after_the_chief_the_workers_have_a_grace() -> None:
    result = judge(now_ms=50_000, chief_0=OK, worker_0=OK, worker_1=None)
    assert result.state is CompletionState.NOT_YET
    assert result.chief_done


def test_the_grace_counts_from_when_the_chief_was_first_seen_done() -> None:
    before = judge(now_ms=59_999, first_done_ms=50_000, chief_0=OK, worker_0=None, worker_1=None)
    after = judge(now_ms=60_000, first_done_ms=50_000, chief_0=OK, worker_0=None, worker_1=None)
    assert before.state is CompletionState.NOT_YET
    assert after.state is CompletionState.DONE
    assert (
        "2 training tasks did not end within 10 s after; to train longer, let the chief wait" in after.detail
    )
    spec = replace(job_spec({"worker": 2}), success_policy=SuccessPolicy.WORKER_0)
    first = completion(spec, reports(worker_0=OK, worker_1=None), 60_000, 50_000, GRACE_MS)
    assert first.detail.endswith("10 s after; to train longer, write `success_policy: all_workers`")


def test_after_the_chief_nobody_is_left_to_wait_for() -> None:
    result = judge(chief_0=OK, ps_0=None, worker_0=FAILED, worker_1=ended(signal=9))
    assert result.state is CompletionState.DONE


def test_after_the_master_nobody_is_left_to_wait_for() -> None:
    spec = job_spec({"master": 1, "ps": 1, "worker": 1})
    ends = reports(master_0=OK, ps_0=None, worker_0=ended(signal=9))
    result = completion(spec, ends, 100_000, None, GRACE_MS)
    assert (result.state, result.chief_done) == (CompletionState.DONE, True)


def test_without_a_chief_role_every_worker_has_to_finish() -> None:
    part = completion(WORKERS, reports(worker_0=OK, worker_1=None), 100_000, 0, GRACE_MS)
    assert (part.state, part.chief_done) == (CompletionState.NOT_YET, False)
    assert completion(WORKERS, reports(worker_0=OK, worker_1=FAILED), 0, None, GRACE_MS).state is part.state
    whole = completion(WORKERS, reports(worker_0=OK, worker_1=OK), 0, None, GRACE_MS)
    assert whole.state is CompletionState.DONE


def test_without_a_chief_role_worker_0_may_decide() -> None:
    spec = replace(WORKERS, success_policy=SuccessPolicy.WORKER_0)
    other = completion(spec, reports(worker_0=None, worker_1=OK), 100_000, None, GRACE_MS)
    assert (other.state, other.chief_done) == (CompletionState.NOT_YET, False)
    first = completion(spec, reports(worker_0=OK, worker_1=None), 100_000, 100_000, GRACE_MS)
    assert (first.state, first.chief_done) == (CompletionState.NOT_YET, True)
    assert first.detail.startswith("digits/worker:0 exited with code 0")
    late = completion(spec, reports(worker_0=OK, worker_1=None), 110_000, 100_000, GRACE_MS)
    failed = completion(spec, reports(worker_0=OK, worker_1=FAILED), 0, None, GRACE_MS)
    assert (late.state, failed.state) == (CompletionState.DONE, CompletionState.DONE)


@pytest.mark.parametrize("strategy", Strategy)
def test_roles_of_other_names_train(strategy: Strategy) -> None:
    spec = job_spec((role("trainer", 1), role("dispatcher", 1)), strategy)
    done = completion(spec, reports(trainer_0=OK, dispatcher_0=None), 0, None, GRACE_MS)
    assert done.state is CompletionState.DONE
    assert (
        completion(spec, reports(trainer_0=None, dispatcher_0=OK), 0, None, 0).state
        is CompletionState.NOT_YET
    )


def test_a_job_of_servers_is_done_when_all_have_exited() -> None:
    spec = job_spec({"ps": 2})
    assert completion(spec, reports(ps_0=OK, ps_1=None), 0, None, 0).state is CompletionState.NOT_YET
    assert completion(spec, reports(ps_0=OK, ps_1=OK), 0, None, 0).state is CompletionState.DONE


ENDS = st.dictionaries(
    st.sampled_from([task.member for task in SPEC.tasks()]),
    st.sampled_from([None, OK, FAILED, ended(signal=9), ended(reason=ExitReason.KILLED, signal=9)]),
)


@given(ends=ENDS, now_ms=st.integers(0, 10**6), first_done_ms=st.none() | st.integers(0, 10**6))
def test_what_holds_of_every_judgement(
    ends: dict[str, Exit | None], now_ms: int, first_done_ms: int | None
) -> None:
    given_reports = {member: report(member, end) for member, end in ends.items()}
    result = completion(SPEC, given_reports, now_ms, first_done_ms, GRACE_MS)
    if result.state is CompletionState.DONE:
        assert ends.get("chief.0") == OK
        assert result.chief_done
    else:
        assert result.chief_done == (ends.get("chief.0") == OK)
        if result.chief_done:
            since_ms = now_ms if first_done_ms is None else first_done_ms
            later = completion(SPEC, given_reports, since_ms + GRACE_MS, since_ms, GRACE_MS)
            assert later.state is CompletionState.DONE
