"""The base of a generation: the newest good commit; bad and unreadable ones on the way to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recovery.formats.retention import DAY_MS
from supervisor.contract.checkpoint import CommitState
from supervisor.contract.desired import JobPhase
from supervisor.contract.observed import StageFailure
from tests.control.world import World, waiting_for
from tests.support.builders import job_spec


def test_a_commit_between_close_and_flip_makes_the_flip_stale() -> None:
    world = World().start()
    world.end_task("ps.0", signal=9)
    while world.switch().closing is None:
        world.tick()
    flip = world.next_action("flip")
    world.commit(1, 300)
    assert not world.run(flip)


def test_a_base_that_was_brought_in_before_a_boot_is_brought_in_again() -> None:
    """The disk need not have it: a restore does not wait for that (decision 0018)."""
    world = World().start()
    slow, booted = (world.running()[member].node for member in ("worker.0", "worker.1"))
    assert slow != booted
    first = set(world.job().staged)
    world.agents[slow].stages = False
    world.end_task("ps.0", signal=9)

    def staged() -> set[str]:
        return {held.value.node for key, held in world.job().staged.items() if key not in first}

    world.until(lambda: booted in staged())
    agent = world.register(booted, "booted", succeeds=(world.agents[booted].incarnation,), boot_id="boot2")
    agent.stages = False
    world.agents[slow].stages = True
    world.until(lambda: slow in staged())
    for _ in range(5):
        world.tick()
    assert world.switch().generation == 1
    agent.stages = True
    world.until(lambda: world.switch().generation == 2)


def test_a_bad_base_is_quarantined_and_the_one_before_it_restored() -> None:
    world = World().start()
    good = world.commit(1, 100)
    bad = world.commit(1, 200)
    for agent in world.agents.values():
        agent.staging = StageFailure.BAD
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.job().commits[bad].value.state is CommitState.QUARANTINED)
    world.staging(None)
    world.until(lambda: world.switch().generation == 2)
    assert world.switch().base == good
    assert "flipped byte" in world.job().commits[bad].value.reason


def test_an_unreadable_base_is_waited_for_with_the_reason_shown() -> None:
    world = World().start()
    world.commit(1, 100)
    world.staging(StageFailure.UNKNOWN)
    world.end_task("ps.0", signal=9)
    for _ in range(100):
        world.tick()
    assert world.switch().generation == 1
    snap = world.snapshot()
    assert "g1-s100" in waiting_for(snap, snap.jobs["digits"])
    world.staging(None)
    world.until(lambda: world.switch().generation == 2)


def test_none_left_where_some_existed_is_a_stop() -> None:
    world = World().start()
    world.commit(1, 100)
    for agent in world.agents.values():
        agent.staging = StageFailure.BAD
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().phase is JobPhase.FAILED)
    assert "no checkpoint is left" in world.switch().reason


def test_surplus_checkpoints_are_collected_record_first() -> None:
    world = World().start()
    for step in range(10):
        world.commit(1, step * 10)
    for _ in range(40):
        world.tick()
    left = sorted(ref.step for ref in world.job().commits)
    assert left == [50, 60, 70, 80, 90]
    assert all(d.record.state is CommitState.COLLECTING for d in world.deleted)


def test_fallback_after_restores_the_one_before_an_unreadable_base() -> None:
    spec = job_spec()
    world = World(replace(spec, checkpoint=replace(spec.checkpoint, fallback_after_ms=2000))).start()
    older, newest = world.commit(1, 100), world.commit(1, 200)
    world.wall_ms = 9 * DAY_MS
    world.staging(StageFailure.UNKNOWN)
    world.end_task("ps.0", signal=9)
    world.until(lambda: "fallback" in world.done)
    world.staging(None)
    world.until(lambda: world.switch().generation == 2)
    assert world.switch().base == older
    for _ in range(5):
        world.tick()
    held = world.job().commits[newest]
    assert held.value.state is CommitState.COMMITTED, "the grace runs from the fallback, however old it is"


def test_without_fallback_after_an_unreadable_base_stops_the_job_for_its_operator() -> None:
    world = World().start()
    world.commit(1, 100)
    world.staging(StageFailure.UNKNOWN)
    world.end_task("ps.0", signal=9)
    took = world.until(lambda: world.switch().phase is JobPhase.FAILED, limit_ms=700_000, step_ms=1000)
    assert took >= 600_000
    assert "mend the store" in world.switch().reason


@pytest.mark.parametrize("commits", [0, 1])
def test_where_nothing_is_older_a_job_with_fallback_after_waits_like_any_other(commits: int) -> None:
    spec = job_spec()
    world = World(replace(spec, checkpoint=replace(spec.checkpoint, fallback_after_ms=2000))).start()
    for number in range(commits):
        world.commit(1, 100 * (number + 1))
    world.staging(StageFailure.UNKNOWN)
    world.end_task("ps.0", signal=9)
    took = world.until(lambda: world.switch().phase is JobPhase.FAILED, limit_ms=700_000, step_ms=1000)
    assert took >= 600_000
    what = "checkpoint g1-s100" if commits else "its checkpoint directory"
    assert f"{what} could not be read for" in world.switch().reason
