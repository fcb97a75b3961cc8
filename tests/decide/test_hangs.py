"""Hangs: who is suspected, when it is acted upon, and who is blamed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.decide.hangs import Hang, Judgement, Patience, Running, judge, patience, slowest_of
from recovery.decide.stragglers import stragglers
from supervisor.contract.ids import TaskId
from supervisor.contract.job import ProgressSpec

BOUNDS = {"ps": Patience(5_000, 30_000), "chief": Patience(5_000, 30_000), "worker": Patience(5_000, 30_000)}


def task(member: str) -> TaskId:
    return TaskId.from_member("digits", member)


def run(member: str, stalled_ms: int = -1, *, stopped: bool = False) -> Running:
    return Running(task(member), stalled_ms, 100, stopped)


@pytest.mark.parametrize(
    ("slowest_ms", "hung_before", "expected"),
    [
        (100, 0, Patience(5_000, 30_000)),
        (4_000, 0, Patience(12_000, 40_000)),
        (100, 2, Patience(5_000, 120_000)),
        (-1, 0, Patience(300_000, 600_000)),
    ],
)
def test_patience_follows_the_slowest_step(slowest_ms: int, hung_before: int, expected: Patience) -> None:
    assert patience(slowest_ms, ProgressSpec(), 600_000, hung_before=hung_before) == expected


def test_a_job_may_set_less_or_nothing() -> None:
    quick = ProgressSpec(suspect_after_ms=500, act_after_ms=1_000)
    assert patience(9_000, quick, 600_000, hung_before=3) == Patience(500, 1_000)
    assert patience(9_000, ProgressSpec(act_after_ms=1_000), None, hung_before=0) == Patience(1_000, 1_000)
    assert patience(100, ProgressSpec(watch_hangs=False), 600_000, hung_before=0) is None
    assert patience(-1, ProgressSpec(), None, hung_before=0) is None


def test_one_that_stops_while_others_go_on_is_blamed_itself() -> None:
    tasks = (run("ps.0"), run("worker.0", 31_000), run("worker.1", 50), run("chief.0", 80))
    assert judge(tasks, BOUNDS) == Judgement(
        frozenset({task("worker.0")}), hang=Hang(task("worker.0"), 31_000, 1_000, everyone=False)
    )


def test_before_the_time_to_act_it_is_only_suspected() -> None:
    tasks = (run("worker.0", 6_000), run("worker.1", 50))
    assert judge(tasks, BOUNDS) == Judgement(frozenset({task("worker.0")}))


def test_when_all_stop_the_one_that_is_stopped_is_the_root() -> None:
    tasks = (run("ps.0", stopped=True), run("worker.0", 31_000), run("worker.1", 29_000, stopped=True))
    judged = judge(tasks, BOUNDS)
    assert judged.hang == Hang(task("ps.0"), 31_000, 1_000, everyone=True)
    assert judged.suspected == {task("worker.0"), task("worker.1")}
    assert judged.everyone


def test_when_all_stop_and_none_stands_out_there_is_no_root() -> None:
    assert judge((run("ps.0"), run("worker.0", 31_000), run("worker.1", 30_500)), BOUNDS).hang == Hang(
        None, 31_000, 1_000, everyone=True
    )
    assert judge((run("worker.0", 31_000),), BOUNDS).hang == Hang(
        task("worker.0"), 31_000, 1_000, everyone=True
    )


def test_a_peer_that_stopped_too_but_is_slower_by_nature_is_waited_for() -> None:
    bounds = BOUNDS | {"chief": Patience(60_000, 200_000)}
    assert judge((run("worker.0", 31_000), run("chief.0", 30_900)), bounds).hang is None
    both = judge((run("worker.0", 61_000), run("chief.0", 60_900)), bounds).hang
    assert both == Hang(None, 61_000, 31_000, everyone=True)


def test_one_that_was_just_started_may_be_who_the_others_waited_for() -> None:
    """One that was restarted as it was stopped, say: the others have stalled for as long as before."""

    def again(fresh_ms: int) -> tuple[Running, ...]:
        return (run("chief.0", 45_000), Running(task("worker.0"), fresh_ms=fresh_ms), run("ps.0"))

    assert judge(again(29_999), BOUNDS) == Judgement(frozenset({task("chief.0")}), everyone=True)
    assert judge(again(31_000), BOUNDS).hang == Hang(None, 45_000, 1_000, everyone=True)
    assert judge(again(-1), BOUNDS).hang == Hang(None, 45_000, 15_000, everyone=True)


def test_what_reports_no_steps_is_never_judged() -> None:
    assert judge((run("ps.0"), run("worker.0")), BOUNDS) == Judgement()
    assert judge((), BOUNDS) == Judgement()


@given(st.lists(st.integers(-1, 100_000), min_size=1, max_size=5), st.booleans())
def test_at_most_one_is_blamed_and_never_one_that_goes_on(stalls: list[int], stopped: bool) -> None:
    tasks = tuple(run(f"worker.{index}", stall) for index, stall in enumerate(stalls))
    tasks = (run("ps.0", stopped=stopped), *tasks)
    hang = judge(tasks, BOUNDS).hang
    assert (hang is not None) <= (max(stalls) >= 30_000)
    if hang is not None and hang.root is not None and hang.root.role == "worker":
        assert stalls[hang.root.index] >= 30_000
    if hang is not None and hang.root is None:
        assert all(stall < 0 or stall >= 5_000 for stall in stalls)


def test_the_slowest_step_is_of_the_role() -> None:
    found = slowest_of((Running(task("worker.0"), 0, 5), Running(task("worker.1"), 0, 9), run("ps.0")))
    assert found == {"worker": 9, "ps": 100}


def test_a_straggler_is_twice_as_slow_as_its_peers() -> None:
    paces = {task("worker.0"): 10.0, task("worker.1"): 9.0, task("worker.2"): 4.0, task("chief.0"): 1.0}
    assert stragglers(paces) == {task("worker.2"): 2.4}
    assert stragglers({task("worker.0"): 10.0}) == {}
    assert stragglers({task("worker.0"): 10.0, task("worker.1"): 0.0}) == {}
