"""Signs of life of an attempt: what counts as new output, and what is learnt of processors and GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agent.host.processes import Usage, usage_of
from agent.inside.child.saves import FILE, KEPT, SAVING
from agent.inside.processes import fence
from agent.logs.patterns import Matcher
from agent.logs.signs import GAUGE_LEAST, Gauge, Novelty, Pulse
from agent.logs.steps import FILES_PER_S, SAVING_MS, UNKNOWN_PAUSE_MS, Followed, StepReader
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.job.spec import DEFAULT_STEP_PATTERNS
from supervisor.contract.observed import Sign
from tests.support.sinks import ListSink

ATTEMPT = AttemptId(TaskId("job", "worker", 0), 1, 1)

REPEATED = [
    [
        b"I1125 01:00:%02d.123456 140 session.py:505] Waiting for model to be ready, %d s" % (n, n)
        for n in range(9)
    ],
    [
        b"2026-11-25 01:00:%02d,%03d WARN retrying connection (attempt %d of 100)" % (n, n, n)
        for n in range(9)
    ],
    [b"[01:00:%02d] epoch done in %.1fs" % (n, n + 0.5) for n in range(9)],
    [b"still alive: %d polls" % n for n in range(9)],
    [b"ping", b"pong"] * 5,
    [b"", b"   ", b"\t"] * 3,
]
NEW_LINES = [
    [b"loss %.4f" % (1 / n) for n in range(1, 9)],
    [b"processed %d images" % (100 * n) for n in range(9)],
    [b"evaluated: accuracy %.3f" % (n / 10) for n in range(9)],
]


@pytest.mark.parametrize("lines", REPEATED, ids=range(len(REPEATED)))
def test_a_line_that_repeats_itself_is_no_sign_of_life(lines: list[bytes]) -> None:
    novelty = Novelty()
    assert sum(novelty.take([line]) for line in lines) <= len(set(lines[:2]))


@pytest.mark.parametrize("lines", NEW_LINES, ids=range(len(NEW_LINES)))
def test_a_line_with_other_figures_is_new(lines: list[bytes]) -> None:
    novelty = Novelty()
    assert all(novelty.take([line]) for line in lines)


def test_a_pulse_is_learnt_when_it_was_shown_often_enough_for_long_enough() -> None:
    pulse = Pulse("output", 3, over_ms=1_000)
    assert pulse.sign(0) is None
    for now_ms in (0, 100, 200):
        pulse.show(now_ms)
    assert pulse.sign(300) == Sign("output", 100, -1)
    pulse.show(1_000)
    assert pulse.sign(1_300) == Sign("output", 300, 800)


def test_the_pauses_of_the_attempt_before_are_known() -> None:
    pulse = Pulse("step", 3, pause_ms=40_000)
    pulse.show(0)
    assert pulse.sign(10) == Sign("step", 10, 40_000)


def test_output_is_learnt_anew_by_each_attempt(tmp_path: Path) -> None:
    """The pauses of a program's output differ between its start and its training."""
    reader = StepReader(tmp_path, Matcher(DEFAULT_STEP_PATTERNS, ListSink()))
    followed = Followed(reader, 0, pauses={"output": 2_000, "step": 700})
    for now_ms, line in ((0, "imports"), (1_000, "builds"), (2_000, "step 1")):
        with (tmp_path / "output.log").open("a") as file:
            file.write(line + "\n")
        followed.look(now_ms)
    assert followed.beat(ATTEMPT, 9_000).signs == (Sign("step", 7_000, 700), Sign("output", 7_000, -1))
    assert followed.learnt() == {"output": 2_000, "step": 700}


def trained(usual: float) -> Gauge:
    """A gauge of processor time that has learnt what is usual, at 0 ms."""
    gauge = Gauge("cpu", 0.05, 0.5)
    for number in range(GAUGE_LEAST):
        gauge.measure(5_000 * (number - GAUGE_LEAST + 1), usual)
    gauge.trains(0)
    return gauge


@pytest.mark.parametrize(
    ("usual", "now", "shown"),
    [(1.0, 0.3, True), (1.0, 0.2, False), (8.0, 0.6, True), (0.2, 0.06, True), (0.2, 0.04, False)],
)
def test_a_gauge_is_shown_while_it_is_not_far_below_what_is_usual(
    usual: float, now: float, shown: bool
) -> None:
    gauge = trained(usual)
    gauge.measure(5_000, now)
    sign = gauge.sign(5_000)
    assert sign is not None
    assert (sign.age_ms == 0) is shown


def test_what_hardly_works_as_it_trains_is_not_judged_by_that() -> None:
    assert trained(0.03).sign(0) is None


def test_what_is_measured_during_a_hang_is_not_learnt() -> None:
    gauge = trained(1.0)
    for number in range(1, 1_000):
        gauge.measure(5_000 * number, 0.01)
    sign = gauge.sign(5_000_000)
    assert sign is not None
    assert sign.age_ms == 5_000_000


