"""Steps and NaN losses read from output, and what the beats say of an attempt."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.core.instructions import Follow
from agent.inside.child.saves import _Journal
from agent.inside.processes import fence
from agent.logs import patterns, steps
from agent.logs.patterns import Matcher
from agent.logs.task_logs import AttemptFiles
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.job.spec import DEFAULT_STEP_PATTERNS
from supervisor.contract.observed import TaskBeat
from tests.support.sinks import ListSink

ATTEMPT = AttemptId(TaskId("job", "worker", 0), 1, 1)
HOSTILE = r"((a+)+)$"
BAIT = b"a" * 64 + b"!"


class Output:
    """An attempt's output as its launcher writes it."""

    def __init__(
        self,
        root: Path,
        given: tuple[str, ...] = (r"step (\d+)",),
        process: fence.Process | None = None,
        *,
        watch_nan: bool = False,
    ) -> None:
        self.sink = ListSink()
        self.files = AttemptFiles(root, self.sink)
        self.directory = Path(self.files.directory("u", ATTEMPT))
        self.directory.mkdir(parents=True)
        pid, ticks = (process.pid, process.start_ticks) if process else (0, 0)
        self.files.follow(Follow(ATTEMPT, "u", given, 0, pid, ticks, watch_nan))

    def write(self, data: bytes) -> None:
        with (self.directory / "output.log").open("ab") as file:
            file.write(data)

    def beat(self, now_ms: int = 0) -> TaskBeat:
        (beat,) = self.files.progress(now_ms)
        return beat


def test_a_pause_that_ends_with_an_earlier_step_is_a_restore_and_no_slow_step(tmp_path: Path) -> None:
    output = Output(tmp_path)
    for step, now_ms in ((1, 60_000), (2, 60_100), (9, 60_200), (5, 90_200), (6, 90_250)):
        output.write(b"step %d\n" % step)
        output.beat(now_ms)
    beat = output.beat(90_300)
    assert (beat.step, beat.slowest_ms) == (6, 100)


def test_a_pause_in_which_a_session_was_made_again_is_no_usual_one(tmp_path: Path) -> None:
    output = Output(tmp_path)
    for step, now_ms in ((1, 60_000), (2, 60_100), (3, 60_200), (4, 90_200), (5, 90_250)):
        if step == 4:
            journal = _Journal(str(output.directory), {})
            journal.open()
            assert output.beat(90_100).step_age_ms == 29_900
            journal.session(survives=None, again=True)
            assert output.beat(90_150).step_age_ms == 29_950, "a session is no step"
        output.write(b"step %d\n" % step)
        output.beat(now_ms)
    beat = output.beat(90_300)
    usual = {each.name: each.pause_ms for each in beat.signs}
    assert (beat.step, beat.slowest_ms, usual["step"]) == (5, 100, 100)


def test_the_slowest_step_is_the_longest_pause_between_two(tmp_path: Path) -> None:
    output = Output(tmp_path)
    for step, now_ms in ((1, 60_000), (2, 60_100), (3, 63_100), (4, 63_150)):
        output.write(b"step %d\n" % step)
        beat = output.beat(now_ms)
        assert beat.slowest_ms == {1: -1, 2: 100, 3: 3_000, 4: 3_000}[step]
    assert output.beat(70_000).step_age_ms == 70_000 - 63_150


def test_patterns_just_below_the_timer_get_a_small_share_of_the_agents_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now_s=1000.0, spent_s=0.0)

    def look(_self: Matcher, _line: bytes) -> None:
        clock.now_s += 0.02
        clock.spent_s += 0.02

    times = SimpleNamespace(monotonic=lambda: clock.now_s, thread_time=lambda: clock.spent_s)
    monkeypatch.setattr(patterns, "time", times)
    monkeypatch.setattr(Matcher, "_look", look)
    matcher = Matcher([r"step (\d+)"], ListSink())
    began_s = clock.now_s
    while clock.now_s < began_s + 100:
        matcher.take([b"step 1"])
        clock.now_s += 0.02
    assert 4 < clock.spent_s < 0.05 * 100 + 0.45, "not half of the time, and never nothing"


def test_the_patterns_of_many_attempts_share_what_one_would_have(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=1000.0, spent_s=0.0)
    looked_at: dict[Matcher, int] = {}

    def look(matcher: Matcher, line: bytes) -> None:
        clock.spent_s += float(line)
        clock.now_s += float(line)
        looked_at[matcher] = looked_at.get(matcher, 0) + 1

    times = SimpleNamespace(monotonic=lambda: clock.now_s, thread_time=lambda: clock.spent_s)
    monkeypatch.setattr(patterns, "time", times)
    monkeypatch.setattr(Matcher, "_look", look)
    budget = patterns.Budget()
    slow = [Matcher([r"step (\d+)"], ListSink(), budget=budget) for _ in range(20)]
    quick = Matcher([r"step (\d+)"], ListSink(), budget=budget)
    longest_s, beats = 0.0, 400
    for beat in range(beats):
        if beat == beats / 2:
            looked_at[quick] = 0
        began_s = clock.now_s
        for matcher in slow:
            matcher.take([b"0.004"] * 12)
        quick.take([b"0.00001"] * 3)
        longest_s = max(longest_s, clock.now_s - began_s)
        clock.now_s += 0.25
    passed_s = clock.now_s - 1000
    assert clock.spent_s < patterns.SHARE * passed_s + len(slow) * 0.05
    assert longest_s < 0.2
    assert all(looked_at[matcher] for matcher in slow)
    assert looked_at[quick] > 3 * beats / 2 * 0.6, "the others have had their bursts"


