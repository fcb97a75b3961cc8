"""Rules of the leader that have no module of tests of their own: fencing, exact flips, no needless write."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import CheckpointStore, Delete, Put
from supervisor.contract.checkpoint import CheckpointRef, CommitRecord, CommitState
from supervisor.contract.desired import ClusterRecord, Cordon, JobPhase
from supervisor.contract.errors import Fenced, UserError
from supervisor.contract.job.spec import RestartPolicy, Wanted
from supervisor.contract.observed import Incarnation, StageFailure
from supervisor.contract.timing import FAST
from supervisor.control.decide.plan import Action, DeleteFiles, put
from supervisor.control.decide.reconcile import reconcile
from supervisor.control.loop.apply import Applied, Applier
from tests.control.world import World
from tests.support.builders import job_spec
from tests.support.sinks import ListSink


def decided(world: World, kind: str) -> Action:
    """The action of this kind that the leader would run now."""
    (action,) = [
        each for each in reconcile(world.snapshot()) if isinstance(each, Action) and each.kind == kind
    ]
    return action


def until_decided(world: World, kind: str) -> Action:
    """Let time pass until the leader would run such an action, and stop short of it."""
    for _ in range(1000):
        world.tick(leader=False)
        found = [each for each in reconcile(world.snapshot()) if isinstance(each, Action)]
        if any(each.kind == kind for each in found):
            return next(each for each in found if each.kind == kind)
        world.decide()
    raise AssertionError(f"never decided: {kind}")


def lose(world: World, member: str) -> str:
    """Power off at this member's node."""
    node = world.running()[member].node
    world.agents[node].acting = False
    return node


# Rule 1.


def test_a_healthy_job_writes_nothing() -> None:
    world = World().start()
    world.until(lambda: len(world.done) > 0 and not world.decide())
    before = world.store.revision
    for _ in range(200):
        world.tick()
    assert world.store.revision == before


# Rule 2: under the applier itself, which adds the token to whatever the pure leader decided.


class Hands:
    """An applier whose leader may be deposed."""

    def __init__(self) -> None:
        self.world = World()
        self.coordination = MemoryCoordination(self.world.store)
        self.files = MemoryCheckpointStore()
        self.applier = Applier(
            self.world.token, self.coordination, self.open_store, BootClock(), ListSink(), first_event=1
        )

    def open_store(self, _uri: str) -> CheckpointStore:
        return self.files


CLUSTER = Action("cluster", "", "", (), (put(keys.CLUSTER, ClusterRecord("c", "fast", FAST.d_ms)),))


async def test_a_deposed_leaders_writes_have_no_effect() -> None:
    hands = Hands()
    hands.world.new_leader()
    with pytest.raises(Fenced):
        await hands.applier.run(CLUSTER)
    assert not hands.world.store.read(keys.CLUSTER)


async def test_a_leader_in_force_writes() -> None:
    hands = Hands()
    assert await hands.applier.run(CLUSTER) is Applied.DONE
    assert hands.world.store.read(keys.CLUSTER)


async def test_a_deposed_leader_forgets_no_checkpoint() -> None:
    """Its record stays, for the leader in force to deal with."""
    hands = Hands()
    await hands.files.prepare()
    record = CommitRecord(
        "uuid", CheckpointRef(1, 10), None, "g1", 1, "00000000", "n0", "i0", 0, CommitState.COLLECTING
    )
    key = keys.commit("digits", record.ref)
    hands.world.write(put(key, record))
    (held,) = hands.world.store.read(key)
    hands.world.new_leader()
    await hands.applier.delete_files(DeleteFiles("digits", key, held.mod_revision, record, "file:///c"))
    assert hands.world.store.read(key)


async def test_files_that_cannot_be_deleted_are_told_of_and_tried_again() -> None:
    """The reason may be a full etcd, or a store that cannot be opened with its configuration."""
    hands = Hands()
    record = CommitRecord(
        "uuid", CheckpointRef(1, 10), None, "g1", 1, "00000000", "n0", "i0", 0, CommitState.COLLECTING
    )

    def misconfigured(_uri: str) -> CheckpointStore:
        raise UserError("core-site.xml has no nameservice ns1")

    sink = ListSink()
    applier = Applier(hands.world.token, hands.coordination, misconfigured, BootClock(), sink, first_event=1)
    await applier.delete_files(DeleteFiles("digits", "commits/digits/x", 1, record, "hdfs://ns1/c"))
    assert "nameservice ns1" in str(sink.lines)
    assert not applier.is_deleting("commits/digits/x")


# Rules 3 and 6: what a flip compares.


