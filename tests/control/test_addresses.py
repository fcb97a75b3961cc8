"""Addresses that end with their containers, networks that end at their machines, and what is waited for."""

from __future__ import annotations

from dataclasses import replace

from supervisor.contract.desired import JobPhase
from supervisor.contract.job.spec import ContainerSpec, JobSpec
from supervisor.contract.observed import Exit, ExitReason
from supervisor.control.decide.facts.delays import DELAYED
from supervisor.control.decide.nodes.offers import grouped
from supervisor.control.decide.nodes.placement import Before, place
from tests.control.world import Telling, World, waiting_for
from tests.support.builders import job_spec, offer


def lose(world: World, member: str, *, address: bool) -> None:
    """A task's launcher is lost, and its address with it, or not."""
    end = Exit(ExitReason.LAUNCHER_LOST, None, None, 10, True, address_lost=address)
    world._exited(world.running()[member], end)


def test_a_worker_whose_address_is_gone_restarts_all() -> None:
    world = World().start()
    before = world.switch().generation
    lose(world, "worker.1", address=False)
    world.until(lambda: len(world.running()) == 4)
    assert world.switch().generation == before
    lose(world, "worker.1", address=True)
    world.until(lambda: world.switch().generation == before + 1 and len(world.running()) == 4)
    incident = world.incidents()[world.switch().incident]
    assert incident.rule == "async.worker.in_place, but its address is gone"
    assert world.switch().ledger.program == 0


def test_what_was_told_to_tasks_that_have_not_reported_yet_is_given_to_no_other() -> None:
    """Simulator, seed 7440: a node that had lost its state prepared for the next plan 4 ms after a flip."""
    world = World().start()
    home = world.running()["worker.1"].node
    for agent in world.agents.values():
        agent.starts = False
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    job = world.job()
    told = job.prepared[(world.switch().plan_id, "worker.1")].value.address
    assert not [each for each in job.attempts if each.generation == 2]
    world.register(home, "forgetful").starts = False
    world.until(lambda: world.job().next_plan is not None)
    plan = world.job().next_plan
    assert plan is not None
    avoided = {
        port
        for (plan_id, _), held in world.job().assignments.items()
        if plan_id == plan.value.plan_id and held.value.node == home
        for port in held.value.avoid_ports
    }
    assert int(told.rpartition(":")[2]) in avoided


def test_what_another_job_may_still_connect_to_is_given_to_no_task() -> None:
    """Simulator, seed 3000019: a worker that was cut off found the ps of another job."""
    world = World().start()
    known = {int(report.address.rpartition(":")[2]) for report in world.running().values()}
    world.spec = replace(world.spec, name="letters")
    world.submit()
    world.until(lambda: world.job().assignments)
    for held in world.job().assignments.values():
        assert known <= set(held.value.avoid_ports)


def test_a_network_that_ends_at_its_machine_is_no_way_between_two() -> None:
    world = World()
    for agent in world.agents.values():
        agent.segment = f"bridge-of-{agent.node}"
    said = "its docker network ends at its machine"
    world.until(lambda: said in waiting_for(world.snapshot(), world.job()))
    world.until(lambda: world.switch().phase is JobPhase.FAILED, limit_ms=300_000, step_ms=500)
    assert said in world.switch().reason
    assert world.switch().generation == 0, "nothing was started"


def test_agents_of_one_machine_share_a_network_that_ends_there() -> None:
    world = World()
    for agent in world.agents.values():
        agent.segment = "bridge"
    world.until(lambda: len(world.running()) == 4)


def test_what_a_node_waits_for_is_what_the_job_waits_for() -> None:
    world = Telling()
    for agent in world.agents.values():
        agent.delay = "dockerd does not answer"
    world.until(lambda: "dockerd does not answer" in waiting_for(world.snapshot(), world.job()))
    for _ in range(40):
        world.tick()
    told = [held.value for held in world.snapshot().events if held.value.kind == DELAYED]
    assert sorted(each.fields["node"] for each in told) == sorted(world.agents)
    assert all("dockerd does not answer" in each.text for each in told)
    assert world.switch().ledger.infrastructure == 0
    for agent in world.agents.values():
        agent.delay = ""
    world.until(lambda: len(world.running()) == 4)
    assert waiting_for(world.snapshot(), world.job()) == ""


def networked() -> JobSpec:
    return replace(job_spec(), container=ContainerSpec(network="training"))


def test_tasks_go_where_they_may_join_their_network() -> None:
    bare = offer("n1")
    docker = bare._replace(node="n2", resources=replace(bare.resources, runtime="docker"))
    joined = docker._replace(node="n3", resources=replace(docker.resources, networks=("training",)))
    found = place(networked(), grouped((bare, docker, joined)), Before())
    assert {each.node for each in found.placements.values()} == {"n3"}
    nowhere = place(networked(), grouped((bare, docker)), Before())
    assert "join docker network training" in nowhere.waiting_for
    assert nowhere.asks == ("container", "network")
