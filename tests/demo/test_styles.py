"""`benchmarks.recovery --styles`: what counts as a new step, and the arithmetic of its report."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from pathlib import Path

import pytest

from benchmarks.styles import LOOP, WARM, Flags, Kills, Results, kills_of_block, report, times_faster
from benchmarks.support.outputs import (
    IN_FLIGHT_NS,
    Kill,
    Outputs,
    Sample,
    Seen,
    longest_pause_ms,
    sample,
    stepping,
)
from benchmarks.support.quiet import Quiet
from benchmarks.support.style_subjects import STYLES, ShellLoops

MS = 1_000_000
AT = 1000 * MS
TRAINERS = ("worker:0", "worker:1")
BEFORE = {"worker:0": ["a0"], "worker:1": ["b0"], "ps:0": ["p0"]}
KILL = Kill(AT, frozenset({"a0", "b0", "p0"}), frozenset({"worker:1"}))


def seen(run: str, *at_ms: int) -> list[Seen]:
    return [Seen(AT + ms * MS, run) for ms in at_ms]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def test_the_killed_trainer_counts_from_its_new_process() -> None:
    runs = BEFORE | {"worker:1": ["b0", "b1"]}
    steps = {"worker:0": seen("a0", 10, 300, 320), "worker:1": [*seen("b0", 1, 2), *seen("b1", 500, 510)]}
    assert sample(runs, steps, TRAINERS, "worker:1", KILL) == Sample(500, 500)


def test_what_the_killed_process_had_still_to_print_is_nothing_new() -> None:
    steps = {"worker:0": seen("a0", 300, 320), "worker:1": seen("b0", 400, 410)}
    assert sample(BEFORE, steps, TRAINERS, "worker:1", KILL) is None


def test_a_task_that_goes_on_counts_after_what_was_in_flight() -> None:
    kill = Kill(AT, KILL.runs, frozenset({"ps:0"}))
    in_flight = IN_FLIGHT_NS // MS
    steps = {"worker:0": seen("a0", in_flight, 900, 950), "worker:1": seen("b0", 400, 700)}
    assert sample(BEFORE, steps, TRAINERS, "ps:0", kill) == Sample(400, 900)


def test_a_trainer_that_ended_by_itself_counts_from_its_newest_process() -> None:
    runs = BEFORE | {"worker:0": ["a0", "a1", "a2"], "worker:1": ["b0", "b1"]}
    steps = {"worker:0": [*seen("a0", 300, 320), *seen("a1", 2000, 2010)], "worker:1": seen("b1", 700, 710)}
    assert sample(runs, steps, TRAINERS, "ps:0", KILL) is None
    steps["worker:0"] += seen("a2", 5000, 5010)
    assert sample(runs, steps, TRAINERS, "ps:0", KILL) == Sample(700, 5000)


def test_one_step_alone_is_not_training_again() -> None:
    runs = BEFORE | {"worker:1": ["b0", "b1"]}
    steps = {"worker:0": seen("a0", 300), "worker:1": seen("b1", 500, 510)}
    assert sample(runs, steps, TRAINERS, "worker:1", KILL) is None


def test_a_pause_is_a_time_in_which_no_trainer_steps() -> None:
    steps = {"worker:0": seen("a0", 10, 300, 320, 2000), "worker:1": [*seen("b0", 1), *seen("b1", 900, 910)]}
    assert longest_pause_ms(steps, KILL) == 1090
    assert longest_pause_ms({"worker:0": seen("a1", 700, 900)}, KILL) == 700
    assert longest_pause_ms({}, KILL) == 0


def test_files_of_both_kinds_are_read_as_they_grow(tmp_path: Path) -> None:
    ours = tmp_path / "worker.1-g2.1" / "output.log"
    write(ours, "loading\nstep 1 loss 0.5\nstep 2 lo")
    write(tmp_path / "my.role.0-3.log", "the step 7\nstep 8\n")
    outputs = Outputs(tmp_path, "**/*.log")
    outputs.read()
    assert {task: len(steps) for task, steps in outputs.steps.items()} == {"worker:1": 1, "my.role:0": 1}
    assert not stepping(outputs, ("worker:1",), 2)
    write(ours, "ss 0.4\n")
    outputs.read()
    assert outputs.runs == {"worker:1": [str(ours)], "my.role:0": [str(tmp_path / "my.role.0-3.log")]}
    assert stepping(outputs, ("worker:1",), 2)
    first, second = outputs.steps["worker:1"]
    assert (first.run, first.ns < second.ns) == (str(ours), True)
    write(tmp_path / "worker.1-g3.1" / "output.log", "step 2\n")
    outputs.read()
    assert not stepping(outputs, ("worker:1",), 2), "the newest process alone"
    outputs.mark()
    assert outputs.steps == {}
    outputs.close()


def test_a_block_has_its_share_of_kills_with_the_victims_in_turn() -> None:
    blocks = [kills_of_block(("worker:0", "ps:0"), 5, 2, block) for block in range(2)]
    assert blocks == [["worker:0", "ps:0"] * 2, ["worker:0", "ps:0"] * 3]


def test_what_did_not_heal_is_part_of_the_median() -> None:
    assert times_faster([500.0, 500.0, 600.0], [4000.0, 5000.0, math.inf]) == 10.0
    assert times_faster([500.0], [4000.0, math.inf, math.inf]) == "the loop did not heal"
    assert times_faster([math.inf], [4000.0]) == "ours did not heal"
    assert times_faster([], [4000.0]) is None


def test_the_report_counts_what_did_not_heal_apart(tmp_path: Path) -> None:
    results = Results()
    results.kills["zcalc", "client:0", WARM] = Kills([Sample(500, 600, 400)], scopes=["all"])
    results.kills["zcalc", "client:0", LOOP] = Kills(
        [Sample(5000, 6000, 300), Sample(5000, 7200, 3200)], not_within=1
    )
    flags = Flags(3, 1, 90.0, 6.0, tmp_path, ("zcalc",), Quiet(0.0))
    styles = report({}, flags, results)["styles"]
    assert isinstance(styles, dict)
    row = styles["zcalc"]["client:0"]
    assert row["times_faster"] == {"first_step": 10.0, "all_step": 12.0, "pause": 8.0}
    assert (row[LOOP]["kills"], row[LOOP]["not_within_90_s"]) == (3, 1)
    assert row[LOOP]["all_step_ms"] == {"n": 2, "p50": 6000, "p99": 7200, "max": 7200}


@pytest.mark.parametrize("name", STYLES)
def test_a_style_trains_for_ever_with_flags_that_its_job_file_takes(name: str) -> None:
    style = STYLES[name]
    spec = style.spec(f"{name}-1", "file:///unused")
    tasks = {f"{task.role}:{task.index}" for task in spec.tasks()}
    assert {*style.victims, *style.trainers} <= tasks
    for task in style.trainers:
        command = spec.role(task.partition(":")[0]).command
        assert "--steps" in command or "STEPS" in spec.env


async def test_a_loop_starts_a_killed_task_again_in_a_file_of_its_own(tmp_path: Path) -> None:
    loops = ShellLoops(tmp_path / "loop", STYLES["plain"], "plain")
    try:
        await _until_steps(loops, 1)
        os.kill(await loops.pid_of("worker:0"), signal.SIGKILL)
        await _until_steps(loops, 2)
    finally:
        await loops.close()
    assert [Path(run).name for run in loops.outputs.runs["worker:0"]] == ["worker.0-1.log", "worker.0-2.log"]


async def _until_steps(loops: ShellLoops, processes: int) -> None:
    """Until that many processes have started and the newest has stepped."""
    async with asyncio.timeout(140):
        while len(loops.outputs.runs.get("worker:0", ())) < processes or not stepping(
            loops.outputs, ("worker:0",), 1
        ):
            loops.outputs.read()
            await asyncio.sleep(0.02)
