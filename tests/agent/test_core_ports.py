"""The port of a task that lost its reservation, and the answers that the leader gets about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.core.events import Fenced, Joined, LauncherGone, LauncherSaid, Spawned, SpecRead, Written
from agent.core.instructions import Instruction, Launch, Say, Write
from agent.core.saved.adopt import record_of, restore
from agent.core.tasks import MOST_TRIES
from agent.inside import protocol
from supervisor.contract.desired import ClusterSpec, RoleAddresses
from supervisor.contract.observed import ExitReason, Prepared
from supervisor.contract.timing import FAST
from tests.agent.core import ME, NO_SPARES, ORDER, RUNNING, SPEC, WAITING, Core, only

KNOWN = ClusterSpec("job", 1, "p1", (), (RoleAddresses("dispatcher", ("h:20042",)),))


@pytest.mark.parametrize(("follow", "asked"), [(False, 20042), (True, None)])
def test_what_others_were_told_of_is_claimed_again_and_only_a_follower_takes_any(
    follow: bool, asked: int | None
) -> None:
    core = Core()
    order = replace(ORDER, role="dispatcher", binds_alone=True, follow=follow)
    core.see(RUNNING, order)
    core.feed(SpecRead("p1", KNOWN))
    core.feed(Spawned(core.launcher_id, 100, 1))
    core.hear(protocol.Hello(1, core.launcher_id, "job", 100, 1, "boot", True))
    core.see(RUNNING, order)
    assert [each.reuse for each in requested(core.said)] == [asked]


def requested(instructions: list[Instruction]) -> list[protocol.Reserve]:
    """For which ports launchers were asked."""
    said = [each.message for each in only(Say, instructions)]
    return [each for each in said if isinstance(each, protocol.Reserve)]


def told(core: Core) -> list[Prepared]:
    """The answers to the leader about prepared tasks; each write of one is confirmed."""
    words = [each for each in only(Write, core.said) if isinstance(each.record, Prepared)]
    for each in words:
        core.feed(Written(each.tag, ok=True))
    return [each.record for each in words if isinstance(each.record, Prepared)]


def succeeded(core: Core, dead: str, number: int) -> list[Instruction]:
    """A launcher dies, and the next one says hello."""
    core.feed(LauncherGone(dead, "killed"), Fenced(dead, 0))
    (new,) = (each for each in core.state.launchers.values() if not each.connected)
    core.feed(Spawned(new.launcher_id, number, 1))
    return core.feed(
        LauncherSaid(new.launcher_id, protocol.Hello(1, new.launcher_id, "job", number, 1, "boot", True))
    )


def test_a_port_that_a_tasks_next_launcher_is_to_claim_is_left_to_it_by_all_others() -> None:
    """Simulator, seed 9700016: both launchers of a node died, and two tasks were prepared at one address."""
    core = Core().prepared()
    first = core.launcher_id
    other = replace(ORDER, role="ps")
    core.feed(LauncherGone(first, "killed"))
    core.see(WAITING, ORDER, other)
    core.feed(Fenced(first, 0))
    for number, launcher in enumerate(list(core.state.launchers.values()), 200):
        core.feed(Spawned(launcher.launcher_id, number, 1))
        hello = protocol.Hello(1, launcher.launcher_id, "job", number, 1, "boot", True)
        core.feed(LauncherSaid(launcher.launcher_id, hello))
    requests = {each.reservation: each for each in requested(core.said)}
    assert requests["p1.worker.0"].reuse == 20000
    assert requests["p1.ps.0"].avoid == (20000,)


def test_where_a_strangers_program_took_a_prepared_tasks_port_the_leader_is_told_of_another() -> None:
    core = Core().prepared()
    assert [each.address for each in told(core)] == ["h:20000"]
    (again,) = requested(succeeded(core, core.launcher_id, 200))
    assert again.reuse == 20000
    (any_port,) = requested(core.hear(protocol.ReserveFailed("p1.worker.0", "port 20000 is in use")))
    assert any_port.reuse is None
    core.hear(protocol.Reserved("p1.worker.0", 20001))
    assert [each.address for each in told(core)] == ["h:20000", "h:20001"]
    core.hear(protocol.Pull(1, "life1", None))
    assert len(told(core)) == 2, "once is enough"


def test_that_a_prepared_task_can_be_prepared_no_more_is_told() -> None:
    core = Core().prepared()
    assert told(core)[-1].address
    for number in range(MOST_TRIES):
        succeeded(core, core.launcher_id, 200 + number)
    core.feed(LauncherGone(core.launcher_id, "no memory"), Fenced(core.launcher_id, 0))
    last = told(core)[-1]
    assert not last.address
    assert (
        last.failure
        == f"no launcher became ready in {MOST_TRIES} more tries; the last one ended so: no memory"
    )


def test_an_attempt_whose_port_was_taken_does_not_start_elsewhere_and_its_address_is_gone() -> None:
    core = Core().prepared()
    succeeded(core, core.launcher_id, 200)
    core.see(RUNNING, ORDER)
    core.feed(SpecRead("p1", SPEC))
    core.hear(protocol.ReserveFailed("p1.worker.0", "port 20000 is in use"))
    core.hear(protocol.Reserved("p1.worker.0", 20001))
    assert not only(Launch, core.said)
    end = core.attempt.end
    assert end is not None
    assert (end.reason, end.address_lost) == (ExitReason.LAUNCHER_LOST, True)


def test_the_next_life_of_an_agent_tells_what_it_holds_and_what_became_of_it() -> None:
    core = Core().prepared()
    told(core)
    launcher = core.state.launchers[core.launcher_id]
    kept = record_of(core.state)
    core.state = restore(
        kept, NO_SPARES, "life2", "boot", core.now_ms, {(launcher.pid, launcher.start_ticks)}
    )
    core.said.clear()
    me = replace(ME, incarnation="life2", succeeds=("life1",))
    core.feed(Joined(me, core.now_ms, adopt=True, d_ms=FAST.d_ms))
    core.see(WAITING, ORDER)
    assert [each.address for each in told(core)] == ["h:20000"]
    succeeded(core, core.launcher_id, 200)
    core.hear(protocol.ReserveFailed("p1.worker.0", "port 20000 is in use"))
    core.hear(protocol.Reserved("p1.worker.0", 20001))
    assert [(each.address, each.incarnation) for each in told(core)][-1] == ("h:20001", "life2")
