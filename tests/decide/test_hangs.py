"""Hangs: who is suspected, when it is acted upon, and who is blamed."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.policy.hangs import (
    IDLE_MS,
    Hang,
    Judgement,
    Patience,
    Running,
    bounds_of,
    describe,
    judge,
    slow_starts,
)
from recovery.policy.stragglers import stragglers
from supervisor.contract.ids import TaskId
from supervisor.contract.job.spec import ProgressSpec
from supervisor.contract.observed import Sign

BOUNDS = {(role, "step"): Patience(5_000, 30_000) for role in ("ps", "chief", "worker")}


def task(member: str) -> TaskId:
    return TaskId.from_member("digits", member)


def run(member: str, stalled_ms: int = -1, *, stopped: bool = False) -> Running:
    signs = (Sign("step", stalled_ms, 100),) if stalled_ms >= 0 else ()
    return Running(task(member), signs, stopped=stopped)


def shows(*signs: Sign) -> Running:
    return Running(task("worker.0"), signs)


def step_bound(
    pause_ms: int, spec: ProgressSpec, startup_ms: int | None, hung_before: int = 0
) -> Patience | None:
    found = bounds_of((shows(Sign("step", 0, pause_ms)),), spec, startup_ms, hung_before=hung_before)
    return found.get(("worker", "step"))


@pytest.mark.parametrize(
    ("pause_ms", "hung_before", "expected"),
    [
        (100, 0, Patience(5_000, 30_000)),
        (4_000, 0, Patience(12_000, 40_000)),
        (100, 2, Patience(5_000, 120_000)),
        (-1, 0, Patience(300_000, 600_000)),
    ],
)
def test_patience_follows_the_longest_pause(pause_ms: int, hung_before: int, expected: Patience) -> None:
    assert step_bound(pause_ms, ProgressSpec(), 600_000, hung_before) == expected


def test_a_job_may_set_less_or_nothing() -> None:
    quick = ProgressSpec(suspect_after_ms=500, act_after_ms=1_000)
    assert step_bound(9_000, quick, 600_000, 3) == Patience(500, 1_000)
    assert step_bound(9_000, ProgressSpec(act_after_ms=1_000), None) == Patience(1_000, 1_000)
    assert step_bound(100, ProgressSpec(watch_hangs=False), 600_000) is None
    assert step_bound(-1, ProgressSpec(), None) is None


STEP, OUTPUT, SAVE, CPU, FILES = "step", "output", "save", "cpu", "files"
TABLE = [
    ("a step is late, and nothing else is known", "hangs", [Sign(STEP, 31_000, 100)]),
    ("a step is late, but within ten of its pauses", "suspected", [Sign(STEP, 31_000, 4_000)]),
    ("a step is late, but the task works", "suspected", [Sign(STEP, 99_000, 100), Sign(CPU, 4_000, 0)]),
    (
        "a step is late, and the task does not work",
        "hangs",
        [Sign(STEP, 31_000, 100), Sign(CPU, 26_000, 5_000)],
    ),
    ("it works as seldom as ever", "suspected", [Sign(STEP, 99_000, 100), Sign(CPU, 60_000, 30_000)]),
    ("its GPUs work", "suspected", [Sign(STEP, 99_000, 100), Sign(CPU, 90_000, 0), Sign("gpu", 1_000, 0)]),
    (
        "it reads or writes files",
        "suspected",
        [Sign(STEP, 99_000, 100), Sign(CPU, 90_000, 0), Sign(FILES, 4_000)],
    ),
    ("it read files long ago", "hangs", [Sign(STEP, 99_000, 100), Sign(CPU, 90_000, 0), Sign(FILES, 20_000)]),
    (
        "it writes what is new, but has long made no step",
        "suspected",
        [Sign(STEP, IDLE_MS, 100), Sign(OUTPUT, 0)],
    ),
    ("a step takes that long", "lives", [Sign(STEP, IDLE_MS, 100_000), Sign(OUTPUT, 0)]),
    ("new output goes on, though it is not learnt", "lives", [Sign(STEP, 99_000, 100), Sign(OUTPUT, 2_000)]),
    ("all training signs are late", "hangs", [Sign(STEP, 31_000, 100), Sign(OUTPUT, 30_500, 900)]),
    ("new output has longer pauses", "suspected", [Sign(STEP, 31_000, 9), Sign(OUTPUT, 30_500, 9_000)]),
    ("it has saved just now", "lives", [Sign(STEP, 99_000, 100), Sign(SAVE, 3_000)]),
    (
        "a save was seen after it last worked",
        "hangs",
        [Sign(STEP, 99_000, 100), Sign(CPU, 99_000), Sign(SAVE, 0)],
    ),
    ("it works, and has saved", "lives", [Sign(STEP, 99_000, 100), Sign(CPU, 21_000), Sign(SAVE, 3_000)]),
    ("it saved long ago, as it does", "hangs", [Sign(STEP, 99_000, 100), Sign(SAVE, 99_000, 600_000)]),
    ("it does nothing but save, and is late", "hangs", [Sign(SAVE, 610_000, 60_000)]),
    ("it does nothing but save, and is not late", "lives", [Sign(SAVE, 100_000, 60_000)]),
    ("it prints what is not learnt, and stops", "lives", [Sign(OUTPUT, 500_000), Sign(CPU, 0, 0)]),
    ("it is silent, and works", "lives", [Sign(CPU, 0, 0)]),
    ("it is silent, and does nothing for long", "suspected", [Sign(CPU, IDLE_MS, 0)]),
    ("it shows nothing at all", "lives", []),
    (
        "its first step was long ago, and it does not work",
        "hangs",
        [Sign(STEP, 600_000), Sign(CPU, 600_000, 0)],
    ),
]
"""The default verdicts on the signs of one task: docs/progress.md has the same table in words."""


def verdict(signs: list[Sign], spec: ProgressSpec) -> str:
    tasks = (shows(*signs),)
    bounds = bounds_of(tasks, spec, 600_000, hung_before=0)
    judged = judge(tasks, bounds, by_training=spec.act_after_ms is not None)
    return "hangs" if judged.hang else "suspected" if judged.suspected else "lives"


@pytest.mark.parametrize(("what", "expected", "signs"), TABLE, ids=[row[0] for row in TABLE])
def test_the_truth_table(what: str, expected: str, signs: list[Sign]) -> None:
    assert verdict(signs, ProgressSpec()) == expected


@pytest.mark.parametrize(
    ("expected", "signs"),
    [
        ("hangs", [Sign(STEP, 8_000, 4_000), Sign(CPU, 0, 0)]),
        ("lives", [Sign(STEP, 8_000, 100), Sign(OUTPUT, 1_000), Sign(CPU, 0, 0)]),
        ("lives", [Sign(OUTPUT, 90_000), Sign(CPU, 90_000, 0)]),
    ],
)
def test_a_bound_of_the_job_counts_signs_of_training_alone(expected: str, signs: list[Sign]) -> None:
    assert verdict(signs, ProgressSpec(act_after_ms=8_000)) == expected


def test_a_hang_names_what_is_missing_and_whether_output_goes_on() -> None:
    each = Running(
        task("worker.0"), (Sign(STEP, 31_000, 100), Sign(OUTPUT, 31_000), Sign(CPU, 30_000, 0)), 2_000
    )
    bounds = bounds_of((each,), ProgressSpec(), 600_000, hung_before=0)
    hang = judge((each,), bounds).hang
    assert hang is not None
    assert (hang.flat, hang.writes) == ((STEP, OUTPUT, CPU), True)
    assert describe(each) == (
        "has made no step for 31.0 s, written nothing new for 31.0 s, "
        "used hardly any processor time for 30.0 s"
    )


def test_others_wait_for_one_that_works_without_a_sign_of_training() -> None:
    evaluates = Running(task("chief.0"), (Sign(STEP, 60_000, 100), Sign(CPU, 0, 0)))
    waits = Running(task("worker.0"), (Sign(STEP, 60_000, 100), Sign(CPU, 60_000, 0)))
    assert judge((evaluates, waits), BOUNDS).hang is None
    stopped = Running(task("chief.0"), evaluates.signs, stopped=True)
    hang = judge((stopped, waits), BOUNDS).hang
    assert hang is not None
    assert hang.root == task("chief.0")


@pytest.mark.parametrize(
    "sign", [Sign(CPU, 0, 0), Sign(FILES, 0), Sign(OUTPUT, 0)], ids=["works", "saves", "prints"]
)
def test_one_that_waits_at_a_barrier_until_another_has_evaluated_or_saved_is_no_hang(sign: Sign) -> None:
    """Its step comes with the next of the other: it hardly uses a processor meanwhile."""
    goes_on = Running(task("chief.0"), (Sign(STEP, 60_000, 100), sign))
    waits = Running(task("worker.0"), (Sign(STEP, 60_000, 100), Sign(CPU, 60_000, 0)))
    assert judge((goes_on, waits), BOUNDS).hang is None
    steps = Running(task("chief.0"), (Sign(STEP, 100, 100), sign))
    hang = judge((steps, waits), BOUNDS).hang
    assert hang is not None
    assert hang.root == task("worker.0")


@pytest.mark.parametrize("sign", [Sign(CPU, 0, 0), Sign(OUTPUT, 0)], ids=["spins", "prints"])
def test_one_that_is_stopped_by_a_signal_is_blamed_whatever_those_do_that_wait_for_it(sign: Sign) -> None:
    """A collective on a GPU polls while it waits, and a thread of its own may print."""
    waits = Running(task("chief.0"), (Sign(STEP, 60_000, 100), sign))
    stopped = Running(task("worker.0"), (Sign(STEP, 60_000, 100), Sign(CPU, 60_000, 0)), stopped=True)
    hang = judge((waits, stopped), BOUNDS).hang
    assert hang is not None
    assert hang.root == task("worker.0")


def test_a_start_that_works_for_longer_than_it_may_is_told_of_where_steps_are_known() -> None:
    spins = Running(task("worker.0"), (Sign(CPU, 0, 0),), fresh_ms=600_000)
    prints = Running(task("worker.1"), (Sign(OUTPUT, 100), Sign(CPU, 90_000, 0)), fresh_ms=600_000)
    idles = Running(task("worker.2"), (Sign(CPU, 90_000, 0),), fresh_ms=600_000)
    tasks = (spins, prints, idles, replace(spins, task=task("worker.3"), fresh_ms=599_000))
    both = {spins.task, prints.task}
    assert slow_starts(tasks, 600_000, steps_are_read=True) == both
    assert slow_starts(tasks, 600_000, steps_are_read=False) == set()
    assert slow_starts((*tasks, run("worker.4", 0)), 600_000, steps_are_read=False) == both
    assert slow_starts(tasks, None, steps_are_read=True) == set()


def test_one_that_stops_while_others_go_on_is_blamed_itself() -> None:
    tasks = (run("ps.0"), run("worker.0", 31_000), run("worker.1", 50), run("chief.0", 80))
    assert judge(tasks, BOUNDS) == Judgement(
        frozenset({task("worker.0")}),
        hang=Hang(task("worker.0"), 31_000, 1_000, everyone=False, flat=("step",)),
    )


def test_one_verdict_is_about_all_that_hang_while_others_go_on() -> None:
    tasks = (run("worker.0", 31_000), run("worker.1", 33_000), run("worker.2", 9_000), run("worker.3", 50))
    hang = judge(tasks, BOUNDS).hang
    assert hang is not None
    assert (hang.root, hang.others) == (task("worker.1"), (task("worker.0"),))


def test_a_task_that_is_about_to_be_late_is_waited_for_but_not_for_long() -> None:
    def verdict_on(*stalled_ms: int) -> Hang | None:
        tasks = [run(f"worker.{index}", each_ms) for index, each_ms in enumerate(stalled_ms)]
        return judge((*tasks, run("chief.0", 50)), BOUNDS).hang

    assert verdict_on(34_900, 26_000) is None
    assert verdict_on(34_900, 24_000) == Hang(task("worker.0"), 34_900, 4_900, everyone=False, flat=(STEP,))
    assert verdict_on(58_000, 54_000, 40_000, 26_000) is None, "one stops after the other"
    assert verdict_on(60_000, 31_000, 26_000) == Hang(
        task("worker.0"), 60_000, 30_000, everyone=False, flat=(STEP,), others=(task("worker.1"),)
    )


def test_where_a_hang_is_left_alone_the_next_one_is_judged_by_itself() -> None:
    tasks = (run("worker.0", 90_000), run("worker.1", 33_000), run("worker.2", 31_000), run("chief.0", 50))
    judged = judge(tasks, BOUNDS)
    assert judged.hang is not None
    assert (judged.hang.root, judged.hang.others) == (task("worker.0"), (task("worker.1"), task("worker.2")))
    assert judged.hang_beside({task("worker.0")}) == Hang(
        task("worker.1"), 33_000, 3_000, everyone=False, flat=(STEP,), others=(task("worker.2"),)
    )
    assert judged.hang_beside({task(f"worker.{index}") for index in range(3)}) is None
    soon = run("worker.2", 27_000)
    assert judge((*tasks[:2], soon, tasks[3]), BOUNDS).hang_beside({task("worker.0")}) is None
    all_hang = judge(tasks[:3], BOUNDS)
    assert all_hang.everyone
    assert all_hang.hang_beside({task("worker.0")}) is None


@pytest.mark.parametrize("stopped_ms", [300_000, 40_000])
def test_one_that_is_stopped_and_left_alone_keeps_no_other_from_a_verdict(stopped_ms: int) -> None:
    stopped = run("worker.0", stopped_ms, stopped=True)
    late, soon = run("worker.1", 60_000), run("worker.2", 31_000)
    judged = judge((stopped, late, soon, run("chief.0", 50)), BOUNDS)
    assert judged.hang is not None
    assert (judged.hang.root, judged.hang.others) == (task("worker.0"), ())
    assert judged.hang_beside({task("worker.0")}) == Hang(
        task("worker.1"), 60_000, 30_000, everyone=False, flat=(STEP,), others=(task("worker.2"),)
    )
    evaluates = Running(task("worker.2"), (Sign(STEP, 55_000, 100), Sign("cpu", 0, 100)))
    beside = judge((stopped, late, evaluates, run("chief.0", 50)), BOUNDS)
    assert beside.hang_beside({task("worker.0")}) is None, "it may be who the late one waits for"


def test_a_task_that_may_wait_for_one_that_is_stopped_is_not_named_with_it() -> None:
    late = (run("worker.0", 40_000), run("worker.1", 31_000, stopped=True), run("chief.0", 50))
    hang = judge(late, BOUNDS).hang
    assert hang is not None
    assert (hang.root, hang.others) == (task("worker.1"), ())
    both = judge((*late, run("worker.2", 32_000, stopped=True)), BOUNDS).hang
    assert both is not None
    assert (both.root, both.others) == (task("worker.2"), (task("worker.1"),))


def test_a_task_that_misses_other_signs_or_still_writes_is_judged_by_itself() -> None:
    root = Running(task("worker.0"), (Sign(STEP, 40_000, 100),))
    writes = Running(task("worker.1"), (Sign(STEP, 35_000, 100),), silent_ms=2_000)
    more = Running(task("worker.2"), (Sign(STEP, 35_000, 100), Sign(OUTPUT, 35_000, 100)))
    waits = Running(task("worker.3"), (Sign(STEP, 35_000, 100), Sign("data", 500)))
    hang = judge((root, writes, more, waits, run("chief.0", 50)), BOUNDS).hang
    assert hang is not None
    assert (hang.root, hang.others, hang.waits) == (task("worker.0"), (), None)
    alone = judge((waits, run("chief.0", 50)), BOUNDS).hang
    assert alone is not None
    assert alone.waits == task("worker.3")


def test_before_the_time_to_act_it_is_only_suspected() -> None:
    tasks = (run("worker.0", 6_000), run("worker.1", 50))
    assert judge(tasks, BOUNDS) == Judgement(frozenset({task("worker.0")}))


def test_when_all_stop_the_one_that_is_stopped_is_the_root() -> None:
    tasks = (run("ps.0", stopped=True), run("worker.0", 31_000), run("worker.1", 29_000, stopped=True))
    judged = judge(tasks, BOUNDS)
    assert judged.hang == Hang(task("ps.0"), 31_000, 1_000, everyone=True, flat=("step",))
    assert judged.suspected == {task("worker.0"), task("worker.1")}
    assert judged.everyone


def test_when_all_stop_and_none_stands_out_there_is_no_root() -> None:
    assert judge((run("ps.0"), run("worker.0", 31_000), run("worker.1", 30_500)), BOUNDS).hang == Hang(
        None, 31_000, 1_000, everyone=True, flat=("step",)
    )
    assert judge((run("worker.0", 31_000),), BOUNDS).hang == Hang(
        task("worker.0"), 31_000, 1_000, everyone=True, flat=("step",)
    )


def test_a_peer_that_stopped_too_but_is_slower_by_nature_is_waited_for() -> None:
    bounds = BOUNDS | {("chief", "step"): Patience(60_000, 200_000)}
    assert judge((run("worker.0", 31_000), run("chief.0", 30_900)), bounds).hang is None
    both = judge((run("worker.0", 61_000), run("chief.0", 60_900)), bounds).hang
    assert both == Hang(None, 61_000, 31_000, everyone=True, flat=("step",))


def test_one_that_was_just_started_may_be_who_the_others_waited_for() -> None:
    """One that was restarted as it was stopped, say: the others have stalled for as long as before."""

    def again(fresh_ms: int) -> tuple[Running, ...]:
        return (run("chief.0", 45_000), Running(task("worker.0"), fresh_ms=fresh_ms), run("ps.0"))

    assert judge(again(29_999), BOUNDS) == Judgement(frozenset({task("chief.0")}), everyone=True)
    assert judge(again(31_000), BOUNDS).hang == Hang(None, 45_000, 1_000, everyone=True, flat=("step",))
    assert judge(again(-1), BOUNDS).hang == Hang(None, 45_000, 15_000, everyone=True, flat=("step",))


@pytest.mark.parametrize("signs", [(), (Sign(STEP, 50, 2_000),)])
def test_a_quiet_start_is_not_judged_by_the_pauses_of_training(signs: tuple[Sign, ...]) -> None:
    trains = Running(task("worker.0"), (*signs, Sign(OUTPUT, 50, 2_000), Sign(CPU, 50, 0)))
    starts = Running(task("worker.1"), (Sign(OUTPUT, 44_000), Sign(CPU, 40_000, 0)), fresh_ms=46_000)
    bounds = bounds_of((trains, starts), ProgressSpec(), 600_000, hung_before=0)
    assert judge((trains, starts), bounds) == Judgement()
    learnt = replace(starts, signs=(Sign(OUTPUT, 44_000, 1_000), Sign(CPU, 40_000, 0)))
    assert judge((trains, learnt), bounds).hang is not None


def test_others_wait_for_one_that_starts_and_prints_what_is_new() -> None:
    waits = Running(task("worker.0"), (Sign(STEP, 50_000, 100), Sign(OUTPUT, 50_000, 100)))
    for age_ms, hangs in ((2_000, False), (20_000, False), (44_000, True)):
        starts = Running(task("worker.1"), (Sign(OUTPUT, age_ms),), fresh_ms=46_000)
        bounds = bounds_of((waits, starts), ProgressSpec(), 600_000, hung_before=0)
        assert (judge((waits, starts), bounds).hang is not None) is hangs


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


def test_the_longest_pause_is_of_the_role() -> None:
    tasks = (shows(Sign("step", 0, 5)), Running(task("worker.1"), (Sign("step", 0, 9_000),)))
    assert bounds_of(tasks, ProgressSpec(), None, hung_before=0) == {
        ("worker", "step"): Patience(27_000, 90_000)
    }


@given(
    paces=st.dictionaries(
        st.tuples(st.sampled_from(("chief", "worker")), st.integers(0, 6)), st.integers(0, 9)
    )
)
def test_a_straggler_is_told_by_the_median_of_its_peers(paces: dict[tuple[str, int], int]) -> None:
    found = stragglers({task(f"{role}.{index}"): float(pace) for (role, index), pace in paces.items()})
    for (role, index), pace in paces.items():
        peers = [other for peer, other in paces.items() if peer[0] == role and peer != (role, index)]
        slow = pace > 0 and bool(peers) and median(peers) >= 2 * pace
        assert found.get(task(f"{role}.{index}")) == (round(median(peers) / pace, 1) if slow else None)


def test_a_straggler_is_twice_as_slow_as_its_peers() -> None:
    paces = {task("worker.0"): 10.0, task("worker.1"): 9.0, task("worker.2"): 4.0, task("chief.0"): 1.0}
    assert stragglers(paces) == {task("worker.2"): 2.4}
    assert stragglers({task("worker.0"): 10.0}) == {}
    assert stragglers({task("worker.0"): 10.0, task("worker.1"): 0.0}) == {}
