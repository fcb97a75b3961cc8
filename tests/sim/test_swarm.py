"""Seeds make runs: some of everything, in every mixture, and the same again for the same seed."""

from chaos.sim.swarm import Length, swarm
from chaos.sim.trouble.schedule import ACTIONS, FAMILIES
from supervisor.control.decide.facts.cluster_time import TICK_MS
from supervisor.control.decide.jobs.code_gc import KEPT_UNUSED_MS

SEEDS = range(1, 400)
KINDS = {kind for family in FAMILIES.values() for kind in family}


def test_a_seed_is_the_same_run_again() -> None:
    assert [swarm(seed) for seed in SEEDS] == [swarm(seed) for seed in SEEDS]


def test_every_kind_of_trouble_comes_and_no_run_has_all() -> None:
    shapes = [swarm(seed) for seed in SEEDS]
    assert {kind for shape in shapes for kind in shape.table} == KINDS
    assert all(0 < len(shape.families) < len(FAMILIES) for shape in shapes)
    assert {shape.timing.profile for shape in shapes} == {"fast", "default"}
    assert any(shape.second for shape in shapes)
    assert any(shape.crowded for shape in shapes)
    assert 0.05 < sum(shape.promise_s > 0 for shape in shapes) / len(shapes) < 0.25


def test_a_long_one_lasts_longer_than_leaders_keep_things() -> None:
    shapes = [swarm(seed, Length.LONG) for seed in SEEDS]
    at_least_s = min(shape.pace * shape.length.span_s[0] for shape in shapes)
    assert at_least_s * 1000 > max(TICK_MS, KEPT_UNUSED_MS)


def test_everybody_knows_what_to_do_at_each_kind() -> None:
    assert {kind.split("_")[0] for kind in KINDS} - ACTIONS.keys() == {"operator"}
