"""Numbers in output that count as a job's global step."""

from __future__ import annotations

import pytest

from recovery.policy.progress import Reached, global_step


@pytest.mark.parametrize(
    ("told", "base", "expected"),
    [
        ([], -1, -1),
        ([Reached(1, -1, -1)], -1, -1),
        ([Reached(1, 1, 41), Reached(1, 2, 39)], -1, 41),
        ([Reached(1, 1, 41, True), Reached(1, 2, 39, True)], -1, 41),
        ([Reached(1, 1, 127, True), Reached(1, 1, 146)], -1, 146),
        ([Reached(1, 401, 420, True)], 400, 420),
        ([Reached(1, 1, 20, True)], 400, -1),
        ([Reached(1, 1, 20)], 400, 20),
        ([Reached(1, 1, 5000, True), Reached(2, 1, 30, True)], -1, -1),
        ([Reached(1, 1, 5000, True), Reached(2, 4990, 5001, True)], -1, 5001),
    ],
    ids=[
        "nobody",
        "nothing",
        "called global",
        "behaves like a global step",
        "a global step goes before a count of its own",
        "goes on from the base",
        "begins anew though there is a base",
        "a global step is believed",
        "a worker that was started again counts for itself",
        "a worker that was started again goes on",
    ],
)
def test_a_number_is_a_global_step_if_it_behaves_like_one(
    told: list[Reached], base: int, expected: int
) -> None:
    assert global_step(told, base) == expected
