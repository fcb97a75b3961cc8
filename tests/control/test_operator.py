"""Requests of operators for a live job: a restart from a checkpoint, pins, a stop with time to save."""

from __future__ import annotations

from dataclasses import replace

from recovery.formats.retention import DAY_MS, RetentionPolicy, collectable
from supervisor.contract import keys
from supervisor.contract.checkpoint import CheckpointRef, CommitState
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Outcome
from supervisor.contract.job.spec import Wanted
from supervisor.contract.observed import ExitReason, StageFailure
from supervisor.contract.timing import FAST
from supervisor.control.decide.plan import put
from tests.control.world import World


def saved(*steps: int) -> tuple[World, list[CheckpointRef]]:
    """A running job that has committed these steps."""
    world = World().start()
    return world, [world.commit(1, step) for step in steps]


def test_a_restart_from_an_older_checkpoint_leaves_the_newer_ones_off_the_lineage() -> None:
    world, (old, _, newest) = saved(100, 200, 300)
    world.intend(serial=1, from_ref=old)
    world.until(lambda: world.switch().generation == 2)
    switch = world.switch()
    assert switch.base == old
    assert switch.restart_serial == 1
    world.until(lambda: world.incidents()["op-1"].outcome is Outcome.RECOVERED)
    assert world.incidents()["op-1"].rule == "operator.from"
    records = [held.value for held in world.job().commits.values()]
    assert not collectable(records, switch, (), RetentionPolicy(keep=5), lambda _: DAY_MS)
    going = collectable(records, switch, (), RetentionPolicy(5), lambda _: 4 * DAY_MS)
    assert newest in {each.ref for each in going}
    late = RetentionPolicy(5, branched_age_ms=DAY_MS)
    assert not collectable(records, switch, (), late, lambda _: 4 * DAY_MS), "the grace runs from the restart"
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 3)
    assert world.switch().base == old, "what fell off the lineage is not restored by itself"


def test_a_checkpoint_off_the_lineage_can_be_gone_back_to() -> None:
    world, (old, newest) = saved(100, 200)
    world.intend(serial=1, from_ref=old)
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 4)
    world.commit(2, 120, parent=old)
    world.intend(serial=2, from_ref=newest)
    world.until(lambda: world.switch().generation == 3)
    assert world.switch().base == newest


def test_a_later_wish_for_another_checkpoint_changes_the_base_of_a_plan_that_is_closed() -> None:
    world, (old, newer, _) = saved(100, 200, 300)
    world.intend(serial=1, from_ref=old)
    while world.switch().closing is None:
        world.tick()
    world.intend(serial=2, from_ref=newer)
    world.until(lambda: world.switch().generation == 2)
    assert (world.switch().base, world.switch().restart_serial) == (newer, 2)


def test_a_later_plain_restart_takes_the_newest_also_when_the_switch_is_closed_for_another() -> None:
    world, (old, _, newest) = saved(100, 200, 300)
    world.intend(serial=1, from_ref=old)
    while world.switch().closing is None:
        world.tick()
    world.intend(serial=2)
    world.until(lambda: world.switch().generation == 2)
    assert (world.switch().base, world.switch().restart_serial) == (newest, 2)


def test_a_restart_from_a_bad_checkpoint_is_declined_and_the_job_goes_on() -> None:
    world, (old, newest) = saved(100, 200)
    for agent in world.agents.values():
        agent.staging = StageFailure.BAD
    before = world.running()
    world.intend(serial=1, from_ref=old)
    world.until(lambda: world.switch().restart_serial == 1)
    for _ in range(10):
        world.tick()
    assert world.switch().generation == 1
    assert world.switch().closing is None
    assert world.running() == before
    assert world.job().commits[old].value.state is CommitState.QUARANTINED
    assert world.job().commits[newest].value.state is CommitState.COMMITTED
    assert world.incidents()["op-1"].outcome is Outcome.FAILED
    assert not world.job().next_plan


def test_an_ended_job_is_started_from_the_checkpoint_that_was_asked_for() -> None:
    world, (old, _) = saved(100, 200)
    ended = replace(world.switch(), phase=JobPhase.FAILED, reason="NaN")
    world.write(put(keys.switch("digits"), ended))
    world.tick()
    world.intend(serial=1, from_ref=old)
    world.until(lambda: world.switch().phase is JobPhase.RUNNING)
    assert world.switch().base == old