def test_a_flood_of_lines_is_looked_at_in_part_and_by_beats_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, looked_at = Output(tmp_path, DEFAULT_STEP_PATTERNS), list[int]()
    monkeypatch.setattr(Matcher, "take", lambda _self, lines: looked_at.append(len(lines)))
    for _ in range(3):
        output.write(b"a\r" * 100_000)
        assert not output.files.wrote(ATTEMPT, 20)
    output.beat(250)
    assert looked_at == [steps.MOST_LINES] * 2
    output.write(b"a\r")
    output.beat(500)
    output.write(b"a\r")
    output.files.wrote(ATTEMPT, 520)
    assert looked_at[2:] == [1, 1], "the flood is over"


def test_output_after_the_first_step_is_left_to_the_beats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(tmp_path, DEFAULT_STEP_PATTERNS)
    output.write(b"step 1\n")
    assert output.files.wrote(ATTEMPT, 20)
    output.write(b"step 2\n")
    with monkeypatch.context() as patch:
        patch.setattr(steps.Followed, "look", lambda *_: pytest.fail("it is read once more"))
        assert not output.files.wrote(ATTEMPT, 40)
    assert output.beat(250).step == 2


def test_a_number_without_end_is_no_step_and_harms_no_beat(tmp_path: Path) -> None:
    output = Output(tmp_path, DEFAULT_STEP_PATTERNS)
    for now_ms, first in ((0, b"7"), (100, b"9"), (200, b"1")):
        number = first + 150 * b",000"
        output.write(b"step %s\nglobal step %s\nepoch %s\nbatch %s/5\n" % (number, number, number, number))
        beat = output.beat(now_ms)
        assert (beat.step, beat.rate, beat.said) == (-1, 0.0, "")
    output.write(b"global_step=1,234,567\n")
    assert output.beat(300).step == 1_234_567


def test_a_step_that_a_report_read_first_still_counts(tmp_path: Path) -> None:
    output = Output(tmp_path)
    output.write(b"step 1\n")
    assert output.files.last_step(ATTEMPT) == 1
    assert output.beat(10).first_step_age_ms == 0


@pytest.mark.parametrize("done", ["cut", "a link to itself", "a directory", "a link elsewhere"])
def test_what_a_program_does_to_its_own_output_harms_nobody_else(tmp_path: Path, done: str) -> None:
    """In a container the files are the task's, and the agent that reads them may read everything."""
    output = Output(tmp_path)
    output.write(b"step 1\n" * 9)
    output.beat()
    log, others = output.directory / "output.log", tmp_path / "others"
    if done == "cut":
        os.truncate(log, 0)
        output.write(b"step 2\n")
    elif done == "a link elsewhere":
        output.directory.rename(others)
        (others / "output.log").unlink()
        (others / "output.log").write_bytes(b"step 99\n")
        output.directory.symlink_to(others)
    else:
        log.unlink()
        if done == "a directory":
            log.mkdir()
        else:
            log.symlink_to(log)
    output.beat()
    assert output.files.last_step(ATTEMPT) == (2 if done == "cut" else 1)
    output.files.hold(ATTEMPT, 1_000)
    assert not (others / "held").exists()
    assert "99" not in output.files.tail(ATTEMPT)
    output.files.unfollow(ATTEMPT)


def test_pace_counts_reports_not_steps(tmp_path: Path) -> None:
    output = Output(tmp_path)
    beat = output.beat()
    for second in range(21):
        output.write(b"step %d\nstep %d\n" % (1000 * second + 1, 1000 * second + 500))
        beat = output.beat(1_000 * second)
        assert (beat.pace == -1.0) is (second < 10)
    assert beat.pace == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(
    "line",
    [
        b"loss: nan",
        b"step 10, loss = -inf",
        b"train_loss=NaN acc=0.1",
        b"{'loss': inf}",
        b"Loss: tf.Tensor(nan, shape=(), dtype=float32)",
        b"loss np.float32(nan)",
        b"tensorflow...NanLossDuringTrainingError: NaN loss during training.",
    ],
)
def test_a_nan_loss_is_seen_if_asked_for(tmp_path: Path, line: bytes) -> None:
    watched, other = Output(tmp_path / "a", watch_nan=True), Output(tmp_path / "b")
    for output in (watched, other):
        output.write(b"loss: 0.5\n" + line + b"\nloss: 0.4\n")
    assert (watched.beat().nan, other.beat().nan) == (True, False)


