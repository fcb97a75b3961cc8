"""CPUs, memory and GPUs: no plan is made that gives a node more than it offers, whoever else is placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from hypothesis import example, given, settings
from hypothesis import strategies as st

from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.clock import BootClock
from supervisor.adapters.etcd.memory import MemoryCoordination
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Compare, Delete, Op, Put, TxnResult
from supervisor.contract.desired import Claims, Cordon, JobPhase, JobSwitch, Placement, Plan
from supervisor.contract.errors import Unreachable
from supervisor.contract.job.spec import JobIntent, JobRecord, JobSpec, Resources, Wanted
from supervisor.contract.observed import Exit, ExitReason, Incarnation
from supervisor.control.decide.jobs.prepare import MOST_PLANS
from supervisor.control.decide.plan import Action, Decision, put
from supervisor.control.decide.reconcile import reconcile
from supervisor.control.decide.snapshot import Snapshot
from supervisor.control.loop.apply import Applied, Applier
from tests.control.world import World, waiting_for
from tests.support.builders import GIB, job_spec, resources, role
from tests.support.sinks import ListSink

ALL = resources(cpus=4)
"""Of one of a world's nodes."""


def one_task(name: str, need: Resources = ALL) -> JobSpec:
    return job_spec((role("worker", 1, need),), name=name)


def submitted(spec: JobSpec) -> tuple[Op, ...]:
    """A second job beside the world's own."""
    return (
        put(keys.job_record(spec.name), JobRecord(spec, f"uuid-{spec.name}", 0)),
        put(keys.intent(spec.name), JobIntent()),
        put(keys.switch(spec.name), JobSwitch(spec.name, f"uuid-{spec.name}", JobPhase.WAITING, 0)),
    )


def world_of(*specs: JobSpec, nodes: int = 1) -> World:
    """A world with these jobs, submitted in this order, none of them placed yet."""
    world = World(specs[0], nodes=nodes)
    for spec in specs[1:]:
        world.write(*submitted(spec))
    world.tick(leader=False)
    return world


def prepares(snap: Snapshot) -> list[Action]:
    return [each for each in reconcile(snap) if isinstance(each, Action) and each.kind == "prepare"]


def plans(snap: Snapshot) -> dict[str, Plan]:
    """The plan of each job that has one, in force or in preparation."""
    held = {name: job.next_plan or job.plan_in_force for name, job in snap.jobs.items()}
    return {name: plan.value for name, plan in held.items() if plan is not None}


def shrink(world: World, node: str, cpus: float) -> None:
    """Its agent comes back with another configuration; it takes over what runs."""
    life = codec.decode(Incarnation, world.store.read(keys.node(node))[0].value)
    world.write(put(keys.node(node), replace(life, resources=replace(life.resources, cpus=cpus))))


def kill_attempts(world: World, job: str) -> None:
    for held in world.snapshot().jobs[job].attempts.values():
        world._exited(held.value, Exit(ExitReason.KILLED, None, 9, 0, confirmed_dead=True))


# One look.


def test_two_jobs_that_wait_for_the_same_room_are_not_both_given_it() -> None:
    world = world_of(one_task("first"), one_task("second"))
    (only,) = prepares(world.snapshot())
    assert only.job == "first"
    world.decide()
    snap = world.snapshot()
    assert set(plans(snap)) == {"first"}
    assert "worker:0 needs 4 CPUs, 0 free (4 short)" in waiting_for(snap, snap.jobs["second"])


def test_two_jobs_that_wait_while_one_fills_the_node_are_started_one_after_the_other() -> None:
    world = world_of(one_task("filling"))
    world.start()
    world.write(*submitted(one_task("b")))
    world.write(*submitted(one_task("a")))
    world.tick()
    assert set(plans(world.snapshot())) == {"filling"}
    world.intend(Wanted.STOP)
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    world.until(lambda: len(plans(world.snapshot())) == 2)
    for _ in range(20):
        world.tick()
    assert set(plans(world.snapshot())) == {"filling", "b"}, "b was submitted first"
    assert not prepares(world.snapshot())


def test_memory_is_claimed_like_cpus() -> None:
    half = resources(memory=5 * GIB)
    world = world_of(one_task("first", half), one_task("second", half))
    assert [each.job for each in prepares(world.snapshot())] == ["first"]


