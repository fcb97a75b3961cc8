"""Placement: constraints always hold, all tasks or none, they stay at home, they spread."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.contract.ids import TaskId
from supervisor.contract.job.spec import JobSpec, Resources
from supervisor.control.decide.nodes import placement
from supervisor.control.decide.nodes.offers import NodeOffer, grouped
from supervisor.control.decide.nodes.placement import Before, PlacementResult
from tests.support.builders import GIB, job_spec, offer, resources, role

NODES = ("n1", "n2", "n3", "n4")
LABELS = st.dictionaries(st.sampled_from(["gpu", "rack"]), st.sampled_from(["a", "b"]), max_size=2)
NEEDS = st.builds(
    resources,
    cpus=st.sampled_from([0.0, 0.1, 0.5, 1.0, 4.0]),
    memory=st.sampled_from([0, 1, GIB, 4 * GIB]),
    gpus=st.integers(0, 2),
    labels=LABELS,
)
SPECS = st.lists(st.tuples(st.integers(1, 4), NEEDS), min_size=1, max_size=4).map(
    lambda rows: job_spec(
        tuple(role(f"role{number}", count, need) for number, (count, need) in enumerate(rows))
    )
)


def offers_for(names: tuple[str, ...]) -> st.SearchStrategy[tuple[NodeOffer, ...]]:
    return st.tuples(
        *(
            st.builds(
                offer,
                st.just(name),
                cpus=st.sampled_from([0.0, 1.0, 8.0]),
                memory=st.sampled_from([0, 2 * GIB, 16 * GIB]),
                gpus=st.integers(0, 4),
                labels=LABELS,
                used_cpus=st.sampled_from([0.0, 0.7, 9.0]),
                used_memory=st.sampled_from([0, GIB, 20 * GIB]),
                used_gpus=st.integers(0, 5),
                tasks=st.integers(0, 3),
                spares=st.integers(0, 2),
            )
            for name in names
        )
    )


OFFERS = st.sets(st.sampled_from(NODES)).flatmap(lambda names: offers_for(tuple(sorted(names))))
KEEPS = st.dictionaries(
    st.builds("role{}.{}".format, st.integers(0, 3), st.integers(0, 3)), st.sampled_from((*NODES, "gone"))
)


def place(spec: JobSpec, nodes: tuple[NodeOffer, ...], before: Before) -> PlacementResult:
    return placement.place(spec, grouped(nodes), before)


def nodes_of(result: PlacementResult) -> dict[str, str]:
    assert not result.waiting_for
    return {member: chosen.node for member, chosen in result.placements.items()}


def stays(result: PlacementResult) -> Before:
    """The nodes and GPUs of all tasks, as input of the next placement."""
    return Before(nodes_of(result), result.gpus)


def fits_alone(need: Resources, chosen: NodeOffer, tasks: list[Resources]) -> bool:
    """Whether `tasks` (with `need` among them) stay within what the node has left of what is asked."""
    total = chosen.resources
    return (
        all(total.labels.get(name) == value for name, value in need.labels.items())
        and (not need.gpus or sum(t.gpus for t in tasks) <= sum(not slot.users for slot in chosen.gpus))
        and (
            not need.memory_bytes
            or sum(t.memory_bytes for t in tasks) <= total.memory_bytes - chosen.used_memory_bytes
        )
        and (not need.cpus or sum(t.cpus for t in tasks) <= total.cpus - chosen.used_cpus + 1e-6)
    )


@given(spec=SPECS, nodes=OFFERS, keep=KEEPS)
def test_all_or_none_and_never_more_than_a_node_has(
    spec: JobSpec, nodes: tuple[NodeOffer, ...], keep: dict[str, str]
) -> None:
    result = place(spec, nodes, Before(keep))
    if result.waiting_for:
        assert not result.placements
        return
    assert list(result.placements) == [task.member for task in spec.tasks()]
    on_node: dict[str, list[Resources]] = {}
    for member, chosen in result.placements.items():
        assert chosen in nodes
        on_node.setdefault(chosen.node, []).append(spec.role(TaskId.from_member("j", member).role).resources)
    for member, chosen in result.placements.items():
        need = spec.role(TaskId.from_member("j", member).role).resources
        assert fits_alone(need, chosen, on_node[chosen.node])


@given(spec=SPECS, nodes=OFFERS, keep=KEEPS, data=st.data())
def test_the_order_of_the_nodes_does_not_matter(
    spec: JobSpec, nodes: tuple[NodeOffer, ...], keep: dict[str, str], data: st.DataObject
) -> None:
    shuffled = tuple(data.draw(st.permutations(nodes)))
    assert place(spec, shuffled, Before(keep)) == place(spec, nodes, Before(keep))


@given(spec=SPECS, nodes=OFFERS, keep=KEEPS)
def test_where_it_was_placed_it_stays(
    spec: JobSpec, nodes: tuple[NodeOffer, ...], keep: dict[str, str]
) -> None:
    first = place(spec, nodes, Before(keep))
    if not first.waiting_for:
        assert place(spec, nodes, stays(first)) == first


@given(spec=SPECS, nodes=offers_for(NODES[:3]), extra=offers_for(NODES[3:]), keep=KEEPS)
def test_what_stays_does_not_move_for_a_new_node(
    spec: JobSpec, nodes: tuple[NodeOffer, ...], extra: tuple[NodeOffer, ...], keep: dict[str, str]
) -> None:
    before = place(spec, nodes, Before(keep))
    if not before.waiting_for:
        assert place(spec, (*nodes, *extra), stays(before)) == before


@given(need=NEEDS, nodes=OFFERS)
def test_one_task_waits_only_if_no_node_fits(need: Resources, nodes: tuple[NodeOffer, ...]) -> None:
    result = place(job_spec((role("worker", 1, need),)), nodes, Before())
    assert bool(result.waiting_for) == (not any(fits_alone(need, node, [need]) for node in nodes))


@given(spec=SPECS, nodes=OFFERS.filter(bool))
def test_a_task_that_asks_for_nothing_always_fits(spec: JobSpec, nodes: tuple[NodeOffer, ...]) -> None:
    modest = job_spec(tuple(role(given_role.name, given_role.count) for given_role in spec.roles))
    assert not place(modest, nodes, Before()).waiting_for


def test_new_tasks_spread_by_load_then_name() -> None:
    result = place(job_spec(), (offer("n3"), offer("n1", tasks=1), offer("n2")), Before())
    assert nodes_of(result) == {"chief.0": "n2", "ps.0": "n3", "worker.0": "n1", "worker.1": "n2"}


def test_tasks_of_a_lost_node_move_and_the_others_stay() -> None:
    keep = {"chief.0": "n1", "ps.0": "n2", "worker.0": "n3", "worker.1": "n1"}
    result = place(job_spec(), (offer("n1"), offer("n2")), Before(keep))
    assert nodes_of(result) == {**keep, "worker.0": "n2"}


def test_a_moved_task_takes_a_spare_launcher_before_an_empty_node() -> None:
    keep = {"chief.0": "n1", "ps.0": "n1", "worker.0": "gone", "worker.1": "gone"}
    result = place(job_spec(), (offer("n1", spares=1), offer("n2")), Before(keep))
    assert nodes_of(result) == {"chief.0": "n1", "ps.0": "n1", "worker.0": "n1", "worker.1": "n2"}


def test_each_spare_launcher_counts_once() -> None:
    nodes = (offer("n1", spares=2), offer("n2", spares=0))
    assert Counter(nodes_of(place(job_spec({"worker": 4}), nodes, Before())).values()) == {"n1": 2, "n2": 2}


def test_a_home_without_room_is_left() -> None:
    spec = job_spec((role("worker", 2, resources(gpus=1)),))
    nodes = (offer("n1", gpus=2, used_gpus=1), offer("n2", gpus=1))
    assert nodes_of(place(spec, nodes, Before({"worker.0": "n1", "worker.1": "n1"}))) == {
        "worker.0": "n1",
        "worker.1": "n2",
    }


def test_a_task_moves_from_its_home_when_another_fits_nowhere_else() -> None:
    spec = job_spec((role("ps", 1, resources(memory=GIB)), role("worker", 1, resources(memory=4 * GIB))))
    nodes = (offer("n1", memory=4 * GIB), offer("n2", memory=2 * GIB))
    assert nodes_of(place(spec, nodes, Before({"ps.0": "n1"}))) == {"ps.0": "n2", "worker.0": "n1"}


def test_placing_afresh_still_prefers_home() -> None:
    spec = job_spec(
        (role("ps", 1, resources(memory=GIB)), role("worker", 1, resources(memory=4 * GIB)), role("chief"))
    )
    nodes = (offer("n1", memory=4 * GIB), offer("n2", memory=2 * GIB, tasks=5))
    placed = nodes_of(place(spec, nodes, Before({"ps.0": "n1", "chief.0": "n2"})))
    assert placed == {"ps.0": "n2", "worker.0": "n1", "chief.0": "n2"}


@pytest.mark.parametrize(
    ("small", "large", "nodes"),
    [
        (resources(gpus=2), resources(gpus=3), (offer("n1", gpus=4), offer("n2", gpus=3))),
        (
            resources(memory=2 * GIB),
            resources(memory=3 * GIB),
            (offer("n1", memory=4 * GIB), offer("n2", memory=3 * GIB)),
        ),
        (resources(cpus=2), resources(cpus=3), (offer("n1", cpus=4), offer("n2", cpus=3))),
        (
            resources(cpus=8),
            resources(cpus=2, labels={"gpu": "h200"}),
            (offer("n1", cpus=8, labels={"gpu": "h200"}), offer("n2", cpus=16, gpus=1)),
        ),
    ],
)
def test_the_most_demanding_task_is_placed_first(
    small: Resources, large: Resources, nodes: tuple[NodeOffer, ...]
) -> None:
    """In the order of the job, even the tightest packing would leave no room for the last task."""
    spec = job_spec((role("ps", 2, small), role("worker", 1, large)))
    assert not place(spec, nodes, Before()).waiting_for


def test_small_tasks_do_not_take_the_room_of_large_ones() -> None:
    """Spreading would put one CPU on each node and leave no node with four."""
    spec = job_spec(
        (role("ps", 2, resources(cpus=1, memory=GIB)), role("worker", 1, resources(cpus=4))),
    )
    nodes = (offer("n1", cpus=4), offer("n2", cpus=4))
    counts = Counter(nodes_of(place(spec, nodes, Before())).values())
    assert sorted(counts.values()) == [1, 2]


def test_fractions_of_a_cpu_add_up_to_a_whole() -> None:
    spec = job_spec((role("worker", 10, resources(cpus=0.1)),))
    assert not place(spec, (offer("n1", cpus=1.0),), Before()).waiting_for


def test_labels_bind() -> None:
    spec = job_spec((role("worker", 2, resources(labels={"gpu": "h200"})),))
    nodes = (offer("n1"), offer("n2", labels={"gpu": "h200", "rack": "a"}), offer("n3", labels={"gpu": "t4"}))
    assert nodes_of(place(spec, nodes, Before({"worker.0": "n1"}))) == {"worker.0": "n2", "worker.1": "n2"}


@pytest.mark.parametrize(
    ("need", "nodes", "sentence"),
    [
        (resources(), (), "digits/worker:0 waits for a node: none is available"),
        (
            resources(labels={"gpu": "h200", "rack": "a"}),
            (offer("n1", labels={"gpu": "h200"}), offer("n2")),
            "digits/worker:0 needs a node with label gpu=h200, rack=a; none of 2 nodes has it",
        ),
        (
            resources(gpus=4),
            (offer("n1", gpus=2), offer("n2", gpus=8, used_gpus=5)),
            "digits/worker:0 needs 4 GPUs, 3 free (1 short) on the best node, n2",
        ),
        (
            resources(cpus=2.5, memory=3 * GIB),
            (offer("n1", cpus=1, memory=GIB), offer("n2", cpus=2, memory=8 * GIB)),
            "digits/worker:0 needs 2.5 CPUs, 2 free (0.5 short) on the best node, n2",
        ),
        (
            resources(memory=2 * GIB, gpus=1),
            (offer("n1", memory=GIB + GIB // 2, used_memory=GIB),),
            (
                "digits/worker:0 needs 1 GPUs, 0 free (1 short) and "
                "needs 2 GiB memory, 512 MiB free (1.5 GiB short) on the best node, n1"
            ),
        ),
        (
            resources(memory=2048),
            (offer("n1", memory=1024, used_memory=4096),),
            "digits/worker:0 needs 2 KiB memory, 0 B free (2 KiB short) on the best node, n1",
        ),
    ],
)
def test_the_sentence_names_task_resource_and_shortfall(
    need: Resources, nodes: tuple[NodeOffer, ...], sentence: str
) -> None:
    assert place(job_spec((role("worker", 1, need),)), nodes, Before()).waiting_for == sentence


def test_a_job_with_secrets_goes_to_nodes_whose_agents_know_of_them() -> None:
    new = offer("n2", tasks=5)
    nodes = (offer("n1"), new._replace(resources=replace(new.resources, secrets=True)))
    spec = job_spec((replace(role("worker"), secrets={"TOKEN": "hf"}),))
    assert set(nodes_of(place(spec, nodes, Before())).values()) == {"n2"}
    result = place(spec, nodes[:1], Before())
    assert "the agents of all 1 nodes are of an earlier release" in result.waiting_for
    assert result.asks == ("roles", "worker", "env", "TOKEN")
