"""The runner: what it makes of what it sees. Real runs are in test_sweep.py."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos.cluster import Shape
from chaos.command import Duration, main
from chaos.faults import FAULTS
from chaos.faults.fault import Family
from chaos.programs import PROGRAMS
from chaos.runner.record import Again, Broken, Expected, FaultRun, Outcome, RunRecord, shape_document
from chaos.runner.screen import Screen
from chaos.runner.steps import StepLog
from chaos.runner.sweep import PAIR_EVERY, Summary, Sweep, Sweeper
from chaos.runner.timeline import timeline
from chaos.scenarios import PAIR, Scenario, scenarios

NOTHING = Expected("none", (), (), ())


def record_of(outcome: Outcome = Outcome.PASSED) -> RunRecord:
    record = RunRecord(
        "0001-x", "kill-ps", "7/1", "steps", shape_document(Shape()), "steps-1", began_ms=1000.0
    )
    record.faults.append(
        FaultRun("kill-ps", "task", "ps.0", NOTHING, 0, 2000.0, 2010.0, 2020.0, "process 5 is gone")
    )
    record.outcome = outcome
    return record


def step(at_ms: float, task: str = "chief:0", attempt: str = "a@1.1", kind: str = "step") -> str:
    return json.dumps({"at_ms": at_ms, "kind": kind, "task": task, "attempt": attempt, "step": 1}) + "\n"


def test_a_line_that_is_being_written_waits(tmp_path: Path) -> None:
    log = StepLog(tmp_path)
    whole, torn = step(10.0), step(20.0)
    (tmp_path / "chief-0.1").write_text(whole + torn[:9])
    log.read()
    assert log.since(0.0) == 1
    (tmp_path / "chief-0.1").write_text(whole + torn + step(30.0, kind="saved"))
    log.read()
    assert log.since(0.0) == 2
    assert log.since(10.0) == 1
    assert log.since(0.0, "worker:0") == 0
    assert log.since(0.0, "chief:0", "a@1.2") == 0


def test_a_run_can_be_read_back_and_done_again(tmp_path: Path) -> None:
    record_of().write(tmp_path)
    again = Again.read(tmp_path)
    assert again == Again("kill-ps", "7/1", "steps", Shape(), (("kill-ps", "ps.0"),))
    body = json.loads((tmp_path / "run.json").read_text())
    assert body["faults"][0]["in_force"] is True
    assert body["outcome"] == "passed"


def test_a_fault_without_evidence_was_not_in_force(tmp_path: Path) -> None:
    record = record_of()
    record.faults[0].in_force_ms = -1.0
    record.write(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["faults"][0]["in_force"] is False


def test_the_timeline_is_of_the_moments_around_what_broke(tmp_path: Path) -> None:
    record = record_of(Outcome.BROKEN)
    record.violations.append(Broken("one generation at a time", "two of them", 5000.0))
    far = {
        "kind": "put",
        "revision": 9,
        "key": "leader",
        "value": '{"supervisor": "sup-2"}',
        "at_ms": 90_000.0,
    }
    near = far | {"revision": 8, "value": '{"supervisor": "sup-1"}', "at_ms": 4000.0}
    (tmp_path / "etcd.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (near, far)))
    found = timeline(record, tmp_path)
    assert [(entry.kind, entry.text) for entry in found] == [
        ("fault", "kill-ps of ps.0 begins"),
        ("in force", "kill-ps: process 5 is gone"),
        ("healed", "kill-ps of ps.0"),
        ("etcd", "sup-1 leads"),
        ("broken", "one generation at a time: two of them"),
    ]
    assert [entry.at_s for entry in found] == sorted(entry.at_s for entry in found)


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([Outcome.PASSED], 0),
        ([Outcome.PASSED, Outcome.BROKEN, Outcome.ERROR], 1),
        ([Outcome.PASSED, Outcome.ERROR], 3),
        ([], 3),
    ],
)
def test_a_sweep_that_proves_nothing_is_no_success(
    outcomes: list[Outcome], code: int, tmp_path: Path
) -> None:
    summary = Summary(1)
    for outcome in outcomes:
        summary.take(record_of(outcome), tmp_path)
    assert summary.exit_code == code
    assert json.loads(summary.document())["outcomes"] == {
        outcome.value: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)
    }


def order(*names: str, once: bool = False, seed: int = 1) -> list[str]:
    chosen = tuple(scenarios()[name] for name in names)
    sweep = Sweep(Path("unused"), Shape(), seed, 1.0, chosen, once=once)
    return [each.name for each in islice(Sweeper(sweep, Screen(quiet=True)).planned(), 40)]


def test_a_sweep_has_each_scenario_as_often_as_the_others() -> None:
    names = ["kill-ps", "kill-worker", "kill-leader"]
    found = order(*names, PAIR)
    assert order(*names, PAIR) == found
    assert order(*names, PAIR, seed=2) != found
    assert found.count(PAIR) == 40 // (PAIR_EVERY + 1)
    single = [name for name in found if name != PAIR]
    assert all(set(single[at : at + 3]) == set(names) for at in range(0, 30, 3))


def test_once_is_once() -> None:
    assert sorted(order("kill-ps", "kill-worker", PAIR, once=True)) == ["kill-ps", "kill-worker", PAIR]


def test_which_cluster_comes_first_is_chance_and_each_is_started_once() -> None:
    names = ["kill-ps", "namenode-killed", "kill-worker", "quota", "dockerd-killed"]
    first = {order(*names, once=True, seed=seed)[0] for seed in range(20)}
    assert first == set(names)
    for seed in range(20):
        shapes = [scenarios()[name].shape(Shape()) for name in order(*names, once=True, seed=seed)]
        assert len([shape for shape, _ in groupby(shapes)]) == 3


def test_a_share_of_the_runs_is_of_real_tensorflow_where_that_can_have_the_fault() -> None:
    chosen = tuple(scenarios()[name] for name in ("kill-ps", "kill-evaluator", "dockerd-killed", PAIR))
    sweeper = Sweeper(Sweep(Path("unused"), Shape(), 1, 1.0, chosen, digits=0.2), Screen(quiet=True))
    found = {each.name: [sweeper.program(f"1/{run}", each) for run in range(500)] for each in chosen}
    assert 70 < found["kill-ps"].count("digits") < 130
    assert all(set(found[name]) == {"steps"} for name in ("kill-evaluator", "dockerd-killed", PAIR))
    assert found["kill-ps"] == [sweeper.program(f"1/{run}", chosen[0]) for run in range(500)]


def test_every_fault_that_a_program_is_said_not_to_have_is_there() -> None:
    families = {family.value for family in Family}
    for program in PROGRAMS.values():
        assert set(program.families) <= families
        assert set(program.without) <= set(FAULTS)


@pytest.mark.parametrize(
    ("families", "without", "fitting"),
    [
        ((), (), {"kill-ps", "kill-worker", "node-off", PAIR}),
        ((), ("kill-ps",), {"kill-worker", "node-off"}),
        (("task",), (), {"kill-ps", "kill-worker"}),
        (("task",), ("kill-ps",), {"kill-worker"}),
    ],
)
def test_no_families_are_all_of_them(
    families: tuple[str, ...], without: tuple[str, ...], fitting: set[str]
) -> None:
    program = replace(PROGRAMS["steps"], families=families, without=without)
    names = ("kill-ps", "kill-worker", "node-off", PAIR)
    assert {name for name in names if scenarios()[name].fits(program)} == fitting


class Idle(Sweeper):
    """Its runs are over at once."""

    def _one(self, number: int, scenario: Scenario, kinds_left: int) -> None:
        assert kinds_left >= 0


@pytest.mark.parametrize(("most", "for_s", "skipped"), [(1, 1000.0, 0), (0, -1.0, 2)])
def test_only_what_time_has_kept_out_is_skipped(
    most: int, for_s: float, skipped: int, tmp_path: Path
) -> None:
    chosen = tuple(scenarios()[name] for name in ("kill-ps", "kill-worker"))
    sweep = Sweep(tmp_path, Shape(), 1, for_s, chosen, most=most)
    assert len(Idle(sweep, Screen(quiet=True)).perform().skipped) == skipped


def test_only_pairs_are_possible_too() -> None:
    assert set(order(PAIR)) == {PAIR}


@pytest.mark.parametrize(
    "words",
    [
        ["run", "no-such-scenario"],
        ["sweep", "--only", "no-such-family"],
        ["sweep", "--for", "soon"],
        ["replay", "/proc/self/fd"],
    ],
)
def test_wrong_words_are_refused(words: list[str]) -> None:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2, done.output


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90.0), ("30m", 1800.0), ("1.5h", 5400.0)])
def test_durations_are_read(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


def test_a_scenario_is_impossible_without_its_fault() -> None:
    found = Scenario("x", "", ("kill-ps",))
    assert not found.possible({})
