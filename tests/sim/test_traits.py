"""Seeds make jobs: every trait comes, in jobs that the product takes, and says what it means."""

import random
from pathlib import Path

import pytest

import chaos.sim
from chaos.sim.cluster.programs import ENDINGS
from chaos.sim.jobs import LATE, SECOND, another_job, first_job
from chaos.sim.swarm import Length, Shape, swarm
from chaos.sim.traits import LEFT_OUT, RULED_OUT, TRAITS, Draft, varied
from recovery.policy.logs import last_words
from supervisor.control.decide.jobs.admission import check_spec

SEEDS = range(1, 400)


def drafts(seed: int, length: Length = Length.FULL) -> list[Draft]:
    shape = swarm(seed, length)
    jobs = [first_job(random.Random(seed), seed, shape, fatal=False)]
    names = (SECOND, LATE) if shape.second else (LATE,)
    return [*jobs, *(another_job(random.Random(seed), seed, shape, name) for name in names)]


def test_a_seed_gives_the_same_jobs_again() -> None:
    assert [drafts(seed) for seed in SEEDS] == [drafts(seed) for seed in SEEDS]


def test_every_trait_comes_and_most_jobs_have_few() -> None:
    seen = [draft.traits for seed in SEEDS for draft in drafts(seed)]
    assert {trait for traits in seen for trait in traits} == TRAITS.keys()
    assert sum(len(traits) < 3 for traits in seen) > len(seen) * 0.39
    assert sum(not traits for traits in seen) > len(seen) / 4


def test_in_dense_seeds_every_job_has_many() -> None:
    seen = [len(draft.traits) for seed in SEEDS for draft in drafts(seed, Length.DENSE)]
    assert len(TRAITS) / 3 < sum(seen) / len(seen) < len(TRAITS) / 2


@pytest.mark.parametrize("length", [Length.FULL, Length.DENSE])
def test_the_product_takes_each_of_them(length: Length) -> None:
    for seed in SEEDS:
        for draft in drafts(seed, length):
            check_spec(draft.spec)


def test_a_job_without_traits_is_as_it_was() -> None:
    plain = next(draft for seed in SEEDS for draft in drafts(seed) if not draft.traits)
    again = [varied(plain, seed, Shape(2, 3)) for seed in SEEDS]
    assert all(draft == plain for draft in again if not draft.traits)
    assert all(draft != plain for draft in again if draft.traits)


def test_who_waits_for_others_is_not_waited_for_by_them() -> None:
    orders = [
        {role.name: role.after for role in draft.spec.roles} for seed in SEEDS for draft in drafts(seed)
    ]
    assert any(after for order in orders for after in order.values())
    for order in orders:
        assert not any(order[name] for after in order.values() for name in after)


@pytest.mark.parametrize("cause", ENDINGS)
def test_last_words_say_what_they_are_meant_to(cause: str) -> None:
    found = last_words(f"step 7\n{ENDINGS[cause]}")
    assert found is not None
    assert found.cause.value == cause


def test_what_is_left_out_is_listed_by_trait_and_the_saver_of_an_elastic_job_may_be_another() -> None:
    assert RULED_OUT.keys() <= TRAITS.keys()
    assert all((Path(chaos.sim.__file__).parent / module).exists() for module in LEFT_OUT)
    seen = [set(draft.traits) for seed in SEEDS for draft in drafts(seed, Length.DENSE)]
    assert any({"another task saves", "elastic workers"} <= traits for traits in seen)
