"""Launchers in reserve: for whom one is kept, how many, and when a machine is not asked for one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.core.events import (
    BeatSeen,
    Event,
    Heard,
    LauncherGone,
    LauncherSaid,
    MemoryFree,
    Observed,
    SpawnFailed,
)
from agent.core.instructions import Say, Spawn
from agent.core.pool import SCARCE_BYTES, SPARE_AGAIN_MS, SPARE_BYTES, SPARE_DELAY_MS, ready_spares
from agent.inside import protocol
from supervisor.contract.desired import Assignment, JobPhase, JobSwitch, Spare
from tests.agent.core import ORDER, RUNNING, WAITING, Core, only

SPARE = Spare("job", "u", "n1", "/", "x", ("tensorflow",))


class Node:
    """A node that keeps one spare, and was told what for."""

    def __init__(self, core: Core | None = None, *orders: Assignment) -> None:
        self.core = core or Core()
        self.core.state = replace(
            self.core.state, settings=replace(self.core.state.settings, spare_launchers=1)
        )
        self.orders = orders
        self.core.feed(MemoryFree(SPARE_BYTES))
        self.tell(RUNNING, SPARE)

    def tell(self, switch: JobSwitch, *spares: Spare) -> list[Spawn]:
        return only(Spawn, self.core.feed(Observed(self.orders, (switch,), self.core.now_ms, spares)))

    def later(self, ms: int) -> list[Spawn]:
        """The launchers that are spawned within `ms`, while all others are well."""
        found = []
        for _ in range(ms // 100):
            self.core.now_ms += 100
            for launcher in list(self.core.state.launchers.values()):
                self.core.state.launchers[launcher.launcher_id] = replace(launcher, heard_ms=self.core.now_ms)
            found += only(Spawn, self.core.feed(BeatSeen(self.core.now_ms), Heard(self.core.now_ms)))
        return found

    def come_up(self, *, warm: bool = True) -> str:
        """The newest launcher says hello, and has imported."""
        launcher_id = list(self.core.state.launchers)[-1]
        self.say(launcher_id, protocol.Hello(1, launcher_id, "job", 900, 1, "boot", False))
        self.say(launcher_id, protocol.Warm(500, None if warm else "ImportError"))
        return launcher_id

    def say(self, launcher_id: str, message: object) -> None:
        self.core.feed(LauncherSaid(launcher_id, message))

    def shut_down(self, *events: Event) -> list[str]:
        said = only(Say, self.core.feed(*events))
        return [each.launcher_id for each in said if isinstance(each.message, protocol.Shutdown)]


def test_an_idle_node_keeps_one_and_says_so_when_it_is_warm() -> None:
    node = Node()
    (spawn,) = only(Spawn, node.core.said)
    assert (spawn.recipe.preload, spawn.recipe.program, spawn.recipe.job_uuid) == (("tensorflow",), "x", "u")
    assert ready_spares(node.core.state) == ()
    node.come_up()
    assert ready_spares(node.core.state) == ("job",)
    assert not node.later(5_000)


def test_a_task_that_moves_there_starts_in_it() -> None:
    node = Node()
    launcher_id = node.come_up()
    node.orders = (replace(ORDER, generation=2, plan_id="p2", preload=("tensorflow",)),)
    assert not node.tell(RUNNING, SPARE)
    (hold,) = node.core.state.holds.values()
    assert hold.launcher_id == launcher_id
    assert ready_spares(node.core.state) == ()
    assert not node.later(3_000), "no other while the plan is prepared"


def test_what_starts_here_has_the_processors_first() -> None:
    node = Node(Core().running(), ORDER)
    assert not node.later(SPARE_DELAY_MS - 200)
    assert len(node.later(400)) == 1


@pytest.mark.parametrize("free", [-1, SPARE_BYTES - 1])
def test_where_memory_does_not_allow_it_or_is_not_known_none_is_made(free: int) -> None:
    core = Core()
    core.state = replace(core.state, settings=replace(core.state.settings, spare_launchers=1))
    core.feed(MemoryFree(free), Observed((), (RUNNING,), core.now_ms, (SPARE,)))
    assert not only(Spawn, core.said)
    assert only(Spawn, core.feed(MemoryFree(SPARE_BYTES)))


def test_when_memory_is_scarce_it_is_the_first_to_go() -> None:
    node = Node()
    launcher_id = node.come_up()
    assert not node.shut_down(MemoryFree(SCARCE_BYTES))
    assert node.shut_down(MemoryFree(SCARCE_BYTES - 1)) == [launcher_id]


@pytest.mark.parametrize(
    ("switch", "spares"),
    [
        (replace(RUNNING, phase=JobPhase.SUCCEEDED), (SPARE,)),
        (replace(WAITING, job_uuid="v"), (SPARE,)),
        (RUNNING, (replace(SPARE, preload=("torch",)),)),
        (RUNNING, (Spare("job", "u", "n1", "", "", wanted=False),)),
    ],
)
def test_it_goes_with_its_job_its_life_and_its_surroundings(
    switch: JobSwitch, spares: tuple[Spare, ...]
) -> None:
    node = Node()
    launcher_id = node.come_up()
    assert node.shut_down(Observed((), (switch,), node.core.now_ms, spares)) == [launcher_id]


def test_one_that_dies_of_what_it_imports_is_not_made_again_at_once() -> None:
    node = Node()
    node.core.feed(LauncherGone(list(node.core.state.launchers)[-1]))
    assert not node.later(2_000), "it would only die of the same again"


def test_one_that_cannot_be_spawned_is_tried_again_after_a_while() -> None:
    node = Node()
    (spare,) = only(Spawn, node.core.said)
    assert not only(Spawn, node.core.feed(SpawnFailed(spare.launcher_id, "no process is left")))
    assert not node.later(SPARE_AGAIN_MS - 1_000)
    assert len(node.later(2_000)) == 1
