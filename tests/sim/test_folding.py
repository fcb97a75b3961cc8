"""A view makes again what changed alone: each of its snapshots is that of one that makes all again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from chaos.sim.run import Result, run_deleted, run_seed
from supervisor.contract import keys
from supervisor.contract.desired import LeaderToken
from supervisor.contract.promise import Word
from supervisor.control.decide import view
from supervisor.control.decide.snapshot import Snapshot
from supervisor.control.loop import daemon


def fresh(known: view.View) -> view.View:
    """A view of the same records and beats that has made nothing of them yet."""
    again = view.View(known._timing)
    for family in keys.FAMILIES:
        for held in known._held[family.prefix].values():
            again._keep(family, held)
    for key, why in known.unreadable.items():
        again._drop(keys.family(key), key)
        again.unreadable[key] = why
    again._beats = known._beats
    again.revision = known.revision
    return again


@pytest.mark.parametrize("run", [run_seed, run_deleted])
def test_a_snapshot_does_not_depend_on_which_records_came_when(
    run: Callable[[int], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = 0

    class Compared(view.View):
        def snapshot(
            self,
            now_ms: int,
            wall_ms: int,
            since_ms: int,
            token: LeaderToken,
            etcd_since_ms: int = 0,
            word: Word | None = None,
        ) -> Snapshot:
            nonlocal taken
            taken += 1
            asked = (now_ms, wall_ms, since_ms, token, etcd_since_ms, word)
            found = super().snapshot(*asked)
            if taken % 7 == 0:
                # A fresh view has read no record of a pause.
                assert replace(found, read_ms=0) == replace(fresh(self).snapshot(*asked), read_ms=0)
            return found

    monkeypatch.setattr(daemon, "View", Compared)
    for seed in (1, 2):
        result = run(seed)
        assert result.ok, (*result.violations, result.error)
    assert taken > 500
