"""A leader that leaves out what rests decides as one that looks at everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest

from chaos.sim.run import Result, run_booked, run_deleted, run_powered, run_seed, run_served
from supervisor.control.decide.assess.assess import Assessments
from supervisor.control.decide.plan import Decision
from supervisor.control.decide.reconcile import reconcile
from supervisor.control.decide.rest.rests import Rests, hurried
from supervisor.control.decide.snapshot import Snapshot
from supervisor.control.loop import daemon


class Compared:
    """A leader's looks, each of which is taken again without memory of the ones before."""

    looks: ClassVar[int] = 0
    visits: ClassVar[int] = 0
    there: ClassVar[int] = 0

    @classmethod
    def look(cls, snap: Snapshot, assessments: Assessments, rests: Rests) -> tuple[Decision, ...]:
        found = reconcile(snap, assessments, rests)
        whole = reconcile(snap)
        assert hurried(found) == hurried(whole)
        assert not rests.wrong
        cls.looks += 1
        cls.there += len(snap.jobs)
        cls.visits += len(rests.jobs())
        return found


@pytest.mark.parametrize("run", [run_seed, run_deleted, run_booked, run_powered, run_served])
def test_a_look_decides_what_it_would_without_memory(
    run: Callable[[int], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    Compared.looks = Compared.visits = Compared.there = 0
    monkeypatch.setattr(daemon, "reconcile", Compared.look)
    for seed in (1, 2):
        result = run(seed)
        assert result.ok, (*result.violations, result.error)
    assert Compared.looks > 500
    assert Compared.visits < Compared.there, "some rest"
