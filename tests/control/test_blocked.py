"""A node whose agent can start nothing new, say because its disk is full: what runs there goes on."""

from __future__ import annotations

from supervisor.contract import keys
from supervisor.contract.desired import Cordon, JobPhase
from supervisor.contract.incident import Cause, Incident
from supervisor.contract.job.spec import Scope
from supervisor.contract.observed import Exit, ExitReason
from supervisor.control.decide.plan import put
from tests.control.world import World, waiting_for

FULL = "no space left on device"


def blocked(member: str, nodes: int = 4) -> tuple[World, str]:
    """A job that trains, and the node of one of its tasks, which can start nothing new now."""
    world = World(nodes=nodes).start()
    node = world.running()[member].node
    world.agents[node].blocked = FULL
    world.tick()
    return world, node


def kill(world: World, member: str) -> None:
    world._exited(world.running()[member], Exit(ExitReason.EXIT, None, 9, 10, confirmed_dead=True))


def failures(world: World) -> list[Incident]:
    return [each for each in world.incidents().values() if each.cause is not Cause.SUBMITTED]


def test_what_runs_there_goes_on() -> None:
    world, _ = blocked("ps.0")
    for _ in range(50):
        world.tick()
    assert world.switch().generation == 1
    assert not failures(world)


def test_the_next_generation_goes_elsewhere_and_nothing_is_charged() -> None:
    world, node = blocked("ps.0")
    kill(world, "ps.0")
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == len(world.spec.tasks()))
    assert node not in {each.node for each in world.running().values()}
    assert world.switch().ledger.program == 0


def test_a_plan_for_it_is_given_up_without_a_charge_although_it_was_refused() -> None:
    world = World(nodes=4).start()
    node = world.running()["ps.0"].node
    world.agents[node].refuses = FULL
    kill(world, "ps.0")
    world.until(lambda: world.job().next_plan is not None)
    world.agents[node].blocked = FULL
    world.until(lambda: world.switch().generation == 2)
    assert world.done.count("plan_abandoned") == 1
    assert node not in {each.node for each in world.running().values()}
    assert world.switch().ledger.program == 0


def test_a_task_that_would_be_restarted_in_place_there_goes_elsewhere_with_all_others() -> None:
    world, node = blocked("worker.0")
    kill(world, "worker.0")
    world.until(lambda: world.switch().generation == 2)
    (incident,) = failures(world)
    assert (incident.scope, incident.cause) == (Scope.ALL, Cause.KILLED)
    assert "nothing new can start on its node" in incident.rule
    world.until(lambda: len(world.running()) == len(world.spec.tasks()))
    assert node not in {each.node for each in world.running().values()}


def test_a_wish_for_a_task_there_waits_and_holds_up_no_other_task() -> None:
    world, node = blocked("worker.0", nodes=5)
    other = world.running()["worker.1"]
    assert other.node != node
    world.intend(serial=1, member="worker.0")
    before = world.running()["worker.0"]
    kill(world, "worker.1")
    world.until(lambda: "worker.1" in world.running())
    assert world.running()["worker.0"] == before
    assert (world.switch().generation, world.switch().restart_serial) == (1, 0)
    world.agents[node].blocked = ""
    world.until(lambda: world.switch().restart_serial == 1)
    world.until(lambda: "worker.0" in world.running() and world.running()["worker.0"].number == 2)
    assert world.switch().generation == 1


def test_a_wish_that_waits_there_does_not_keep_the_node_from_being_drained() -> None:
    world, node = blocked("worker.0", nodes=5)
    world.intend(serial=1, member="worker.0")
    world.tick()
    world.write(put(keys.cordon(node), Cordon(node, "a new disk", drain=True)))
    world.until(lambda: world.switch().generation == 2)
    assert world.switch().restart_serial == 1, "the wish is granted by what restarts all"
    world.until(lambda: len(world.running()) == len(world.spec.tasks()))
    assert node not in {each.node for each in world.running().values()}


def test_where_no_other_is_left_the_job_waits_and_says_for_what() -> None:
    world, _ = blocked("ps.0", nodes=1)
    kill(world, "ps.0")
    world.until(lambda: FULL in waiting_for(world.snapshot(), world.job()))
    for _ in range(200):
        world.tick()
    assert world.switch().phase is JobPhase.RUNNING
    assert world.switch().generation == 1
    world.agents["n0"].blocked = ""
    world.until(lambda: world.switch().generation == 2)
    assert world.switch().ledger.program == 0