def test_jobs_that_fit_together_are_placed_in_one_look_and_know_of_each_other() -> None:
    half = resources(cpus=2)
    world = world_of(*(one_task(name, half) for name in "abc"), nodes=2)
    found = [each.places for each in prepares(world.snapshot())]
    nodes = [plan.placements[0].node for plan in found if plan is not None]
    assert sorted(nodes) in (["n0", "n0", "n1"], ["n0", "n1", "n1"])


def test_what_asks_for_nothing_waits_for_nobody_and_claims_nothing() -> None:
    world = world_of(one_task("free", resources()), one_task("full"), one_task("idle", resources()))
    found = prepares(world.snapshot())
    assert [each.job for each in found] == ["free", "full", "idle"]
    claimed = [any(isinstance(op, Put) and op.key == keys.CLAIMS for op in each.ops) for each in found]
    assert claimed == [False, True, False]


def test_a_look_makes_so_many_plans_and_the_next_one_the_rest() -> None:
    world = world_of(*(one_task(f"job{number:02}", resources(cpus=0.01)) for number in range(MOST_PLANS + 2)))
    made = prepares(world.snapshot())
    assert [each.job for each in made] == [f"job{number:02}" for number in range(MOST_PLANS)]
    world.write(*(op for each in made for op in each.ops))
    assert len(prepares(world.snapshot())) == 2


# What is claimed.


def test_a_job_that_waits_to_begin_again_keeps_no_room_from_others() -> None:
    world = world_of(one_task("digits"))
    world.start()
    world.intend(Wanted.STOP)
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    world.write(put(keys.switch("digits"), replace(world.switch(), phase=JobPhase.WAITING)))
    world.write(put(keys.cordon("n0"), Cordon("n0", "no start yet")))
    world.write(*submitted(one_task("other")))
    world.register("n1", "i1")
    snap = world.snapshot()
    assert not waiting_for(snap, snap.jobs["other"])


def test_an_attempt_that_may_be_alive_holds_what_it_asked_for_though_its_job_has_ended() -> None:
    world = world_of(one_task("digits"))
    world.start()
    alive = world.running()["worker.0"]
    world.write(put(keys.switch("digits"), replace(world.switch(), phase=JobPhase.STOPPED)))
    world.intend(Wanted.STOP)
    world.write(*submitted(one_task("other")))
    assert not prepares(world.snapshot())
    world._exited(alive, Exit(ExitReason.KILLED, None, 9, 0, confirmed_dead=False))
    assert not prepares(world.snapshot()), "something that it started may be alive"
    world._exited(alive, Exit(ExitReason.KILLED, None, 9, 0, confirmed_dead=True))
    assert [each.job for each in prepares(world.snapshot())] == ["other"]


def test_an_agent_that_took_over_nothing_frees_what_attempts_held_and_one_that_did_does_not() -> None:
    for succeeds, placed in (((), ["other"]), (("i0",), [])):
        world = world_of(one_task("digits"))
        world.start()
        world.write(put(keys.switch("digits"), replace(world.switch(), phase=JobPhase.STOPPED)))
        world.intend(Wanted.STOP)
        world.write(*submitted(one_task("other")))
        world.register("n0", "i9", succeeds)
        assert [each.job for each in prepares(world.snapshot())] == placed


def test_a_new_leader_finds_the_same_claims() -> None:
    world = world_of(one_task("digits"))
    world.start()
    world.write(*submitted(one_task("other")))
    world.new_leader()
    world.tick(leader=False)
    snap = world.snapshot()
    assert "0 free" in waiting_for(snap, snap.jobs["other"])
    assert not prepares(snap)


def test_the_next_generation_of_a_job_takes_over_its_own_room() -> None:
    world = world_of(one_task("digits"), one_task("other"))
    world.start()
    world.intend(serial=1)
    world.until(lambda: world.switch().generation == 2)
    assert set(plans(world.snapshot())) == {"digits"}


def test_nothing_new_is_added_to_a_node_that_offers_less_than_is_claimed_there() -> None:
    world = world_of(one_task("digits"))
    world.start()
    shrink(world, "n0", 1)
    world.write(*submitted(one_task("other", resources(cpus=1))))
    world.write(*submitted(one_task("idle", resources())))
    world.tick(leader=False)
    assert [each.job for each in prepares(world.snapshot())] == ["idle"]
    assert "worker.0" in world.running(), "what runs there goes on"