def test_a_streak_of_faults_ends_with_a_restart_from_an_older_checkpoint() -> None:
    world, (old, newest) = saved(100, 200)
    world.end_task("worker.0", code=1, reason=ExitReason.EXIT)
    world.until(lambda: world.switch().ledger.streak == 1 and "worker.0" in world.running())
    assert world.switch().ledger.progress == newest
    world.intend(serial=1, from_ref=old)
    world.until(lambda: world.switch().generation == 2)
    assert (world.switch().ledger.streak, world.switch().ledger.progress) == (0, old)


def test_a_pinned_checkpoint_is_never_collected() -> None:
    world, refs = saved(*range(100, 1000, 100))
    key = keys.commit("digits", refs[0])
    world.write(put(key, replace(world.job().commits[refs[0]].value, pinned=True)))
    for _ in range(20):
        world.tick()
    assert refs[0] in world.job().commits
    assert refs[1] not in world.job().commits


def saving() -> World:
    """A running job that was asked to save and stop."""
    world = World().start()
    world.intend(Wanted.STOP, save=True)
    world.until(lambda: world.switch().phase is JobPhase.STOPPING)
    return world


def test_a_stop_with_time_to_save_keeps_the_servers_until_training_has_ended() -> None:
    world = saving()
    grace_ms = world.spec.limits.save_grace_ms
    assert world.switch().save_grace_ms == grace_ms
    for member in ("chief.0", "worker.0"):
        world.end_task(member, signal=15)
    for _ in range(10):
        world.tick()
    assert set(world.running()) == {"ps.0", "worker.1"}, "the last worker still has time"
    world.end_task("worker.1", signal=15)
    world.until(lambda: world.switch().save_grace_ms == 0)
    took = world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    assert took < 1_000
    assert not world.running()


def test_what_was_saved_on_the_way_out_is_waited_for_after_the_servers_are_dead() -> None:
    world = saving()
    chief = world.running()["chief.0"]
    for agent in world.agents.values():
        agent.obedient = agent.node != chief.node
    for member in ("chief.0", "worker.0", "worker.1"):
        world.end_task(member, signal=15)
    for agent in world.agents.values():
        if (
            agent.node == chief.node
            and "ps.0" in world.running()
            and world.running()["ps.0"].node == chief.node
        ):
            world.end_task("ps.0", signal=9)
    for _ in range(40):
        world.tick()
    assert world.switch().phase is JobPhase.STOPPING, "the saver's agent has not said that it is drained"
    for agent in world.agents.values():
        agent.obedient = True
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    assert "warning" not in world.switch().reason


def test_a_program_that_does_not_end_is_killed_when_its_time_to_save_is_over() -> None:
    world = saving()
    took = world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    grace_ms = world.spec.limits.save_grace_ms
    assert grace_ms < took < grace_ms + FAST.suspect_ms + 1_000
    assert "node_cordoned" not in world.done, "no agent disobeys while its tasks have time"


def test_an_operator_may_stop_waiting_for_a_save() -> None:
    world = saving()
    world.intend(Wanted.STOP)
    took = world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    assert took < 1_000


def test_a_job_that_does_not_run_yet_has_nothing_to_save() -> None:
    world = World()
    world.intend(Wanted.STOP, save=True)
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    assert world.now_ms < 1_001_000


def test_the_checkpoint_of_a_restart_that_is_prepared_is_not_collected() -> None:
    world, refs = saved(100, 200)
    for step in range(300, 900, 100):
        world.commit(1, step)
    world.intend(serial=1, from_ref=refs[0])
    for _ in range(20):
        world.decide()
    assert world.job().commits[refs[0]].value.state is CommitState.COMMITTED
    assert refs[1] not in world.job().commits
    world.until(lambda: world.switch().generation == 2)
    assert world.switch().base == refs[0]


def test_a_wish_for_a_task_on_a_lost_node_does_not_hold_up_another_tasks_restart() -> None:
    world = World(nodes=5).start()
    running = world.running()
    assert running["worker.0"].node != running["worker.1"].node
    world.agents[running["worker.0"].node].acting = False
    world.until(lambda: "node_suspected" in world.done)
    world.intend(serial=1, member="worker.0")
    world.end_task("worker.1", signal=9)
    world.until(lambda: world.switch().generation == 2)
    assert world.switch().restart_serial == 1, "the wish is granted by what restarts all"
