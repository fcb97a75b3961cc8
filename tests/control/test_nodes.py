"""Nodes: cordons that pass, outages that are nobody's disobedience, and training on without a lost one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.contract import keys
from supervisor.contract.desired import Cordon, JobPhase
from supervisor.contract.incident import Event
from supervisor.contract.job.spec import JobSpec, RestartPolicy, Strategy, Wanted
from supervisor.contract.timing import FAST
from supervisor.control.decide.plan import Action, put
from supervisor.control.decide.reconcile import reconcile
from tests.control.world import World, waiting_for
from tests.support.builders import job_spec, resources, role


def test_a_quarantined_node_is_tried_again_after_its_cooldown_and_a_new_leader_waits_again() -> None:
    world = World().start()
    world.write(put(keys.cordon("n1"), Cordon("n1", "OOM three times", cooldown_ms=5_000)))
    for _ in range(80):
        world.tick()
    assert world.snapshot().nodes["n1"].cordon is not None
    world.new_leader()
    for _ in range(80):
        world.tick()
    assert world.snapshot().nodes["n1"].cordon is not None, "4 s before and 4 s after do not make 5"
    world.until(lambda: world.snapshot().nodes["n1"].cordon is None, limit_ms=2_000)
    assert "node_uncordoned" in world.done


def test_a_cordon_without_a_cooldown_stays() -> None:
    world = World().start()
    world.write(put(keys.cordon("n1"), Cordon("n1", "drained")))
    for _ in range(40):
        world.tick(1_000)
    assert world.snapshot().nodes["n1"].cordon is not None


def kinds(world: World, etcd_since_ms: int) -> set[str]:
    snap = replace(world.snapshot(), etcd_since_ms=etcd_since_ms)
    return {each.kind for each in reconcile(snap) if isinstance(each, Action)}


def test_an_outage_of_etcd_is_no_disobedience() -> None:
    world = World().start()
    for agent in world.agents.values():
        agent.obedient = False
    world.write(put(keys.switch("digits"), replace(world.switch(), phase=JobPhase.STOPPING)))
    world.tick(leader=False)
    assert "node_cordoned" not in kinds(world, 0)
    for _ in range(5):
        world.tick(2_000, leader=False)
    assert "node_cordoned" not in kinds(world, world.now_ms - FAST.d_ms)
    assert "node_cordoned" in kinds(world, 0), "it would have been, had etcd been there all the time"


def test_who_was_away_when_its_task_was_to_end_has_time_to_obey_once_it_is_back() -> None:
    world = World().start()
    node = world.running()["worker.0"].node
    agent = world.agents[node]
    agent.acting = agent.beating = agent.obedient = False
    world.intend(wanted=Wanted.STOP)
    for _ in range(30):
        world.tick(1_000)
    world.appeal(node, agent.incarnation, successor="again")
    world.until(lambda: "node_cleared" in world.done)
    agent.acting = agent.beating = True
    back_ms = world.now_ms
    world.until(lambda: "node_cordoned" in world.done)
    assert world.now_ms - back_ms >= FAST.d_ms


def spread(limit_ms: int, strategy: Strategy = Strategy.ASYNC) -> World:
    """One task to a node, one node spare."""
    one = resources(cpus=4)
    roles = (role("chief", 1, one), role("ps", 1, one), role("worker", 2, one))
    spec: JobSpec = job_spec(roles, strategy, restart=RestartPolicy(degraded_limit_ms=limit_ms))
    world = World(spec, nodes=5).start()
    world.commit(1, 100)
    return world


def lose(world: World, member: str) -> int:
    """Power off its node; returns when."""
    world.agents[world.running()[member].node].acting = False
    world.agents[world.running()[member].node].beating = False
    return world.now_ms


READY_MS = FAST.suspect_ms + FAST.d_ms + 500


def test_the_others_train_on_until_the_next_commit() -> None:
    world = spread(60_000)
    began = lose(world, "worker.1")
    for _ in range(200):
        world.tick()
    assert world.switch().generation == 1
    assert "next commit" in waiting_for(world.snapshot(), world.job())
    assert world.now_ms - began > READY_MS
    newest = world.commit(1, 900)
    assert world.until(lambda: world.switch().generation == 2) < 500
    assert world.switch().base == newest


def test_the_others_train_on_for_no_longer_than_the_job_allows() -> None:
    world = spread(9_000)
    began = lose(world, "worker.1")
    world.commit(1, 200)
    world.until(lambda: world.switch().generation == 2)
    assert 9_000 <= world.now_ms - began - FAST.suspect_ms < 10_000, "that commit came before it was ready"


def test_without_a_limit_the_flip_comes_as_soon_as_it_may() -> None:
    world = spread(0)
    began = lose(world, "worker.1")
    world.until(lambda: world.switch().generation == 2)
    assert world.now_ms - began < READY_MS


def test_nobody_trains_on_without_a_parameter_server_or_in_step_with_a_lost_worker() -> None:
    for world, member in ((spread(60_000), "ps.0"), (spread(60_000, Strategy.SYNC), "worker.1")):
        began = lose(world, member)
        world.until(lambda world=world: world.switch().generation == 2)
        assert world.now_ms - began < READY_MS


def test_training_on_ends_when_another_task_is_lost_too() -> None:
    world = spread(60_000)
    lose(world, "worker.1")
    for _ in range(150):
        world.tick()
    assert world.switch().generation == 1
    world.end_task("ps.0", signal=9)
    assert world.until(lambda: world.switch().generation == 2) < 1_000


@pytest.mark.parametrize(("boot_id", "lost"), [("boot", "agent"), ("another", "machine")])
def test_a_node_that_comes_back_says_by_its_boot_what_was_lost(boot_id: str, lost: str) -> None:
    world = World().start()
    node = world.running()["worker.0"].node
    lose(world, "worker.0")
    world.until(lambda: world.switch().generation == 2)
    assert "node_back" not in world.done
    world.register(node, "i9", boot_id=boot_id)
    (action,) = [each for each in reconcile(world.snapshot()) if isinstance(each, Action) and not each.ops]
    assert (action.kind, action.fields["lost"]) == ("node_back", lost)
    world.write(put(keys.event(1), Event(0, action.kind, "", action.text, action.fields)))
    assert not [each for each in reconcile(world.snapshot()) if isinstance(each, Action) and not each.ops]