def test_a_flip_compares_the_mark_that_allows_it() -> None:
    world = World().start()
    node = lose(world, "worker.0")
    flip = until_decided(world, "flip")
    world.write(Delete(keys.lost(node, world.agents[node].incarnation)))
    assert not world.run(flip)


def test_a_flip_compares_that_no_appeal_has_come_unheard() -> None:
    """The leader's watch is late: it cannot know that the agent is alive."""
    world = World().start()
    node = lose(world, "worker.0")
    flip = until_decided(world, "flip")
    world.appeal(node, world.agents[node].incarnation)
    assert not world.run(flip)


def test_an_appeal_is_heard_before_any_flip_also_after_d() -> None:
    world = World().start()
    node = lose(world, "worker.0")
    until_decided(world, "flip")
    world.appeal(node, world.agents[node].incarnation)
    kinds = [each.kind for each in reconcile(world.snapshot()) if isinstance(each, Action)]
    assert "node_cleared" in kinds
    assert "flip" not in kinds


def test_a_flip_of_a_switch_that_was_reopened_is_stale() -> None:
    world = World().start()
    world.end_task("ps.0", signal=9)
    flip = until_decided(world, "flip")
    switch = world.switch()
    world.write(put(keys.switch("digits"), replace(switch, closing=None)))
    assert not world.run(flip)


def test_closing_compares_the_list_that_it_chose_the_base_from() -> None:
    world = World().start()
    world.commit(1, 100)
    world.end_task("ps.0", signal=9)
    close = until_decided(world, "close")
    world.commit(1, 200)
    assert not world.run(close)


def test_a_node_that_vanished_after_it_was_prepared_starts_nothing() -> None:
    world = World().start()
    world.end_task("ps.0", signal=9)
    flip = until_decided(world, "flip")
    world.write(Delete(keys.node(world.running()["worker.0"].node)))
    assert not world.run(flip)


def test_ports_of_attempts_that_may_live_are_avoided() -> None:
    world = World().start()
    ended = world.running()["worker.0"]
    world.end_task("worker.0", signal=9, confirmed=False)
    world.until(lambda: world.switch().generation == 2)
    port = int(ended.address.rpartition(":")[2])
    plan = world.switch().plan_id
    avoided = {
        held.value.node: held.value.avoid_ports
        for (plan_id, _), held in world.job().assignments.items()
        if plan_id == plan
    }
    assert port in avoided[ended.node]


def test_ports_that_an_attempt_may_know_are_avoided_though_who_had_them_is_dead_for_long() -> None:
    world = World().start()
    first = world.running()
    world.end_task("worker.0", signal=9, confirmed=False)
    world.until(lambda: world.switch().generation == 2)
    for _ in range(20):
        world.tick()
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 3)
    plan = world.switch().plan_id
    avoided = {
        held.value.node: held.value.avoid_ports
        for (plan_id, _), held in world.job().assignments.items()
        if plan_id == plan
    }
    for ended in first.values():
        assert int(ended.address.rpartition(":")[2]) in avoided[ended.node]


def test_the_addresses_of_a_generation_stay_while_one_of_its_attempts_may_be_alive() -> None:
    world = World().start()
    first, report = world.switch().plan_id, world.running()["worker.0"]
    world.end_task("worker.0", signal=9, confirmed=False)
    world.until(lambda: world.switch().generation == 2)
    for _ in range(20):
        world.tick()
    assert first in world.job().specs, "a task that never came to start is known by them alone"
    assert first not in world.job().plans
    held = world.job().attempts[report.attempt].value
    assert held.exit is not None
    world.write(
        put(keys.attempt(report.attempt), replace(held, exit=replace(held.exit, confirmed_dead=True)))
    )
    for _ in range(20):
        world.tick()
    assert first not in world.job().specs


def test_a_flip_is_charged_once_and_clears_away_what_it_replaced() -> None:
    world = World().start()
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    assert world.switch().ledger.infrastructure == 1
    for _ in range(20):
        world.tick()
    assert set(world.job().plans) == {world.switch().plan_id}
    assert {plan_id for plan_id, _ in world.job().assignments} == {world.switch().plan_id}


# Rule 8.


def test_nothing_older_is_restored_unasked_while_the_base_cannot_be_read() -> None:
    world = World().start()
    world.commit(1, 100)
    world.commit(1, 200)
    for agent in world.agents.values():
        agent.staging = StageFailure.UNKNOWN
    world.end_task("ps.0", signal=9)
    for _ in range(70):
        world.tick(10_000)
    assert world.switch().phase is JobPhase.FAILED
    assert "fallback" not in world.done


# Rule 7: success.


