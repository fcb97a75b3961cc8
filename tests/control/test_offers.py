"""Nodes in groups: the places of tasks are those that a look at every node for each task would find."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from supervisor.contract import keys
from supervisor.contract.desired import Cordon, JobPhase, JobSwitch, Placement, Plan
from supervisor.contract.job.spec import JobIntent, JobRecord, Resources
from supervisor.control.decide.facts.claims import Asking, with_plan
from supervisor.control.decide.nodes import offers as module
from supervisor.control.decide.nodes.offers import Offers, grouped, offers
from supervisor.control.decide.nodes.placement import Before, place
from supervisor.control.decide.plan import put
from tests.control.world import World
from tests.support.builders import gpu, job_spec, offer, resources, role
from tests.support.placing import place_by_the_book, random_before, random_job, random_offers

SEEDS = range(1500)


def alone(found: Offers) -> Offers:
    """The same offers, each in a group of its own."""
    return replace(found, groups={name: (name,) for name in sorted(found.by_node)})


def test_places_are_those_of_a_look_at_every_node_for_each_task() -> None:
    waiting = 0
    for seed in SEEDS:
        random = Random(seed)
        nodes, spec = random_offers(random), random_job(random)
        before, found = random_before(random, spec, nodes), grouped(nodes)
        result = place(spec, found, before)
        expected = place_by_the_book(spec, nodes, before)
        waiting += expected is None
        assert bool(result.waiting_for) == (expected is None), seed
        assert result == place(spec, alone(found), before), seed
        if expected is not None:
            placed = {name: (each.node, result.gpus[name]) for name, each in result.placements.items()}
            assert list(placed.items()) == list(expected.items()), seed
    assert len(SEEDS) // 5 < waiting < len(SEEDS) - len(SEEDS) // 5


def test_offers_that_change_are_those_that_were_different_from_the_start() -> None:
    for seed in SEEDS[:300]:
        random = Random(seed)
        nodes = random_offers(random)
        changed = random.sample(nodes, random.randint(0, len(nodes)))
        others = [each._replace(used_cpus=0.5, tasks=each.tasks + 1) for each in changed]
        kept = [each for each in nodes if each not in changed]
        assert grouped(nodes).changed(others) == grouped([*kept, *others]), seed


def test_nodes_of_which_only_the_name_differs_are_a_group() -> None:
    nodes = [*(offer(f"n{each}", gpus=2) for each in range(3)), offer("busy", gpus=2, tasks=1)]
    assert sorted(map(list, grouped(nodes).groups.values())) == [["busy"], ["n0", "n1", "n2"]]


def test_a_gpu_that_two_nodes_report_takes_room_on_both_and_on_no_third() -> None:
    nodes = [offer(f"n{each}", gpus=1) for each in range(3)]
    nodes[1] = nodes[1]._replace(gpus=nodes[0].gpus)
    spec = job_spec(tuple(role(name, 1, resources(gpus=1)) for name in ("chief", "worker")))
    result = place(spec, grouped(nodes), Before())
    assert [each.node for each in result.placements.values()] == ["n0", "n2"]


def test_a_job_is_offered_what_each_node_has_left_for_it() -> None:
    for seed in range(20):
        world, random = crowded(seed), Random(seed)
        snap = world.snapshot()
        for name in (*snap.jobs, "another"):
            asking = Asking(name, random.choice(["", "worker.0"]))
            found = offers(snap, snap.jobs.get(name), asking.member)
            assert found == grouped(module._offers(snap, asking, module._usable(snap))), (seed, asking)
            assert len(found.by_node) == 5


def test_what_a_look_has_planned_is_offered_to_no_job_that_follows() -> None:
    for seed in range(20):
        snap, random = crowded(seed).snapshot(), Random(seed)
        for name in random.sample(sorted(snap.jobs), 3):
            job = snap.jobs[name]
            plan = replace(
                random.choice(list(job.plans.values())).value,
                plan_id=random.choice(["p", "next"]),
                generation=2,
                placements=(placed(random, 0), placed(random, 1)),
            )
            snap = with_plan(snap, plan)
            afresh = replace(snap, jobs=dict(snap.jobs))
            for asking, member in (("another", ""), ("job0", ""), ("digits", "worker.0")):
                asked = snap.jobs.get(asking)
                assert offers(snap, asked, member) == offers(afresh, asked, member), (seed, asking)


def placed(random: Random, index: int) -> Placement:
    node = random.randint(0, 5)
    return Placement("worker", index, f"n{node}", f"i{node}", (f"GPU-n{node}-{random.randint(0, 1)}",))


def crowded(seed: int) -> World:
    """Six nodes with GPUs and launchers in reserve; three jobs beside the world's own run there."""
    random, world = Random(seed), World(nodes=6).start()
    for node, agent in world.agents.items():
        world.see_gpus(node, *(gpu(node, index) for index in range(2)))
        agent.spares = tuple(random.choice(["digits", "job0", "job1"]) for _ in range(random.randint(0, 3)))
    world.write(put(keys.cordon("n5"), Cordon("n5", "not now")))
    for number in range(3):
        name, workers = f"job{number}", random.randint(1, 3)
        need = Resources(cpus=random.choice([0.5, 1.0]), gpus=1, gpu_share=3)
        spec = job_spec((role("worker", workers, need),), name=name)
        places = tuple(placed(random, index) for index in range(workers))
        world.write(
            put(keys.job_record(name), JobRecord(spec, f"uuid-{name}", 0)),
            put(keys.intent(name), JobIntent()),
            put(keys.switch(name), JobSwitch(name, f"uuid-{name}", JobPhase.RUNNING, 1, "p")),
            put(keys.plan(name, "p"), Plan(name, "p", 1, "", places)),
        )
    world.tick(leader=False)
    return world
