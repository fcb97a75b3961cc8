"""A node that beats, but that etcd does not answer: its agent ends its tasks and cannot report that."""

from __future__ import annotations

from dataclasses import replace

from supervisor.contract import keys
from supervisor.contract.desired import LostMark
from supervisor.contract.incident import Cause, Incident
from supervisor.contract.observed import Exit, ExitReason
from supervisor.contract.promise import PromiseRequest, Word
from supervisor.contract.timing import FAST
from supervisor.control.decide.facts import promises
from supervisor.control.decide.plan import put
from supervisor.control.decide.snapshot import Snapshot
from tests.control.world import STEP_MS, World

ECHO = Exit(ExitReason.EXIT, 1, None, 10, confirmed_dead=True, tail="Connection reset by peer")


def apart() -> tuple[World, str]:
    """A world whose parameter server is alone on its node."""
    world = World(nodes=4).start()
    node = world.running()["ps.0"].node
    assert [member for member, each in world.running().items() if each.node == node] == ["ps.0"]
    return world, node


def wait(world: World, ms: int) -> None:
    end_ms = world.now_ms + ms
    while world.now_ms < end_ms:
        world.tick()


def failures(world: World) -> list[Incident]:
    return [each for each in world.incidents().values() if each.cause is not Cause.SUBMITTED]


def is_marked(world: World, node: str) -> bool:
    return bool(world.store.read(keys.lost(node, world.agents[node].incarnation)))


def test_it_is_replaced_d_after_no_healthy_agent_would_be_unread_for_so_long() -> None:
    world, node = apart()
    world.cut_off(node)
    took_ms = world.until(lambda: world.switch().generation == 2)
    assert FAST.unread_ms + FAST.d_ms <= took_ms <= FAST.unread_ms + FAST.d_ms + 10 * STEP_MS
    world.until(lambda: len(world.running()) == len(world.spec.tasks()))
    assert node not in {each.node for each in world.running().values()}
    (incident,) = failures(world)
    assert (incident.cause, incident.scope.value) == (Cause.NODE_LOST, "all")
    assert "etcd has not answered it" in incident.detail
    assert world.switch().ledger.program == 0


def test_what_ends_elsewhere_meanwhile_followed_from_it() -> None:
    world, node = apart()
    world.cut_off(node)
    # Nothing is marked yet: the leader's transaction takes its time.
    while not world.snapshot().unread_ms(world.snapshot().nodes[node]):
        world.tick(leader=False)
    world._exited(world.running()["chief.0"], ECHO)
    world.until(lambda: world.switch().generation == 2)
    world.until(lambda: len(world.running()) == len(world.spec.tasks()))
    (incident,) = failures(world)
    assert incident.cause is Cause.NODE_LOST
    assert (world.switch().ledger.program, world.switch().ledger.infrastructure) == (0, 1)


def test_what_failed_before_is_answered_as_ever() -> None:
    world, node = apart()
    world.cut_off(node)
    wait(world, FAST.suspect_ms)
    world._exited(world.running()["chief.0"], ECHO)
    world.until(lambda: bool(failures(world)))
    assert failures(world)[0].cause is Cause.PROGRAM_EXIT


def test_its_last_read_is_when_its_failure_began() -> None:
    world, node = apart()
    world.cut_off(node)
    world.until(lambda: bool(failures(world)))
    (incident,) = failures(world)
    assert FAST.unread_ms <= incident.phases_ms["detected"] <= FAST.unread_ms + 2 * STEP_MS


def test_while_etcd_does_not_answer_the_leader_either_nobody_is_suspected() -> None:
    class Shaken(World):
        """Etcd has answered this leader again for a moment."""

        def snapshot(self) -> Snapshot:
            return replace(super().snapshot(), etcd_since_ms=self.back_ms)

        back_ms = 0

    world = Shaken()
    world.start()
    for node in world.agents:
        world.cut_off(node)
    world.back_ms = world.now_ms + FAST.d_ms
    wait(world, 2 * FAST.d_ms - STEP_MS)
    assert "node_suspected" not in world.done
    wait(world, 2 * STEP_MS)
    assert "node_suspected" in world.done


def test_one_that_appeals_has_reached_etcd() -> None:
    world, node = apart()
    world.cut_off(node)
    world.until(lambda: is_marked(world, node))
    world.appeal(node, world.agents[node].incarnation)
    world.until(lambda: not is_marked(world, node))
    wait(world, FAST.unread_ms - 2 * STEP_MS)
    assert not is_marked(world, node), "its beats say that its last good read is old: it was marked since"
    world.agents[node].read_ms = -1
    wait(world, 3 * FAST.d_ms)
    assert not is_marked(world, node)
    assert (world.switch().generation, world.done.count("node_suspected")) == (1, 1)


def test_no_task_is_placed_there() -> None:
    world, node = apart()
    world.cut_off(node)
    wait(world, FAST.unread_ms)
    snap = world.snapshot()
    assert [name for name, each in snap.nodes.items() if not snap.usable(each)] == [node]


def test_what_was_promised_is_kept() -> None:
    class Bound(World):
        """A leader that has promised to leave a node alone."""

        def snapshot(self) -> Snapshot:
            return replace(super().snapshot(), word=self.word)

        word = Word("boot")

    world = Bound(nodes=4)
    world.start()
    node = world.running()["ps.0"].node
    life, until_ms = world.agents[node].incarnation, world.now_ms + 20_000
    request = PromiseRequest(1, node, life, 1)
    world.word, refused = promises.consider(
        world.word, request, world.now_ms, 20_000, marked=False, released=0
    )
    assert not refused
    world.cut_off(node)
    world.until(lambda: is_marked(world, node))
    assert world.now_ms >= until_ms
    assert world.switch().generation == 1


def test_a_mark_of_somebody_else_is_not_written_again() -> None:
    world, node = apart()
    life = world.agents[node].incarnation
    world.write(put(keys.lost(node, life), LostMark(node, life, "an earlier leader")))
    world.cut_off(node)
    world.until(lambda: world.switch().generation == 2)
    assert "node_suspected" not in world.done
