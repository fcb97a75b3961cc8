"""Verdicts on programs of thirty shapes, healthy and hung: real reader, pure judge, virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

import pytest

from agent.host.processes import Usage
from agent.inside.child.saves import SAVING
from agent.logs.patterns import Matcher
from agent.logs.steps import MEASURE_MS, SAVING_MS, Followed
from recovery.policy.hangs import IDLE_MS, LEAST_WORK_MS, Judgement, Running, bounds_of, judge
from supervisor.contract.ids import AttemptId, TaskId
from supervisor.contract.job.spec import DEFAULT_STEP_PATTERNS, ProgressSpec
from tests.support.shapes import HANGS, SHAPES, Piece
from tests.support.sinks import ListSink
from tests.support.tapes import Tape

TASK = TaskId("job", "worker", 0)
STARTUP_MS = 600_000
TURN_MS = 2_500
HOUR_MS = 3_600_000


@dataclass(slots=True)
class Watched:
    """One attempt of a program, as its agent and the leader see it."""

    pieces: Iterator[Piece]
    tape: Tape
    followed: Followed
    now_ms: int = 0
    moved_bytes: int = 0
    _left: Piece = (0.0, 0.0, b"")
    _used_s: float = 0.0
    bound_ms: int = -1
    judgements: list[Judgement] = field(default_factory=list)

    def turn(self) -> Judgement:
        """The next turn of the clock."""
        self._play(TURN_MS / 1000)
        self.now_ms += TURN_MS
        self.followed.look(self.now_ms)
        if self.now_ms % MEASURE_MS == 0:
            usage = Usage(self._used_s, runnable=False, moved_bytes=self.moved_bytes)
            self.followed.measure(self.now_ms, usage, None)
        beat = self.followed.beat(AttemptId(TASK, 1, 1), self.now_ms)
        tasks = (Running(TASK, beat.signs, beat.silent_ms),)
        bounds = bounds_of(tasks, ProgressSpec(), STARTUP_MS, hung_before=0)
        self.bound_ms = max((each.act_ms for each in bounds.values()), default=-1)
        return judge(tasks, bounds)

    def _play(self, seconds: float) -> None:
        while True:
            lasts, uses, text = self._left
            if lasts > seconds:
                self._left = (lasts - seconds, uses, text)
                self._used_s += uses * seconds
                return
            self._used_s += uses * lasts
            self.tape.waiting += text
            seconds -= lasts
            self._left = next(self.pieces)


def watch(name: str, seed: int, directory: Path = Path("/")) -> Watched:
    tape = Tape(directory, Matcher(DEFAULT_STEP_PATTERNS, ListSink()))
    return Watched(SHAPES[name](Random(seed)), tape, Followed(tape, 0))


def false_verdicts(name: str, seed: int, lasts_ms: int) -> list[int]:
    """The times at which a healthy program was taken to hang."""
    watched, found = watch(name, seed), []
    while watched.now_ms < lasts_ms:
        if watched.turn().hang is not None:
            found.append(watched.now_ms)
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_no_healthy_program_is_taken_to_hang(name: str) -> None:
    """24 virtual hours in all."""
    assert false_verdicts(name, 1, 24 * HOUR_MS // len(SHAPES)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_no_healthy_program_is_taken_to_hang_in_a_day(name: str) -> None:
    assert false_verdicts(name, 2, 24 * HOUR_MS) == []


@dataclass(frozen=True, slots=True)
class Found:
    """The detection of an injected hang: `hang`, only `suspected` or empty, after so long, and its bound."""

    how: str
    after_ms: int
    bound_ms: int

    @property
    def in_time(self) -> bool:
        return self.how != "" and self.after_ms <= self.bound_ms


def inject(name: str, hang: str, seed: int) -> Found:
    """Hang after 20 minutes or a little more. One that shows no training at all can only be suspected."""
    watched, rng = watch(name, seed), Random(seed)
    until_ms = int(rng.uniform(1_200_000, 1_500_000))
    while watched.now_ms < until_ms:
        watched.turn()
    began_ms = watched.now_ms
    watched.pieces, watched._left = HANGS[hang](rng), (0.0, 0.0, b"")
    watched.turn()
    judged = watched.bound_ms >= 0
    bound_ms = (max(watched.bound_ms, LEAST_WORK_MS) if judged else IDLE_MS) + 2 * MEASURE_MS
    while watched.now_ms - began_ms <= bound_ms + TURN_MS:
        found = watched.turn()
        if found.hang is not None or (not judged and found.suspected):
            return Found("hang" if found.hang else "suspected", watched.now_ms - began_ms, bound_ms)
    return Found("", watched.now_ms - began_ms, bound_ms)


@pytest.mark.parametrize("hang", HANGS)
def test_a_hang_is_found_within_the_learnt_bound(hang: str) -> None:
    found = {name: inject(name, hang, seed=7) for name in SHAPES}
    late = {name: each for name, each in found.items() if not each.in_time}
    assert len(late) <= 0.01 * len(found), late


def evaluation(processors: float, text: bytes) -> Iterator[Piece]:
    for number in count():
        yield 5.0, processors, text % number if text else b""


EVALUATIONS = {
    "prints, and has others work": (0.02, b"evaluated %d of 400 batches\n", set[str]()),
    "silent": (1.0, b"", {"suspected"}),
    "silent, and does nothing": (0.02, b"", {"suspected", "hang"}),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_an_evaluation_between_two_steps_is_a_sign_of_life(name: str) -> None:
    processors, text, verdict = EVALUATIONS[name]
    watched, found = watch("fast_steps", 3), set[str]()
    train_for(watched, 120_000)
    watched.pieces, watched._left = evaluation(processors, text), (0.0, 0.0, b"")
    until_ms = watched.now_ms + 300_000
    while watched.now_ms < until_ms:
        judged = watched.turn()
        found |= {"suspected"} if judged.suspected else set()
        found |= {"hang"} if judged.hang is not None else set()
    assert found == verdict


def train_for(watched: Watched, lasts_ms: int) -> None:
    until_ms = watched.now_ms + lasts_ms
    while watched.now_ms < until_ms:
        assert watched.turn().hang is None


@pytest.mark.parametrize("blocks", [False, True], ids=["bytes move", "one call blocks"])
def test_a_first_save_to_a_slow_disk_is_no_hang(tmp_path: Path, blocks: bool) -> None:
    """It takes nine minutes and hardly a processor, and nothing is printed."""
    watched = watch("fast_steps", 3, tmp_path)
    train_for(watched, 120_000)
    trains = watched.pieces
    watched.pieces, watched._left = HANGS["stopped"](Random(3)), (0.0, 0.0, b"")
    if blocks:
        (tmp_path / SAVING).touch()
    until_ms, judged = watched.now_ms + 540_000, Judgement()
    while watched.now_ms < until_ms:
        watched.moved_bytes += 0 if blocks else 1 << 20
        judged = watched.turn()
        assert judged.hang is None
    assert judged.suspected
    (tmp_path / SAVING).unlink(missing_ok=True)
    watched.pieces, watched._left = trains, (0.0, 0.0, b"")
    train_for(watched, 120_000)


def test_a_save_that_never_ends_is_a_hang(tmp_path: Path) -> None:
    """Its server is gone: what waits for it is told of at once, and ended after ten minutes."""
    watched = watch("fast_steps", 3, tmp_path)
    train_for(watched, 120_000)
    (tmp_path / SAVING).touch()
    watched.pieces, watched._left = HANGS["stopped"](Random(3)), (0.0, 0.0, b"")
    began_ms, suspected_ms = watched.now_ms, -1
    while (judged := watched.turn()).hang is None:
        if judged.suspected and suspected_ms < 0:
            suspected_ms = watched.now_ms
        assert watched.now_ms - began_ms < 2 * SAVING_MS
    assert 0 < suspected_ms - began_ms <= 10_000
    assert watched.now_ms - began_ms >= SAVING_MS
    assert judged.hang.flat == ("step", "output", "cpu", "files")
