"""Faults of GPUs: the action that each asks for, and its text; the pure fold, without any NVML."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.gpus import xid
from agent.core.gpus.health import BURST_MS, GpuBook, GpuSight, Sight, Xid, fold, remembered
from supervisor.contract.observed import Gpu, GpuAction, GpuHealth

A = GpuSight("GPU-a", 0, "H200", 1 << 30, pci="0000:01:00", recovery=0, ecc_volatile=0, remap_failed=0)
B = replace(A, uuid="GPU-b", index=1, pci="0000:02:00")
FAULTY, OK, UNKNOWN = GpuHealth.FAULTY, GpuHealth.OK, GpuHealth.UNKNOWN


def looked(book: GpuBook, now_ms: int, *gpus: GpuSight) -> GpuBook:
    return fold(book, Sight("570", gpus=gpus), now_ms)


def struck(book: GpuBook, now_ms: int, *codes: int) -> GpuBook:
    return fold(book, Sight("570", xids=tuple(Xid(code, "GPU-a") for code in codes)), now_ms)


def told(book: GpuBook) -> tuple[Gpu, ...]:
    report = book.report("n1", "life1", "boot")
    assert report is not None
    return report.gpus


def first(book: GpuBook) -> tuple[GpuHealth, GpuAction, int]:
    gpu = told(book)[0]
    return gpu.health, gpu.action, gpu.fault


@pytest.fixture
def book() -> GpuBook:
    return looked(GpuBook(), 0, A, B)


def test_nothing_is_told_before_the_first_look(book: GpuBook) -> None:
    assert GpuBook().report("n1", "life1", "boot") is None
    assert [gpu.uuid for gpu in told(book)] == ["GPU-a", "GPU-b"]
    assert first(book) == (OK, GpuAction.NONE, 0)


@pytest.mark.parametrize("code", sorted(xid.XIDS))
def test_each_xid_asks_for_what_the_table_says(book: GpuBook, code: int) -> None:
    action = xid.action_of(code)
    expected = {
        GpuAction.NONE: (OK, GpuAction.NONE, 0),
        GpuAction.RESTART_TASK: (OK, GpuAction.RESTART_TASK, 1),
    }
    after = struck(book, 10, code)
    assert first(after) == expected.get(action, (FAULTY, action, 1))
    assert told(after)[1] == told(book)[1]


def test_the_page_has_the_same_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()
    said = {}
    for codes, action in re.findall(r"^\| XIDs ([\d, -]+) \| `(\w+)` \|$", page, re.MULTILINE):
        for first_code, last_code in re.findall(r"(\d+)(?:-(\d+))?", codes):
            span = range(int(first_code), int(last_code or first_code) + 1)
            said.update(dict.fromkeys(span, GpuAction(action)))
    table = {code: xid.action_of(code) for code in xid.XIDS}
    assert said == {code: action for code, action in table.items() if action is not GpuAction.NONE}


def test_what_is_mostly_a_program_s_own_is_told_so_also_by_the_agent_s_successor(book: GpuBook) -> None:
    own = {code for code in xid.XIDS if told(struck(book, 10, code))[0].blames_program}
    assert own == {11, 13, 25, 31, 69}
    after = struck(book, 10, 31)
    assert told(looked(remembered(after.kept()), 5, A, B))[0].blames_program
    assert not told(looked(after, 10_000, replace(A, ecc_volatile=1), B))[0].blames_program


def test_a_fault_of_the_gpu_is_not_taken_for_what_its_program_did_a_moment_before(book: GpuBook) -> None:
    after = struck(book, 10, 31, 94)
    assert (told(after)[0].fault, told(after)[0].blames_program) == (2, False)
    again = struck(book, 10, 94, 31)
    assert (told(again)[0].fault, told(again)[0].blames_program) == (1, False)


def test_an_xid_that_nobody_knows_asks_for_nothing(book: GpuBook) -> None:
    assert struck(book, 10, 4_711) == book


def test_both_sources_of_one_xid_are_one_fault(book: GpuBook) -> None:
    after = fold(book, Sight("570", xids=(Xid(31, "GPU-a"), Xid(31, pci="0000:01:00"))), 10)
    assert first(after) == (OK, GpuAction.RESTART_TASK, 1)
    assert first(fold(after, Sight("570", xids=(Xid(31, pci="0000:01:00"),)), 10 + BURST_MS)) == (
        OK,
        GpuAction.RESTART_TASK,
        2,
    )


def test_of_a_machine_beside(book: GpuBook) -> None:
    assert fold(book, Sight("570", xids=(Xid(79, pci="0000:99:00"), Xid(79, "GPU-z"))), 10) == book


def test_a_heavier_fault_is_a_new_one_and_a_lighter_hides_nothing(book: GpuBook) -> None:
    after = struck(book, 10, 31)
    after = struck(after, 11, 79)
    assert first(after) == (FAULTY, GpuAction.DRAIN_NODE, 2)
    assert first(struck(after, 20_000, 45, 31, 48)) == (FAULTY, GpuAction.DRAIN_NODE, 2)


def test_the_driver_s_recovery_action_stands_as_long_as_it_says(book: GpuBook) -> None:
    after = looked(book, 10, replace(A, recovery=1), B)
    assert first(after) == (FAULTY, GpuAction.RESET_GPU, 1)
    assert first(looked(after, 20, replace(A, recovery=1), B)) == (FAULTY, GpuAction.RESET_GPU, 1)
    heavier = looked(after, 30, replace(A, recovery=2), B)
    assert first(heavier) == (FAULTY, GpuAction.DRAIN_NODE, 2)
    assert first(looked(heavier, 40, A, B)) == (OK, GpuAction.NONE, 2)


def test_an_xid_and_the_recovery_action_that_it_brings_are_one_fault(book: GpuBook) -> None:
    after = looked(struck(book, 10, 48), 12, replace(A, recovery=1), B)
    assert first(after) == (FAULTY, GpuAction.RESET_GPU, 1)
    assert first(looked(after, 60_000, A, B)) == (OK, GpuAction.NONE, 1), "the GPU was reset"


def test_uncorrected_errors_restart_the_task_once(book: GpuBook) -> None:
    after = looked(book, 10, replace(A, ecc_volatile=3), B)
    assert first(after) == (OK, GpuAction.RESTART_TASK, 1)
    assert first(looked(after, 20_000, replace(A, ecc_volatile=3), B)) == (OK, GpuAction.RESTART_TASK, 1)
    assert first(looked(after, 30_000, replace(A, ecc_volatile=4), B)) == (OK, GpuAction.RESTART_TASK, 2)


def test_errors_from_before_the_agent_s_time_are_no_fault() -> None:
    assert first(looked(GpuBook(), 0, replace(A, ecc_volatile=9))) == (OK, GpuAction.NONE, 0)


def test_counters_that_begin_anew_show_a_reset(book: GpuBook) -> None:
    after = looked(struck(book, 10, 95), 11, replace(A, ecc_volatile=7), B)
    assert first(after)[0] is FAULTY
    assert first(looked(after, 60_000, A, B)) == (OK, GpuAction.NONE, 1)


def test_no_rows_left(book: GpuBook) -> None:
    assert first(looked(book, 10, replace(A, remap_failed=1), B)) == (FAULTY, GpuAction.CONTACT, 1)
    assert first(looked(book, 10, replace(A, remap_pending=1), B)) == (OK, GpuAction.NONE, 0)


def test_a_gpu_that_could_not_be_opened_is_not_gone(book: GpuBook) -> None:
    shut = fold(book, Sight("570", gpus=(B,), unopened=1), 10)
    assert first(shut) == (UNKNOWN, GpuAction.NONE, 0)
    assert "could not open 1" in told(shut)[0].reason
    assert told(shut)[1].health is OK
    assert first(looked(shut, 20, A, B)) == (OK, GpuAction.NONE, 0)
    assert first(looked(shut, 20, B)) == (FAULTY, GpuAction.DRAIN_NODE, 1)


def test_a_gpu_that_is_gone_stays_so_when_another_could_not_be_opened(book: GpuBook) -> None:
    gone = looked(book, 10, B)
    assert first(fold(gone, Sight("570", unopened=1, gpus=()), 20)) == (FAULTY, GpuAction.DRAIN_NODE, 1)


def test_lost_and_back_again(book: GpuBook) -> None:
    lost = looked(book, 10, GpuSight("GPU-a", 0, error=15), B)
    assert first(lost) == (FAULTY, GpuAction.DRAIN_NODE, 1)
    assert told(lost)[0].memory_bytes == A.memory_bytes
    assert first(looked(lost, 20_000, A, B)) == (OK, GpuAction.NONE, 1)
    again = looked(looked(lost, 20_000, A, B), 40_000, GpuSight("GPU-a", 0, error=15), B)
    assert again.known["GPU-a"].gpu.fault == 2


def test_no_longer_listed(book: GpuBook) -> None:
    gone = looked(book, 10, B)
    assert [gpu.health for gpu in told(gone)] == [FAULTY, OK]
    assert first(gone)[1] is GpuAction.DRAIN_NODE
    assert first(looked(gone, 20, A, B))[0] is OK


def test_unknown_is_not_gone(book: GpuBook) -> None:
    silent = fold(struck(book, 10, 79), Sight(problem="NVML does not answer"), 20)
    report = silent.report("n1", "life1", "boot")
    assert report is not None
    assert report.problem == "NVML does not answer"
    assert [gpu.health for gpu in report.gpus] == [FAULTY, UNKNOWN]
    assert [gpu.fault for gpu in report.gpus] == [1, 0]
    again = looked(silent, 30, A, B).report("n1", "life1", "boot")
    assert again is not None
    assert ([gpu.health for gpu in again.gpus], again.problem) == ([FAULTY, OK], "")


def test_one_that_does_not_answer_is_unknown_alone(book: GpuBook) -> None:
    after = looked(book, 10, GpuSight("GPU-a", 0, error=999), B)
    assert [gpu.health for gpu in told(after)] == [UNKNOWN, OK]


def test_serials_outlive_the_agent_and_xids_do_not_stand_any_more(book: GpuBook) -> None:
    after = looked(struck(book, 10, 79), 20, A, replace(B, recovery=2))
    assert [gpu.fault for gpu in told(after)] == [1, 1]
    successor = looked(remembered(after.kept()), 5, A, replace(B, recovery=2))
    assert [(gpu.health, gpu.fault) for gpu in told(successor)] == [(OK, 1), (FAULTY, 1)]
    assert first(struck(successor, 10, 79)) == (FAULTY, GpuAction.DRAIN_NODE, 2)
    assert successor.kept() == after.kept()


def test_what_an_earlier_life_knew_of_a_gpu_that_is_not_seen_is_kept(book: GpuBook) -> None:
    kept = struck(book, 10, 79).kept()
    assert fold(remembered(kept), Sight(problem="none"), 5).kept() == kept


sights = st.builds(
    lambda error, recovery, ecc, failed: replace(
        A, error=error, recovery=recovery, ecc_volatile=ecc, remap_failed=failed
    ),
    st.sampled_from([0, 0, 0, 15, 16, 999]),
    st.integers(-1, 8),
    st.integers(-1, 5),
    st.integers(-1, 1),
)
steps = st.one_of(
    st.builds(lambda gpu: Sight("570", gpus=(gpu, B)), sights),
    st.just(Sight("570", gpus=(B,))),
    st.just(Sight(problem="NVML does not answer")),
    st.builds(lambda code: Sight("570", xids=(Xid(code, "GPU-a"),)), st.sampled_from(sorted(xid.XIDS))),
)


@given(st.lists(st.tuples(steps, st.integers(0, 7_000)), max_size=30))
def test_a_serial_never_falls_and_a_barred_gpu_always_says_why(story: list[tuple[Sight, int]]) -> None:
    book, now_ms, before = looked(GpuBook(), 0, A, B), 0, 0
    for sight, later_ms in story:
        now_ms += later_ms
        book = fold(book, sight, now_ms)
        gpu, other = told(book)
        assert gpu.fault in {before, before + 1, before + 2}
        before = gpu.fault
        assert (gpu.health is FAULTY) == (gpu.action not in {GpuAction.NONE, GpuAction.RESTART_TASK})
        assert gpu.health is not FAULTY or (gpu.reason and gpu.fault)
        assert other.fault == 0
        if sight.gpus is not None:
            assert fold(book, sight, now_ms) == book, "a look at the same adds nothing"