@pytest.mark.parametrize(
    "line",
    [b"loss: 0.5", b"loss: info", b"nanoseconds lost: 5", b"lossless nancy", b"loss: 1.5 (nan skipped)"],
)
def test_what_is_no_nan_loss_is_left_alone(tmp_path: Path, line: bytes) -> None:
    output = Output(tmp_path, watch_nan=True)
    output.write(line + b"\n")
    assert not output.beat().nan


def test_a_hostile_pattern_is_interrupted_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MOST_AT_ONCE_MS", 10_000)
    sink = ListSink()
    matcher = Matcher((HOSTILE, r"step (\d+)"), sink)
    for _ in range(patterns.STRIKES):
        began = time.process_time()
        matcher.take([BAIT, b"step 1"])
        assert time.process_time() - began < 1.0
    assert matcher.step == -1
    assert not matcher.blind
    matcher.take([BAIT, b"step 2"])
    assert matcher.step == 2
    assert ("warning", HOSTILE) in [(level, fields.get("pattern")) for level, _, fields in sink.lines]


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_a_pattern_that_takes_all_memory_is_given_up(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def search(_matcher: Matcher, _line: bytes) -> None:
        raise error

    monkeypatch.setattr(Matcher, "_count", search)
    matcher = Matcher((r"step (\d+)",), ListSink())
    for _ in range(patterns.STRIKES):
        assert not matcher.blind
        matcher.take([b"step 1"])
        assert matcher.skipped
    assert matcher.blind


def test_a_pattern_is_not_given_up_because_the_machine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=1000.0, spent_s=0.0)

    def count(_line: bytes, **_: object) -> None:
        clock.now_s += 10
        clock.spent_s += 0.001
        raise patterns._TooSlow

    times = SimpleNamespace(monotonic=lambda: clock.now_s, thread_time=lambda: clock.spent_s)
    monkeypatch.setattr(patterns, "time", times)
    matcher = Matcher((r"step (\d+)",), ListSink())
    monkeypatch.setattr(matcher, "_patterns", [SimpleNamespace(search=count)])
    for _ in range(patterns.STRIKES):
        matcher.take([b"step 1"])
    assert not matcher.blind


def test_an_attempt_without_any_pattern_left_has_no_known_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "MOST_AT_ONCE_MS", 10_000)
    output = Output(tmp_path, (r"step (\d+)|((a+)+)$",))
    output.write(b"step 1\n")
    assert output.beat(100).step_age_ms == 0
    for _ in range(patterns.STRIKES):
        output.write(BAIT + b"\n")
        output.beat(100)
    assert output.beat(200) == TaskBeat(str(ATTEMPT), 1, -1, 1, 100, is_local=True, said="step 1")


def test_the_age_of_a_step_is_unknown_once_lines_were_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Output(tmp_path)
    output.write(b"step 1\n")
    assert output.beat(100).step_age_ms == 0
    with monkeypatch.context() as patch:
        patch.setattr(patterns, "MOST_AT_ONCE_MS", -1)
        output.write(b"step 2\n")
        beat = output.beat(200)
    assert (beat.step, beat.step_age_ms, "step" in [each.name for each in beat.signs]) == (1, -1, False)
    output.write(b"no step\n")
    assert output.beat(300).step_age_ms == -1
    output.write(b"step 3\n")
    assert output.beat(400).step_age_ms == 0


def test_a_late_ring_of_the_timer_harms_nobody() -> None:
    Matcher((r"step (\d+)",), ListSink()).take([b"step 1"])
    signal.raise_signal(signal.SIGPROF)


def test_the_defaults_read_a_full_turn_in_time() -> None:
    sink = ListSink()
    matcher = Matcher(DEFAULT_STEP_PATTERNS, sink, watch_nan=True)
    lines = [
        b"2026-11-21 08:00:00.%06d: I tensorflow/core/x.cc:%d] all is well" % (n, n) for n in range(3000)
    ]
    matcher.take([*lines, b"step 7"])
    assert not matcher.blind
    assert not sink.lines


def test_a_full_disk_hides_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_FULL_BYTES", 1 << 62)
    output = Output(tmp_path)
    output.write(b"step 1\n")
    assert output.beat(0).step_age_ms == 0
    assert output.beat(5_000).step_age_ms == -1


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as child:
        yield child
        child.kill()


def test_a_stopped_process_is_seen(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    process = fence.read_process(sleeper.pid)
    assert process is not None
    output = Output(tmp_path, process=process)
    assert not output.beat().stopped
    sleeper.send_signal(signal.SIGSTOP)
    until = time.monotonic() + 10
    while not output.beat().stopped:
        assert time.monotonic() < until
    sleeper.send_signal(signal.SIGCONT)