def test_a_follower_moves_to_where_those_of_its_job_leave_room() -> None:
    """Before, it was given a place that was free only if its job's worker moved, too."""
    evaluator = role("evaluator", 1, resources(cpus=4), follow=True)
    world = World(job_spec((role("worker", 1, resources(cpus=2)), evaluator)), nodes=3).start()
    assert (world.node_of("evaluator.0"), world.node_of("worker.0")) == ("n0", "n1")
    placed = Plan("other", "p", 1, "", (Placement("worker", 0, "n2", "i2"),))
    running = JobSwitch("other", "uuid-other", JobPhase.RUNNING, 1, "p")
    *ops, _ = submitted(one_task("other", resources(cpus=2)))
    world.write(*ops, put(keys.switch("other"), running), put(keys.plan("other", "p"), placed))
    world.switch_off("n0")
    world.until(lambda: bool(world.snapshot().nodes["n0"].marks))
    for _ in range(200):
        world.tick()
    assert "moved" not in world.done
    world.register("n3", "i3")
    world.until(lambda: "moved" in world.done)
    plan = world.job().plan_in_force
    assert plan is not None
    assert {each.member: each.node for each in plan.value.placements} == {
        "worker.0": "n1",
        "evaluator.0": "n3",
    }


# What is made, with etcd in between.


def test_a_plan_that_takes_effect_late_is_not_made_beside_another() -> None:
    world = world_of(one_task("first"), one_task("second"))
    waiting = world.switch()
    world.write(put(keys.switch("first"), replace(waiting, phase=JobPhase.STOPPED)))
    (late,) = prepares(world.snapshot())
    assert late.job == "second"
    world.write(put(keys.switch("first"), waiting))
    (other,) = prepares(world.snapshot())
    assert other.job == "first"
    assert world.run(other)
    assert not world.run(late), "it was decided on without knowledge of the other"


def is_plan(decision: Decision) -> TypeGuard[Action]:
    return isinstance(decision, Action) and decision.kind == "prepare"


class Losing(MemoryCoordination):
    """The next answer is lost, if told so."""

    loses = False

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        """It takes effect in any case."""
        result = await super().txn(compares, then, otherwise)
        loses, self.loses = self.loses, False
        if loses:
            raise Unreachable("no answer")
        return result


