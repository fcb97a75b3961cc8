"""The lines about what the time of a job was spent on."""

from __future__ import annotations

import pytest

from supervisor.cli.jobs.goodput import COLUMNS, NAMES, duration, line, lines
from supervisor.contract.job.goodput import Category
from supervisor.contract.views.jobs import GoodputView

MINUTE = 60_000
SPENT = GoodputView(
    since_wall_ms=0,
    elapsed_ms=62 * MINUTE,
    spent_ms={
        "productive": 56 * MINUTE,
        "redoing": 2 * MINUTE,
        "recovering_fence": MINUTE,
        "saving": 3 * MINUTE,
    },
    now="redoing",
    share=0.9032,
)


def test_one_line_has_the_share_and_what_else_there_was() -> None:
    told = "redoing 3.2 %, saving 4.8 %, recovering 1.6 %; now making lost steps again"
    assert line(SPENT) == f"goodput: 90.3 % of 1 h 02 min; {told}"


def test_each_category_on_which_time_was_spent_has_a_line() -> None:
    shown = lines(SPENT)
    assert [each.split("  ")[0] for each in shown] == [
        "productive",
        "making lost steps again",
        "saving",
        "recovering: waiting for the fence",
    ]
    assert shown[0].endswith("90.3 %  " + "#" * 36)


def test_a_job_of_which_nothing_is_counted_yet_has_a_line_too() -> None:
    assert line(GoodputView(0, 0, {}, "starting", 0.0)) == "goodput: 0.0 % of 0.00 s; now starting"


def test_every_category_has_a_name_and_a_column() -> None:
    assert set(NAMES) == set(Category)
    assert sorted(each.value for _, of in COLUMNS for each in of) == sorted(each.value for each in Category)


@pytest.mark.parametrize(
    ("ms", "told"),
    [
        (420, "0.42 s"),
        (12_340, "12.3 s"),
        (303_000, "5 min 03 s"),
        (12_000_000, "3 h 20 min"),
        (200_000_000, "2 d 07 h"),
    ],
)
def test_a_duration_is_told_in_two_units(ms: int, told: str) -> None:
    assert duration(ms) == told
