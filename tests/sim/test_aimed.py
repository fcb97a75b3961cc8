"""Each effect that a seed leads to can be struck, and daemons that die there break no promise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.failpoints.points import names
from chaos.programs import REPOSITORY
from chaos.sim.run import run_swarm
from chaos.sim.swarm import Length
from chaos.sim.trouble.aimed import Aim, aims

FLIP = "leader.flip.after"
MOST = 10
MORE = range(910_001, 910_051)


@pytest.fixture(scope="module")
def eventful() -> int:
    """A seed in which a generation follows another."""
    return next(seed for seed in range(1, 100) if FLIP in run_swarm(seed, Length.SHORT).reached)


def test_each_point_is_struck_the_rarest_first_and_no_seed_more_than_it_must() -> None:
    reached = {1: {"often": 5, "seldom": 1}, 2: {"often": 3}, 3: {"often": 2}}
    found = aims(reached, 1)
    assert [(seed, aim.point) for seed, aim in found] == [(1, "seldom"), (2, "often")]
    assert {
        aim.point: len([each for each in aims(reached, 2) if each[1].point == aim.point]) for _, aim in found
    } == {
        "seldom": 1,
        "often": 2,
    }


def test_a_strike_comes_at_one_of_the_times_that_its_seed_was_there() -> None:
    reached = {seed: {"point": seed} for seed in range(1, 30)}
    assert all(1 <= aim.hit <= seed for seed, aim in aims(reached, 30))
    assert len({aim.hit for _, aim in aims(reached, 30)}) > 5


@pytest.mark.parametrize("text", ["leader.flip.before", "leader.flip.before:0", ":1", "leader.flip.before:x"])
def test_what_is_no_aim_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no aim: write"):
        Aim.parse(text)


def test_an_aim_is_read_as_it_is_written() -> None:
    assert Aim.parse(str(Aim("leader.flip.before", 3))) == Aim("leader.flip.before", 3)


def test_a_daemon_dies_where_it_is_aimed_at_and_the_seed_is_the_same_until_then(eventful: int) -> None:
    plain = run_swarm(eventful, Length.SHORT)
    aim = Aim("commit.record.after", 1)
    assert plain.reached[aim.point]
    struck = run_swarm(eventful, Length.SHORT, aim=aim)
    where = next(number for number, line in enumerate(struck.trace) if "as aimed" in line)
    assert aim.point in struck.trace[where]
    assert "is killed" in struck.trace[where + 1]
    assert struck.trace[:where] == plain.trace[:where]
    assert run_swarm(eventful, Length.SHORT, aim=aim).digest == struck.digest


def test_a_run_in_which_nobody_came_there_is_an_error(eventful: int) -> None:
    assert (
        run_swarm(eventful, Length.SHORT, aim=Aim("leader.flip.before", 999)).error
        == "no daemon came to leader.flip.before:999"
    )


def _strike(seed: int, aim: Aim, length: Length = Length.SHORT) -> list[str]:
    found = run_swarm(seed, length, aim=aim)
    return [] if found.ok else [f"seed {seed} at {aim}: {(*found.violations, found.error)[0]}"]


def test_whoever_dies_at_an_effect_breaks_no_promise(eventful: int) -> None:
    reached = run_swarm(eventful, Length.SHORT).reached
    assert reached.keys() <= names()
    plan = aims({eventful: reached}, 1)
    assert len(plan) > MOST
    assert [failed for seed, aim in plan[:: len(plan) // MOST] for failed in _strike(seed, aim)] == []


def sim(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "chaos.sim", *words]
    return subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)


def test_its_command_tells_where_it_has_struck(tmp_path: Path, eventful: int) -> None:
    file = tmp_path / "sim.json"
    seeds = f"{eventful}..{eventful}"
    done = sim(
        "--short", "--seeds", seeds, "--strike", "1", "--for", "3s", "--jobs", "1", "--json", str(file)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    struck = json.loads(file.read_text())["struck"]
    assert struck
    assert names() >= set(struck)
    assert f"{len(struck)} of" in done.stdout.splitlines()[-1]


def test_its_command_strikes_where_it_is_told_to(tmp_path: Path, eventful: int) -> None:
    file = tmp_path / "sim.json"
    seeds = ("--short", "--seeds", f"{eventful}..{eventful}", "--jobs", "1")
    done = sim(*seeds, "--strike", "1", "--points", FLIP, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(file.read_text())["struck"] == [FLIP]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "--seeds", "1..2", "--strike", "1"), "--gpus knows neither --strike nor --at"),
        (("--seeds", "1..2", "--points", "leader.flip.before"), "--points says where to --strike"),
        (("--seeds", "1..2", "--strike", "1", "--points", "nowhere"), "there is no point 'nowhere'"),
        (("--seed", "1", "--at", "leader.flip.before"), "is no aim: write leader.flip.before:1"),
        (("--seeds", "1..2", "--json", "/nowhere/sim.json"), "there is no directory /nowhere"),
    ],
)
def test_what_it_cannot_do_is_said_at_once(words: tuple[str, ...], said: str) -> None:
    done = sim(*words)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nor_at_any_effect_that_many_seeds_lead_to() -> None:
    plan = aims({seed: run_swarm(seed, Length.SHORT).reached for seed in MORE}, 2)
    assert len({aim.point for _, aim in plan}) > 150
    assert [failed for seed, aim in plan for failed in _strike(seed, aim)] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("effect", ["leader.time", "leader.code_removed"])
def test_nor_at_what_a_leader_does_after_ten_minutes(effect: str, eventful: int) -> None:
    for point in (f"{effect}.before", f"{effect}.after"):
        assert _strike(eventful, Aim(point), Length.LONG) == []
