"""Strikes that go on where an earlier call left off, within the time that they have."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos.cluster import Shape
from chaos.failpoints.causes import Cause
from chaos.failpoints.grounds import GROUNDS, Ground
from chaos.failpoints.kept import ILL, NO_TIME, NOBODY, STRIKES, Strikes, Survey
from chaos.failpoints.strike import FAMILY, Bout, Striker
from chaos.faults import FAULTS
from chaos.faults.fault import Incidents, expects
from chaos.runner.record import Expected, FaultRun, Outcome, RunRecord
from chaos.runner.stage import Stage

CAUSES = tuple(Cause(name, name, lambda _: None) for name in ("calm", "worker", "ps"))
GROUND = Ground("told", "nothing happens", Shape(), CAUSES)
LEADS = {"calm": ["a", "b"], "worker": ["b", "c"], "ps": ["a", "d"]}
OVER = -math.inf


class Told(Bout):
    """Nothing is struck for real. `nobody`: causes, each with a point to which nobody comes by it; `ill`: why
    the job never is well.
    """

    def __init__(self, directory: Path, nobody: Sequence[str], ill: str) -> None:
        self._nobody, self._ill = nobody, ill
        self.record = RunRecord(directory.name, "failpoint", "0", "steps", {}, "job")
        directory.mkdir(parents=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.record.outcome = Outcome.ERROR if self._ill else Outcome.PASSED

    def _add(self, name: str, cause: Cause) -> None:
        any_ = Expected.of(expects(Incidents.ANY))
        self.record.faults.append(FaultRun(name, FAMILY, cause.name, any_, 0, in_force_ms=1.0))

    def survey(self, cause: Cause) -> frozenset[str]:
        self._add(cause.name, cause)
        return frozenset(LEADS[cause.name])

    def strike(self, points: Sequence[str], cause: Cause) -> frozenset[str]:
        found = [point for point in points if f"{cause.name} {point}" not in self._nobody]
        for point in found:
            self._add(point, cause)
        return frozenset(found)


class Pretended(Striker):
    """Its bouts are told, not had."""

    def __init__(
        self, directory: Path, *, nobody: Sequence[str] = (), ill: str = "", at_once: int = 1
    ) -> None:
        super().__init__(Stage.__new__(Stage), GROUND, directory, lambda _: None, at_once=at_once)
        self._nobody, self._is_ill = nobody, ill
        self.bouts: list[str] = []

    def _bout(self, kind: str) -> Bout:
        directory = self._fresh(kind)
        self.bouts.append(directory.name)
        return Told(directory, self._nobody, self._is_ill)


def struck(records: Sequence[RunRecord]) -> list[str]:
    return [fault.name for record in records for fault in record.faults]


def test_every_cause_is_tried_once_in_all_calls(tmp_path: Path) -> None:
    first = Pretended(tmp_path)
    plan, whole = first.survey()
    assert whole
    assert plan == {"a": ["calm", "ps"], "b": ["calm", "worker"], "c": ["worker"], "d": ["ps"]}
    assert struck(first.surveyed) == ["calm", "worker", "ps"]
    later = Pretended(tmp_path)
    assert later.survey() == (plan, True)
    assert not later.bouts


def test_without_time_one_cause_is_tried_and_one_point_struck(tmp_path: Path) -> None:
    """A search without any time left has still proved something."""
    striker = Pretended(tmp_path, nobody=["calm a"])
    plan, whole = striker.survey(OVER)
    assert (set(plan), whole) == ({"a", "b"}, False)
    assert struck(list(striker.strike({**plan, "c": ["calm"]}, OVER))) == ["b"]
    assert striker.missed == {"a": NOBODY, "c": NO_TIME}
    later = Pretended(tmp_path)
    plan, whole = later.survey(OVER)
    assert (set(plan), whole, later.bouts) == ({"a", "b"}, False, [])
    assert later.survey(time.monotonic() + 1000)[1]
    assert struck(later.surveyed) == ["worker", "ps"]
    assert later.bouts == ["survey-002"]


def test_a_job_that_is_never_well_ends_it_and_is_told(tmp_path: Path) -> None:
    striker = Pretended(tmp_path, ill="no tasks")
    assert striker.survey() == ({}, False)
    assert [record.outcome for record in striker.surveyed] == [Outcome.ERROR]
    records = list(striker.strike({"a": ["calm"], "b": ["calm"]}))
    assert [record.outcome for record in records] == [Outcome.ERROR]
    assert striker.missed == {"a": ILL, "b": ILL}


def test_nobody_came_is_no_run(tmp_path: Path) -> None:
    striker = Pretended(tmp_path, nobody=["calm a"])
    assert list(striker.strike({"a": ["calm"]})) == []
    assert striker.missed == {"a": NOBODY}


def test_points_that_have_a_cause_in_common_are_struck_at_once(tmp_path: Path) -> None:
    plan = {"a": ["calm", "ps"], "b": ["worker"], "c": ["calm"], "d": ["ps", "calm"], "e": ["calm"]}
    striker = Pretended(tmp_path, nobody=["calm a", "calm c", "ps d"], at_once=3)
    (record,) = striker.strike(plan)
    done = [(fault.name, fault.target) for fault in record.faults]
    assert done == [("d", "calm"), ("a", "ps"), ("b", "worker"), ("e", "calm")]
    assert striker.missed == {"c": NOBODY}


def test_what_was_struck_stays_struck(tmp_path: Path) -> None:
    sums = Strikes.read(tmp_path)
    sums.miss({"a": NOBODY, "b": NO_TIME})
    sums.take(["a"])
    sums.write(tmp_path)
    again = Strikes.read(tmp_path)
    assert (again.struck, again.missed) == (["a"], {"b": NO_TIME})
    again.miss({"a": NO_TIME, "b": NOBODY})
    again.take(["a", "c"])
    assert (again.struck, again.missed) == (["a", "c"], {"b": NOBODY})
    assert json.loads((tmp_path / STRIKES).read_text())["struck"] == ["a"]


def test_a_survey_is_read_back_in_the_order_of_the_causes(tmp_path: Path) -> None:
    survey = Survey.read(tmp_path, "small")
    survey.take("ps", ["b", "a"])
    survey.take("calm", ["a"])
    again = Survey.read(tmp_path, "small")
    assert again == survey
    assert not Survey.read(tmp_path, "docker").reached, "other causes of the same names"
    assert again.plan(["calm", "ps"]) == {"a": ["calm", "ps"], "b": ["ps"]}


def test_no_two_causes_of_a_ground_have_one_name() -> None:
    for ground in GROUNDS.values():
        named = [*(cause.name for cause in ground.causes), *ground.faults]
        assert len(named) == len(set(named)), ground.name
        assert all(FAULTS[name].fits(ground.shape) for name in ground.faults), ground.name
