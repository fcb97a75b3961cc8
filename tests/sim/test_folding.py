"""A supervisor's view makes again what changed alone: each snapshot is that of a view that makes all again."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.sim.run import run_deleted, run_seed
from supervisor.contract import keys
from supervisor.control.decide import view
from supervisor.control.decide.snapshot import Snapshot


def fresh(known: view.View) -> view.View:
    """A view of the same records and beats that has made nothing of them yet."""
    again = view.View()
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
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, make = [0], view.View.snapshot

    def compared(self: view.View, *args: Any, **kwargs: Any) -> Snapshot:
        taken[0] += 1
        found = make(self, *args, **kwargs)
        if taken[0] % 7 == 0:
            assert found == make(fresh(self), *args, **kwargs)
        return found

    monkeypatch.setattr(view.View, "snapshot", compared)
    for seed in (1, 2):
        result = run(seed)
        assert result.ok, (*result.violations, result.error)
    assert taken[0] > 500
