"""Of several failures, the one that the others followed from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.policy.blame import NOTICE_LAG_MS, Failure, root_failures
from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Cause

FAILURES = st.lists(
    st.builds(
        Failure,
        st.builds(
            TaskId, st.just("digits"), st.sampled_from(["ps", "chief", "worker", "x"]), st.integers(0, 3)
        ),
        st.sampled_from(Cause),
        st.integers(0, 20_000),
    ),
    min_size=1,
    max_size=6,
)


def failure(member: str, cause: Cause, at_ms: int) -> Failure:
    return Failure(TaskId.from_member("digits", member), cause, at_ms)


@pytest.mark.parametrize(
    ("root", "other"),
    [
        # First in time.
        (failure("worker.1", Cause.PROGRAM_EXIT, 100), failure("worker.0", Cause.PROGRAM_EXIT, 200)),
        (failure("chief.0", Cause.PROGRAM_EXIT, 100), failure("ps.0", Cause.KILLED, 700)),
        # A peer's exit after a kill, seen in order, and seen just before it.
        (failure("ps.0", Cause.KILLED, 1_000), failure("chief.0", Cause.PROGRAM_EXIT, 3_900)),
        (failure("ps.0", Cause.KILLED, 1_000), failure("chief.0", Cause.PROGRAM_EXIT, 900)),
        # The peers of a lost node die long before the node is known to be lost.
        (failure("ps.0", Cause.NODE_LOST, 5_000), failure("chief.0", Cause.PROGRAM_EXIT, 1_500)),
        (failure("chief.0", Cause.PROGRAM_EXIT, 1_000), failure("ps.0", Cause.NODE_LOST, 7_000)),
        (failure("ps.0", Cause.LAUNCHER_LOST, 2_000), failure("chief.0", Cause.PROGRAM_SIGNAL, 500)),
        # Equal times.
        (failure("ps.0", Cause.PROGRAM_EXIT, 100), failure("worker.0", Cause.PROGRAM_EXIT, 100)),
        (failure("ps.0", Cause.PROGRAM_EXIT, 100), failure("chief.0", Cause.PROGRAM_EXIT, 100)),
        (failure("worker.0", Cause.PROGRAM_EXIT, 100), failure("worker.1", Cause.PROGRAM_EXIT, 100)),
        (failure("master.0", Cause.PROGRAM_EXIT, 100), failure("worker.0", Cause.PROGRAM_EXIT, 100)),
        (failure("worker.3", Cause.DEADLINE, 100), failure("ps.0", Cause.PROGRAM_EXIT, 100)),
    ],
)
def test_the_root_of_two(root: Failure, other: Failure) -> None:
    assert root_failures((root, other)) == root
    assert root_failures((other, root)) == root


@pytest.mark.parametrize(
    ("cause", "lag_ms"),
    [(Cause.KILLED, 500), (Cause.LAUNCHER_LOST, 2_000), (Cause.NODE_LOST, 5_000), (Cause.DEADLINE, 0)],
)
def test_how_late_a_failure_of_the_machines_may_be_seen(cause: Cause, lag_ms: int) -> None:
    machine = failure("worker.0", cause, 10_000)
    at_the_edge = failure("ps.0", Cause.PROGRAM_EXIT, 10_000 - lag_ms)
    earlier = failure("ps.0", Cause.PROGRAM_EXIT, 10_000 - lag_ms - 1)
    assert root_failures((at_the_edge, machine)) == machine
    assert root_failures((earlier, machine)) == earlier


@given(failures=FAILURES, data=st.data())
def test_the_order_given_does_not_matter(failures: list[Failure], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(failures))
    root = root_failures(tuple(failures))
    assert root in failures
    assert root_failures(tuple(shuffled)) == root


@given(failures=FAILURES)
def test_the_program_is_blamed_only_if_it_failed_before_any_machine_can_have(failures: list[Failure]) -> None:
    root = root_failures(tuple(failures))
    if root.cause.program_fault:
        for other in failures:
            if not other.cause.program_fault and other.cause is not Cause.PEER_LOST:
                assert root.at_ms < other.at_ms - NOTICE_LAG_MS.get(other.cause, 0)


@given(failures=FAILURES)
def test_a_lost_peer_is_never_the_root_of_a_failure_that_speaks_for_itself(failures: list[Failure]) -> None:
    root = root_failures(tuple(failures))
    assert (root.cause is Cause.PEER_LOST) == all(each.cause is Cause.PEER_LOST for each in failures)


def test_no_failure_has_no_root() -> None:
    with pytest.raises(AssertionError):
        root_failures(())
