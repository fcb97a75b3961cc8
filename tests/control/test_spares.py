"""Launchers in reserve: the nodes that are told to keep one, and placement onto those that have one."""

from __future__ import annotations

from dataclasses import replace

from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.desired import Cordon, JobPhase, Spare
from supervisor.contract.job.spec import JobSpec, Wanted
from supervisor.contract.observed import Incarnation
from supervisor.control.decide.jobs.prepare import find_places
from supervisor.control.decide.jobs.spares import CALM_MS, LEAST_NODES, NODES_FOR_EACH_TASK
from supervisor.control.decide.plan import put
from tests.control.world import World
from tests.support.builders import job_spec, resources, role


def preloading(spec: JobSpec | None = None) -> JobSpec:
    return replace(spec or job_spec(), preload=("tensorflow",))


def kept(world: World) -> dict[str, Spare]:
    return {node: held.value for node, held in world.job().spares.items()}


def calm(world: World) -> World:
    for _ in range(CALM_MS // 50 + 2):
        world.tick()
    return world


def test_every_node_that_could_take_a_task_is_told_once_nothing_starts() -> None:
    world = World(preloading(), nodes=5).start()
    assert kept(world) == {}, "importing would take the processors of what starts"
    calm(world)
    assert set(kept(world)) == {f"n{number}" for number in range(5)}
    (spare, *_) = kept(world).values()
    assert (spare.preload, spare.program, spare.workdir) == (("tensorflow",), "python", "/work")
    done = len(world.done)
    calm(world)
    assert len(world.done) == done, "a healthy job writes nothing"


def test_on_a_large_cluster_some_nodes_are_told_and_the_next_when_one_of_them_is_lost() -> None:
    world = calm(World(preloading(), nodes=3 * LEAST_NODES).start())
    first = set(kept(world))
    assert len(first) == max(LEAST_NODES, NODES_FOR_EACH_TASK * len(world.spec.tasks()))
    lost = min(first - {report.node for report in world.running().values()})
    world.agents[lost].beating = world.agents[lost].acting = False
    world.until(lambda: lost not in kept(world), limit_ms=10_000)
    calm(world)
    assert len(kept(world)) == len(first)
    assert len(first & set(kept(world))) == len(first) - 1


def test_a_node_whose_agent_keeps_no_launchers_in_reserve_is_told_nothing() -> None:
    world = World(preloading(), nodes=4).start()
    (held,) = world.store.read(keys.node("n0"))
    life = codec.decode(Incarnation, held.value)
    world.write(put(held.key, replace(life, resources=replace(life.resources, spares=False))))
    assert set(kept(calm(world))) == {"n1", "n2", "n3"}


def test_a_launcher_in_reserve_fits_the_tasks_of_a_job_with_placeholders() -> None:
    asked = {"A": "{{x}}", "HOSTS": "{ps_hosts}"}
    world = calm(World(replace(preloading(), env=asked, templated=True), nodes=5).start())
    (spare, *_) = kept(world).values()
    (order, *_) = (held.value for held in world.job().assignments.values())
    assert (spare.templated, spare.env) == (order.templated, order.env) == (True, asked)


def test_a_job_that_preloads_nothing_needs_none() -> None:
    assert kept(calm(World(nodes=5).start())) == {}


def test_a_node_without_room_for_any_task_is_told_nothing() -> None:
    """A node of the tests has 4 processors; the job's own tasks take no room from what may move there."""
    labelled = resources(labels={"gpu": "h200"})
    spec = preloading(job_spec((role("chief", 1, resources(cpus=4)), role("worker", 1, resources(cpus=4)))))
    world = calm(World(spec, nodes=3).start())
    assert set(kept(world)) == {"n0", "n1", "n2"}
    roles = tuple(replace(each, resources=labelled) for each in spec.roles)
    record = replace(world.job().record.value, spec=replace(spec, roles=roles))
    world.write(put(keys.job_record("digits"), record))
    world.tick()
    assert kept(world) == {}


def test_it_imports_in_what_most_of_the_tasks_share() -> None:
    roles = (replace(role("ps", 1), env={"KIND": "ps"}), replace(role("worker", 2), env={"KIND": "worker"}))
    world = calm(World(preloading(job_spec(roles)), nodes=4).start())
    assert {each.env["KIND"] for each in kept(world).values()} == {"worker"}


def test_a_node_that_nothing_can_come_to_any_more_is_told_so() -> None:
    world = calm(World(preloading(), nodes=6).start())
    assert not {"n4", "n5"} & {report.node for report in world.running().values()}
    world.write(put(keys.cordon("n4"), Cordon("n4", "drained")))
    world.write(Delete(keys.node("n5")))
    world.agents["n5"].acting = False
    world.tick()
    world.tick()
    assert set(kept(world)) == {"n0", "n1", "n2", "n3", "n4"}
    assert [node for node, spare in kept(world).items() if not spare.wanted] == ["n4"]
    done = len(world.done)
    calm(world)
    assert len(world.done) == done, "once"
    world.write(Delete(keys.cordon("n4")))
    calm(world)
    assert all(spare.wanted for spare in kept(world).values())
    assert "n4" in kept(world)


def test_what_a_cordoned_node_was_told_goes_with_the_cordon_and_with_the_job() -> None:
    world = World(nodes=4).start()
    world.write(put(keys.cordon("n3"), Cordon("n3", "drained")))
    world.tick()
    assert set(kept(world)) == {"n3"}
    world.write(Delete(keys.cordon("n3")))
    world.tick()
    assert kept(world) == {}
    world.write(put(keys.cordon("n3"), Cordon("n3", "drained")))
    world.tick()
    assert set(kept(world)) == {"n3"}
    world.intend(Wanted.STOP)
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    world.until(lambda: kept(world) == {})


def test_a_short_silence_takes_nothing_away_and_a_node_that_comes_back_is_told_again() -> None:
    world = calm(World(preloading(), nodes=5).start())
    world.agents["n4"].beating = False
    for _ in range(6):
        world.tick(100)
    assert "n4" in kept(world)
    world.until(lambda: "n4" not in kept(world), limit_ms=10_000)
    world.register("n4", "i9")
    world.until(lambda: "n4" in kept(world), limit_ms=10_000)


def test_none_outlives_its_job_and_a_new_life_of_it_gets_its_own() -> None:
    world = calm(World(preloading(), nodes=4).start())
    world.intend(Wanted.STOP)
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    world.tick()
    assert kept(world) == {}
    world.intend(serial=1)
    world.until(lambda: world.switch().phase is JobPhase.RUNNING and len(world.running()) == 4)
    calm(world)
    assert len(kept(world)) == 4


def test_a_changed_recipe_replaces_the_old_one() -> None:
    world = calm(World(preloading(), nodes=4).start())
    record = world.job().record.value
    world.write(put(keys.job_record("digits"), replace(record, spec=replace(record.spec, env={"A": "1"}))))
    world.tick()
    assert {each.env["A"] for each in kept(world).values()} == {"1"}


def test_lost_tasks_go_to_the_nodes_that_have_a_warm_launcher_each() -> None:
    """Two tasks are lost; the idle node has one spare, and so has one of the others."""
    world = World(preloading(job_spec({"chief": 1, "ps": 1, "worker": 2})), nodes=3).start()
    homes = {member: report.node for member, report in world.running().items()}
    lost = next(node for node in homes.values() if list(homes.values()).count(node) == 2)
    world.register("n9", "i9")
    world.tick()
    other = next(node for node in homes.values() if node != lost)
    for node in ("n9", other):
        heard = world.view._beats[node][world.agents[node].incarnation]
        world.view.beat(node, world.agents[node].incarnation, replace(heard, spares=("digits",)))
    world.write(put(keys.cordon(lost), Cordon(lost, "gone")))
    places = find_places(world.snapshot(), world.job()).placements
    moved = sorted(places[member].node for member, node in homes.items() if node == lost)
    assert moved == sorted(["n9", other])
