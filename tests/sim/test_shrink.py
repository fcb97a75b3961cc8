"""Cutting a failing schedule down: to the least that fails, whatever else was in it."""

from hypothesis import given
from hypothesis import strategies as st

from chaos.sim.run import Result, run_swarm
from chaos.sim.shrink import minimise, promise_of
from chaos.sim.swarm import Length

ITEMS = st.lists(st.integers(1, 12), min_size=1, max_size=12, unique=True).map(sorted)


@given(ITEMS, st.data())
def test_exactly_what_it_takes_is_left(items: list[int], data: st.DataObject) -> None:
    needed = frozenset(data.draw(st.sets(st.sampled_from(items))))
    left = minimise(items, lambda only: needed <= set(only))
    assert left == tuple(sorted(needed))


def test_nothing_is_left_of_a_schedule_that_is_not_to_blame() -> None:
    assert minimise((1, 2, 3), lambda _only: True) == ()


def test_the_first_broken_promise_names_a_failure() -> None:
    broken = ("PROMISE BROKEN [no port is shared] a: b", "PROMISE BROKEN [liveness] c")
    assert promise_of(Result(1, broken, "", (), 1.0, 1, {})) == "PROMISE BROKEN [no port is shared"
    assert promise_of(Result(1, (), "Deadlock: nothing", (), 1.0, 1, {})) == "Deadlock"
    assert promise_of(Result(1, (), "", (), 1.0, 1, {})) == ""


def test_faults_are_left_out_by_their_numbers() -> None:
    whole = run_swarm(2, Length.SHORT)
    some = run_swarm(2, Length.SHORT, only=(1,))
    assert some.schedule == whole.schedule
    told = [line.split("** ")[1] for line in some.trace if "** fault" in line]
    assert told == ["fault 1"]