def test_a_task_that_waits_for_a_processor_works() -> None:
    """Others may have them all for minutes."""
    gauge = trained(1.0)
    for number in range(1, 100):
        gauge.measure(5_000 * number, 0.01, wanted=True)
    sign = gauge.sign(5_000 * 100)
    assert sign is not None
    assert sign.age_ms == 5_000


USED = Usage(1.0, runnable=False)


def followed_in(directory: Path) -> Followed:
    return Followed(StepReader(directory, Matcher(DEFAULT_STEP_PATTERNS, ListSink())), 0)


def files_age(followed: Followed, now_ms: int) -> int | None:
    signs = followed.beat(ATTEMPT, now_ms).signs
    return next((each.age_ms for each in signs if each.name == "files"), None)


def test_bytes_that_move_to_and_from_files_show_that_a_task_works(tmp_path: Path) -> None:
    """A log or a poll is no work; a model that goes to the slowest of disks is."""
    followed, moved = followed_in(tmp_path), 0
    for now_ms, rate in (
        (0, 0),
        (5_000, FILES_PER_S // 2),
        (10_000, FILES_PER_S),
        (15_000, 100),
        (20_000, 0),
    ):
        moved += 5 * rate
        followed.measure(now_ms, replace(USED, moved_bytes=moved), None)
        assert files_age(followed, now_ms) == (now_ms - 10_000 if now_ms >= 10_000 else None)


def test_a_save_that_is_under_way_is_a_sign_of_life_for_a_while(tmp_path: Path) -> None:
    """It may wait in one call for a slow disk; one that waits for a dead server is no life for ever."""
    followed = followed_in(tmp_path)
    followed.measure(0, USED, None)
    assert files_age(followed, 0) is None
    (tmp_path / SAVING).touch()
    for now_ms in range(5_000, SAVING_MS + 5_000, 5_000):
        followed.measure(now_ms, USED, None)
        assert files_age(followed, now_ms) == 0
    followed.measure(SAVING_MS + 60_000, USED, None)
    assert files_age(followed, SAVING_MS + 60_000) == 60_000
    (tmp_path / SAVING).unlink()
    followed.measure(SAVING_MS + 65_000, USED, None)
    (tmp_path / SAVING).touch()
    followed.measure(SAVING_MS + 70_000, USED, None)
    assert files_age(followed, SAVING_MS + 70_000) == 0


@pytest.mark.parametrize(
    ("pays_ms", "own_ms", "pause_ms"),
    [(9_000, 900_000, 900_000), (9_000, 0, UNKNOWN_PAUSE_MS), (9_000, -1, 9_000), (20_000, 9_000, 9_000)],
)
def test_a_program_that_is_asked_to_save_is_held_to_its_own_pauses(
    tmp_path: Path, pays_ms: int, own_ms: int, pause_ms: int
) -> None:
    """A silent one would be held to pauses of some seconds, as it saves so often because we ask."""
    followed = followed_in(tmp_path)
    for saved in range(1, 5):
        place = {"directory": "/c", "below": KEPT[0], "saved": saved}
        pace = {"every_ms": 9_000, "cost_ms": 40, "pays_ms": pays_ms, "own_ms": own_ms}
        (tmp_path / FILE).write_text(json.dumps({"places": [place], "pace": pace}))
        followed.look(9_000 * saved)
    assert Sign("save", 1_000, pause_ms) in followed.beat(ATTEMPT, 37_000).signs


COPY = """
import os, time
if not os.fork():
    with open("copied", "wb") as file:
        file.write(bytes(1 << 20))
time.sleep(99)
"""


def test_bytes_moved_are_those_of_all_descendants(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", COPY]
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True) as child:
        process = fence.read_process(child.pid)
        assert process is not None
        root, until = (process.pid, process.start_ticks), time.monotonic() + 30
        while usage_of([root])[root].moved_bytes < 1 << 20:
            assert time.monotonic() < until
        for each in fence.members("", (root,)):
            fence.kill(each)


BURN = """
import os, time
os.fork()
end = time.process_time() + 0.2
while time.process_time() < end: pass
time.sleep(99)
"""


def test_processor_time_is_that_of_all_descendants() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", BURN]) as child:
        process = fence.read_process(child.pid)
        assert process is not None
        root, until = (process.pid, process.start_ticks), time.monotonic() + 30
        while (usage := usage_of([root])[root]).cpu_s < 0.35:
            assert time.monotonic() < until
        while usage.runnable:
            assert time.monotonic() < until
            usage = usage_of([root])[root]
        assert usage_of([(child.pid, process.start_ticks + 1)]) == {}
        for each in fence.members("", (root,)):
            fence.kill(each)