class Deciding:
    """A leader's applier over the world's etcd."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.coordination = Losing(world.store)
        self.applier = Applier(
            world.token, self.coordination, lambda _: MemoryCheckpointStore(), BootClock(), ListSink(), 1
        )

    async def look(self) -> list[Applied]:
        found = [each for each in reconcile(self.world.snapshot()) if isinstance(each, Action)]
        return await self.applier.run_all([each for each in found if each.kind == "prepare"])


async def test_what_one_look_places_is_made_in_turn() -> None:
    world = world_of(*(one_task(name, resources(cpus=2)) for name in "abcd"), nodes=2)
    assert await Deciding(world).look() == [Applied.DONE] * 4
    assert set(plans(world.snapshot())) == set("abcd")


async def test_one_that_is_stale_does_not_keep_those_behind_it_from_being_placed() -> None:
    world = world_of(*(one_task(name, resources(cpus=2)) for name in "abc"), nodes=2)
    deciding, picture = Deciding(world), world.snapshot()
    found = [each for each in reconcile(picture) if is_plan(each)]
    world.intend(Wanted.STOP)
    assert await deciding.applier.run_all(found) == [Applied.STALE, Applied.DONE, Applied.DONE]
    assert set(plans(world.snapshot())) == {"b", "c"}


async def test_a_stale_move_keeps_those_behind_it_from_the_room_that_it_did_not_leave() -> None:
    world = world_of(*(one_task(name, resources(cpus=2)) for name in "abc"), nodes=2)
    first, *others = [each for each in reconcile(world.snapshot()) if is_plan(each)]
    world.intend(Wanted.STOP)
    assert await Deciding(world).applier.run_all([replace(first, kind="moved"), *others]) == [Applied.STALE]
    assert not plans(world.snapshot())


async def test_after_claims_that_another_has_made_nothing_of_the_look_is_placed() -> None:
    world = world_of(*(one_task(name) for name in "abc"), nodes=2)
    found = [each for each in reconcile(world.snapshot()) if is_plan(each)]
    world.write(put(keys.CLAIMS, Claims("another plan")))
    assert await Deciding(world).applier.run_all(found) == [Applied.STALE] * 2
    assert not plans(world.snapshot())


async def test_a_lost_answer_ends_the_turn_and_the_next_look_goes_on() -> None:
    world = world_of(*(one_task(name, resources(cpus=2)) for name in "abc"), nodes=2)
    deciding = Deciding(world)
    deciding.coordination.loses = True
    assert await deciding.look() == [Applied.UNKNOWN]
    assert set(plans(world.snapshot())) == {"a"}
    assert await deciding.look() == [Applied.DONE] * 2
    assert set(plans(world.snapshot())) == set("abc")


# Any order of events.


@dataclass
class Sums:
    """The claims of plans, computed a second way: of each job the largest of its plans counts."""

    world: World
    late: list[tuple[Action, dict[str, float]]] = field(default_factory=list)

    def offered(self) -> dict[str, float]:
        nodes = self.world.snapshot().nodes.values()
        return {each.node: each.incarnation.value.resources.cpus for each in nodes if each.incarnation}

    def claimed(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for job in self.world.snapshot().jobs.values():
            switch, spec, most = job.switch.value, job.record.value.spec, dict[str, float]()
            if switch.phase.ended:
                continue
            for held in job.plans.values():
                ahead = held.value.generation > switch.generation
                in_force = held.value.plan_id == switch.plan_id and switch.phase is not JobPhase.WAITING
                mine: dict[str, float] = {}
                for placement in held.value.placements if ahead or in_force else ():
                    need = spec.role(placement.role).resources.cpus
                    mine[placement.node] = mine.get(placement.node, 0) + need
                most = {node: max(most.get(node, 0), mine.get(node, 0)) for node in most | mine}
            for node, cpus in most.items():
                total[node] = total.get(node, 0) + cpus
        return total

    def look(self, delayed: int) -> None:
        """The leader looks. One of its plans, by number, is late; those after it are not sent."""
        offered = self.offered()
        decided = [each for each in reconcile(self.world.snapshot()) if isinstance(each, Action)]
        placing = [each for each in decided if each.places is not None]
        self.late += [(action, offered) for action in placing[delayed : delayed + 1]]
        for action in decided:
            if action not in placing[delayed:]:
                self.commit(action, offered)

    def arrive(self) -> None:
        """The oldest of those that are late."""
        if self.late:
            self.commit(*self.late.pop(0))

    def commit(self, action: Action, offered: dict[str, float]) -> None:
        before = self.claimed()
        if self.world.run(action) and action.places is not None:
            for node, cpus in self.claimed().items():
                assert cpus <= max(offered.get(node, 0), before.get(node, 0)), (node, cpus, action)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["look", "look elsewhere"]), st.sampled_from([0, 1, 8, 9])),
        st.tuples(st.sampled_from(["arrive", "act", "leader"]), st.just(0)),
        st.tuples(st.sampled_from(["submit", "stop", "restart", "shrink", "drain"]), st.integers(0, 3)),
    ),
    min_size=4,
    max_size=30,
)
NEEDS = st.sampled_from([0.0, 1.0, 2.0, 4.0, 4.0])


@example([4.0, 1.0, 4.0, 1.0], [("look", 0), ("look elsewhere", 8), ("look", 9), ("arrive", 0)])
@settings(max_examples=150, deadline=None)
@given(needs=st.lists(NEEDS, min_size=4, max_size=4), events=EVENTS)
def test_no_order_of_events_overcommits_a_node(needs: list[float], events: list[tuple[str, int]]) -> None:
    specs = [
        job_spec((role("worker", 1 + index % 2, resources(cpus=need)),), name=f"job{index}")
        for index, need in enumerate(needs)
    ]
    world = world_of(*specs[:3], nodes=2)
    sums = Sums(world)
    for index, (kind, pick) in enumerate(events):
        name = specs[pick % 4].name
        known = name in world.snapshot().jobs
        match kind:
            case "look":
                sums.look(pick)
            case "look elsewhere":
                cordon = keys.cordon(f"n{pick % 2}")
                world.write(put(cordon, Cordon(f"n{pick % 2}", "not now")))
                sums.look(pick)
                world.write(Delete(cordon))
            case "arrive":
                sums.arrive()
            case "act":
                world.tick(leader=False)
            case "leader":
                world.new_leader()
                world.tick(leader=False)
            case "submit" if not known:
                world.write(*submitted(specs[pick % 4]))
            case "stop" if known:
                world.write(put(keys.intent(name), JobIntent(Wanted.STOP)))
            case "restart" if known:
                world.write(put(keys.intent(name), JobIntent(Wanted.RUN, index + 1)))
            case "shrink":
                shrink(world, f"n{pick % 2}", 4 - pick)
            case "drain":
                world.write(put(keys.cordon(f"n{pick % 2}"), Cordon(f"n{pick % 2}", "", drain=True)))
            case _:
                pass
