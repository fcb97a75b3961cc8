"""Incidents become durations: each once, by the leader that has closed it."""

from __future__ import annotations

from dataclasses import replace

from supervisor.adapters.metrics.samples import Rows
from supervisor.contract import keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.incident import Outcome
from supervisor.control.decide.plan import put
from supervisor.control.decide.set_aside import Aside
from supervisor.metrics.incidents import INCIDENTS, PHASE, RECOVERY, STEPS_LOST, Recoveries
from tests.control.world import World

KILLED = ("killed", "task")


def told(recoveries: Recoveries, world: World) -> Rows:
    rows = Rows()
    recoveries.fill(world.snapshot(), rows)
    return rows


def recovered(world: World) -> None:
    """One worker more is killed, and trains again."""
    closed = sum(each.outcome is Outcome.RECOVERED for each in world.incidents().values())
    world.end_task("worker.0", signal=9)
    world.until(
        lambda: sum(each.outcome is Outcome.RECOVERED for each in world.incidents().values()) > closed
    )


def count(rows: Rows) -> int:
    return sum(rows.spread(RECOVERY, *KILLED).counts)


def test_an_incident_is_observed_once_with_its_phases() -> None:
    world, recoveries = World().start(), Recoveries()
    told(recoveries, world)
    recovered(world)
    (incident,) = [each for each in world.incidents().values() if each.cause.value == "killed"]
    for _ in range(3):
        rows = told(recoveries, world)
        assert count(rows) == 1
        assert rows.spread(RECOVERY, *KILLED).total == incident.total_ms / 1000
        for phase, lasted_ms in incident.phases_ms.items():
            assert rows.spread(PHASE, phase, *KILLED).total == lasted_ms / 1000
        assert rows.get(INCIDENTS, *KILLED, "recovered") == 1
    recovered(world)
    assert count(told(recoveries, world)) == 2


def test_an_open_incident_has_a_series_at_zero() -> None:
    world, recoveries = World().start(), Recoveries()
    world.end_task("worker.0", signal=9)
    world.until(lambda: any(each.outcome is Outcome.OPEN for each in world.incidents().values()))
    rows = told(recoveries, world)
    assert rows.spreads[RECOVERY][KILLED].counts == [0] * len(rows.spreads[RECOVERY][KILLED].counts)
    assert rows.values[INCIDENTS][(*KILLED, "recovered")] == 0


def test_a_new_leader_tells_of_those_that_it_has_closed_alone() -> None:
    world, recoveries = World().start(), Recoveries()
    recovered(world)
    assert count(told(recoveries, world)) == 1
    world.new_leader()
    world.until(lambda: bool(world.running()))
    assert count(told(recoveries, world)) == 0
    recovered(world)
    assert count(told(recoveries, world)) == 1


def test_a_leader_tells_also_of_those_that_it_closed_before_anybody_asked() -> None:
    world = World().start()
    recovered(world)
    assert count(told(Recoveries(), world)) == 1


def test_what_is_forgotten_stays_counted_and_is_not_counted_again() -> None:
    world, recoveries = World().start(), Recoveries()
    recovered(world)
    told(recoveries, world)
    (held,) = [each for each in world.job().incidents.values() if each.value.cause.value == "killed"]
    world.write(Delete(held.key))
    assert count(told(recoveries, world)) == 1
    # The same id again is another incident.
    world.write(put(held.key, held.value))
    assert count(told(recoveries, world)) == 2


def test_a_job_that_was_set_aside_is_not_counted_again() -> None:
    world, recoveries = World().start(), Recoveries()
    recovered(world)
    before = told(recoveries, world)
    snap = world.snapshot()
    left = replace(snap, jobs={}, aside={"digits": Aside("digits", "its record cannot be read")})
    recoveries.fill(left, Rows())
    after = told(recoveries, world)
    assert count(after) == count(before) == 1
    assert after.get(STEPS_LOST, "digits") == before.get(STEPS_LOST, "digits")


def test_lost_steps_are_summed_and_go_with_their_job() -> None:
    world, recoveries = World().start(), Recoveries()
    recovered(world)
    (held,) = [each for each in world.job().incidents.values() if each.value.cause.value == "killed"]
    world.write(put(held.key, replace(held.value, lost_steps=40)))
    assert told(recoveries, world).get(STEPS_LOST, "digits") == 40
    world.write(Delete(keys.job_record("digits")))
    assert STEPS_LOST not in told(recoveries, world).values