def test_success_waits_for_the_last_checkpoint_of_the_saver() -> None:
    world = World().start()
    saver = world.spec.saver.member
    world.agents[world.running()[saver].node].obedient = False  # it has not dealt with the checkpoint yet
    others = [each for each in ("chief.0", "worker.0", "worker.1") if each != saver]
    for member in (saver, *others):
        world.end_task(member, code=0)
    world.until(lambda: world.switch().phase is JobPhase.FINISHING)
    for report in list(world.running().values()):
        world.end_task(f"{report.role}.{report.index}", signal=9)
    took = world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    assert took >= FAST.commit_deadline_ms
    assert "warning" in world.switch().reason


# Rule 9.


def test_a_checkpoint_is_marked_before_its_files_go() -> None:
    world = World().start()
    for step in range(10):
        world.commit(1, step * 10)
    marked = decided(world, "checkpoint_collecting")
    world.commit(1, 100)
    assert not world.run(marked), "the list has changed since"
    assert not [each for each in reconcile(world.snapshot()) if isinstance(each, DeleteFiles)]


# Rule 10.


def test_nothing_new_is_placed_on_a_cordoned_node() -> None:
    world = World().start()
    node = world.running()["ps.0"].node
    world.write(put(keys.cordon(node), Cordon(node, "by hand")))
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().generation == 2 and len(world.running()) == 4)
    assert node not in {report.node for report in world.running().values()}


def test_obedience_is_timed_from_the_flip_and_not_from_its_preparation() -> None:
    """A base may take minutes to stage: whoever ran on meanwhile has only just been told to stop."""
    world = World().start()
    world.commit(1, 100)
    for agent in world.agents.values():
        agent.staging = StageFailure.UNKNOWN
    world.end_task("ps.0", signal=9)
    for _ in range(30):
        world.tick(1000)
    for agent in world.agents.values():
        agent.staging = None
    assert world.run(until_decided(world, "flip"))
    world.decide()
    assert "node_cordoned" not in world.done


def test_an_agent_that_does_not_obey_an_operators_stop_is_given_up() -> None:
    world = World().start()
    node = world.running()["worker.0"].node
    world.agents[node].obedient = False
    world.intend(wanted=Wanted.STOP)
    world.until(lambda: world.snapshot().nodes[node].cordon is not None)
    assert world.snapshot().nodes[node].marks[world.agents[node].incarnation].value.final


def test_an_agent_that_obeys_at_the_last_moment_is_not_given_up() -> None:
    world = World().start()
    ended = world.running()["worker.0"]
    world.agents[ended.node].obedient = False
    world.intend(wanted=Wanted.STOP)
    cordon = until_decided(world, "node_cordoned")
    world.write(Delete(keys.attempt(ended.attempt)))
    assert not world.run(cordon)


# Rule 11, as far as D goes.


def test_the_leader_waits_the_larger_d() -> None:
    world = World().start()
    node = world.running()["worker.0"].node
    (held,) = world.store.read(keys.node(node))
    slow = replace(codec.decode(Incarnation, held.value), d_ms=3 * FAST.d_ms)
    world.write(Put(keys.node(node), codec.encode(slow)))
    lose(world, "worker.0")
    took = world.until(lambda: world.switch().generation == 2)
    assert took >= 3 * FAST.d_ms


# Rule 12.


def test_generations_start_above_all_that_were_ever_seen() -> None:
    world = World()
    (held,) = world.store.read(keys.job_record("digits"))
    record = world.job().record.value
    assert held.value
    world.write(put(keys.job_record("digits"), replace(record, generation_floor=41)))
    world.start()
    assert world.switch().generation == 42


# Rule 13.


def test_the_second_fault_in_a_row_waits_for_its_back_off() -> None:
    world = World(job_spec(restart=RestartPolicy(max_restarts=3, backoff_ms=2000))).start()
    world.end_task("worker.0", code=1)
    world.until(lambda: "worker.0" in world.running())
    world.end_task("worker.0", code=1)
    assert world.until(lambda: "worker.0" in world.running()) >= 2000


def test_a_new_leader_keeps_the_story() -> None:
    """Causes, rules and outcomes are in etcd: a leader that knows nothing shows the same."""
    world = World().start()
    world.end_task("worker.0", signal=9)
    world.until(lambda: "worker.0" in world.running() and world.running()["worker.0"].number == 2)
    before = {name: (each.cause, each.rule, each.scope) for name, each in world.incidents().items()}
    world.new_leader()
    after = {name: (each.cause, each.rule, each.scope) for name, each in world.incidents().items()}
    assert after == before
    assert len(before) == 2
