"""Reruns of failed tests: only where nothing happened in the process for a while."""

from __future__ import annotations

import pytest

from tests.support import steady


def runs(lost_ms: int, failures: int) -> int:
    """The number of runs of a test that fails so often, while so much time is lost in each run."""
    count = 0
    for each in steady._tries():
        with each:
            count += 1
            each._watch.lost_ms = lost_ms
            assert count > failures
    return count


def test_a_failure_while_nothing_happened_proves_nothing() -> None:
    assert runs(300, failures=2) == 3


def test_a_test_that_passes_is_run_once_whatever_was_lost() -> None:
    assert runs(300, failures=0) == 1


@pytest.mark.parametrize(("lost_ms", "failures"), [(0, 1), (300, steady._TRIES)])
def test_any_other_failure_is_one_and_so_is_the_last(lost_ms: int, failures: int) -> None:
    with pytest.raises(AssertionError):
        runs(lost_ms, failures)
