"""The simulator's seeds, as users replay them: from the command line."""

from pathlib import Path

import pytest

from tests.sim.command import simulate

BATCH = 25
SHORT_BATCHES = 120
LONG_BATCHES = 80


def run_batch(number: int, *more: str) -> None:
    first = 1 + number * BATCH
    done = simulate(*more, "--seeds", f"{first}..{first + BATCH - 1}", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", range(SHORT_BATCHES))
def test_promises_hold(number: int) -> None:
    run_batch(number, "--short")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(LONG_BATCHES))
def test_promises_hold_for_long(number: int) -> None:
    run_batch(number)


@pytest.mark.parametrize("seed", [3, *(pytest.param(each, marks=pytest.mark.slow) for each in (64, 152))])
def test_a_seed_replays_exactly(seed: int, tmp_path: Path) -> None:
    traces = [tmp_path / f"{number}.txt" for number in range(2)]
    for trace in traces:
        done = simulate("--seed", str(seed), "--trace", str(trace))
        assert done.returncode == 0, done.stdout + done.stderr
    first, second = (trace.read_text() for trace in traces)
    assert first == second
    assert "== healthy; faults begin" in first


def test_another_seed_is_another_run() -> None:
    assert simulate("--seed", "1").stdout != simulate("--seed", "2").stdout


@pytest.mark.parametrize("arguments", [["--seeds", "9..1"], ["--seeds", "x"], []])
def test_wrong_usage_is_said(arguments: list[str]) -> None:
    done = simulate(*arguments)
    assert done.returncode == 2
    assert "usage" in done.stderr
