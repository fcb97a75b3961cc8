"""GPUs: given by UUID and to nobody else, left after a fault, and what a fault is told as."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.desired import (
    Assignment,
    Claims,
    Cordon,
    JobPhase,
    JobSwitch,
    LeaderToken,
    Placement,
    Plan,
)
from supervisor.contract.errors import InvariantBroken
from supervisor.contract.incident import Cause, Event, Outcome
from supervisor.contract.job.spec import (
    ContainerSpec,
    JobIntent,
    JobRecord,
    JobSpec,
    Packing,
    Resources,
    RestartPolicy,
    Scope,
    Strategy,
)
from supervisor.contract.observed import (
    AttemptState,
    Exit,
    ExitReason,
    Gpu,
    GpuAction,
    GpuHealth,
    Incarnation,
)
from supervisor.contract.timing import FAST
from supervisor.control.decide import invariants
from supervisor.control.decide.facts.standing import ENDED_AFTER
from supervisor.control.decide.jobs.prepare import find_places
from supervisor.control.decide.plan import Action, put
from supervisor.control.decide.reconcile import reconcile
from tests.control.world import World, waiting_for
from tests.support.builders import GIB, gpu, job_spec, report, role

NODES = ("n0", "n1", "n2")
ONE = Resources(gpus=1)


def spec(need: Resources = ONE, workers: int = 2, strategy: Strategy = Strategy.ASYNC) -> JobSpec:
    roles = (role("chief"), role("ps"), role("worker", workers, need))
    return job_spec(roles, strategy, restart=RestartPolicy(backoff_ms=0))


class Remembering(World):
    """One whose leader tells of what it does, and reads it again."""

    def run(self, action: Action, token: LeaderToken | None = None) -> bool:
        """One transaction, and the event that tells of it."""
        done = super().run(action, token)
        if done and action.text:
            event = Event(0, action.kind, action.job, action.text, dict(action.fields))
            self.write(put(keys.event(len(self.done)), event))
        return done


def world_of(job: JobSpec, gpus: int = 2, share: int = 1) -> World:
    """Three nodes with so many GPUs each."""
    world = Remembering(job)
    for node in NODES:
        held = codec.decode(Incarnation, world.store.read(keys.node(node))[0].value)
        world.write(put(keys.node(node), replace(held, resources=replace(held.resources, gpu_share=share))))
        world.see_gpus(node, *(gpu(node, index) for index in range(gpus)))
    return world


def given(world: World) -> dict[str, tuple[str, ...]]:
    """The GPUs of each member of the plan in force."""
    plan = world.job().plan_in_force
    assert plan is not None
    return {placement.member: placement.gpus for placement in plan.value.placements}


def assigned(world: World, member: str) -> Assignment:
    job = world.job()
    held = job.assigned(job.switch.value.plan_id, member)
    assert held is not None
    return held.value


def node_of(world: World, member: str) -> str:
    return assigned(world, member).node


def befall(world: World, uuid: str, action: GpuAction, fault: int = 1, *, own: bool = False) -> None:
    """A fault of one GPU, as the agent of its node tells it."""
    node = uuid.split("-")[1]
    health = GpuHealth.OK if action is GpuAction.RESTART_TASK else GpuHealth.FAULTY
    told = replace(gpu(node, int(uuid[-1])), health=health, action=action, fault=fault)
    reason = "XID 31: a page fault" if own else "XID 48: double bit error"
    told = replace(told, reason=reason, blames_program=own)
    world.see_gpus(node, *(told if index == told.index else gpu(node, index) for index in range(2)))


def another(world: World, gpus: tuple[str, ...], phase: JobPhase = JobPhase.RUNNING, share: int = 1) -> None:
    """A second job, whose one worker has these GPUs of n0."""
    job = replace(spec(Resources(gpus=len(gpus), gpu_share=share), 1), name="other")
    placed = Placement("worker", 0, "n0", "i0", gpus)
    world.write(
        put(keys.job_record("other"), JobRecord(job, "uuid2", 0)),
        put(keys.intent("other"), JobIntent()),
        put(keys.switch("other"), JobSwitch("other", "uuid2", phase, 1, "p")),
        put(keys.plan("other", "p"), Plan("other", "p", 1, "i", (placed,))),
    )


def places(world: World) -> dict[str, tuple[str, ...]]:
    found = find_places(world.snapshot(), world.job())
    assert not found.waiting_for, found.waiting_for
    return found.gpus


def why_not(world: World) -> str:
    return find_places(world.snapshot(), world.job()).waiting_for


def kinds(world: World) -> list[str]:
    return [each.kind for each in reconcile(world.snapshot()) if isinstance(each, Action)]


# Who gets which.


def test_each_task_gets_gpus_of_its_node_and_nobody_else_has_them() -> None:
    world = world_of(spec()).start()
    found = given(world)
    assert found["chief.0"] == found["ps.0"] == ()
    uuids = [uuid for gpus in found.values() for uuid in gpus]
    assert len(set(uuids)) == len(uuids) == 2
    for member in ("worker.0", "worker.1"):
        order = assigned(world, member)
        assert order.gpus == found[member]
        assert order.gpus[0].startswith(f"GPU-{order.node}-")
        assert order.gpu_faults == (0,)
        assert not order.gpus_shared
        assert world.running()[member].gpus == order.gpus


def test_a_restart_of_all_gives_the_same_ones_again() -> None:
    world = world_of(spec(strategy=Strategy.SYNC)).start()
    before = given(world)
    world.end_task("worker.0", signal=9)
    world.until(lambda: world.switch().generation == 2)
    assert given(world) == before


def test_what_another_job_has_is_not_given_again() -> None:
    world = world_of(spec(workers=6))
    assert len(set(places(world).values())) == 7, "six GPUs, and those without any"
    another(world, ("GPU-n0-1",))
    assert "digits/worker:5 needs 1 GPUs, 0 free (1 short)" in why_not(world)


@pytest.mark.parametrize("phase", [JobPhase.STOPPED, JobPhase.WAITING])
def test_what_a_job_had_before_it_ended_is_free_unless_somebody_may_be_alive(phase: JobPhase) -> None:
    world = world_of(spec(workers=6))
    another(world, ("GPU-n0-1",), phase)
    assert "0 free" in why_not(world), "its agent may have begun it before it saw the end"
    for _ in range(ENDED_AFTER):
        world.tick(FAST.d_ms, leader=False)
    assert places(world)
    left = replace(report("worker.0", job="other", node="n0", incarnation="i0"), gpus=("GPU-n0-1",))
    world.write(put(keys.attempt(left.attempt), left))
    assert "0 free" in why_not(world)
    unsure = Exit(ExitReason.KILLED, None, 9, 0, confirmed_dead=False)
    ended = replace(left, state=AttemptState.EXITED, exit=unsure)
    world.write(put(keys.attempt(left.attempt), ended))
    assert "0 free" in why_not(world), "rule 5: it is not confirmed dead"
    world.write(put(keys.attempt(left.attempt), replace(ended, exit=replace(unsure, confirmed_dead=True))))
    assert places(world)


def test_an_agent_that_killed_what_was_left_frees_it_and_one_that_took_over_does_not() -> None:
    world = world_of(spec(workers=6))
    left = replace(report("worker.0", job="other", node="n0", incarnation="i0"), gpus=("GPU-n0-1",))
    another(world, ("GPU-n0-1",), JobPhase.STOPPED)
    world.write(put(keys.attempt(left.attempt), left))
    world.register("n0", "i9", ("i0",))
    world.see_gpus("n0", gpu("n0", 0), gpu("n0", 1))
    assert "0 free" in why_not(world)
    world.register("n0", "i10")
    assert "4 free" not in why_not(world)
    world.see_gpus("n0", gpu("n0", 0), gpu("n0", 1))
    assert places(world)


def test_agents_of_one_machine_report_the_same_gpu_and_it_is_given_once() -> None:
    world = World(spec())
    for node in NODES:
        world.see_gpus(node, gpu("n0", 0))
    assert "digits/worker:1 needs 1 GPUs, 0 free (1 short)" in why_not(world)


def test_two_plans_that_give_the_same_gpu_cannot_both_be_made() -> None:
    world = world_of(spec())
    (first,) = [
        each for each in reconcile(world.snapshot()) if isinstance(each, Action) and each.kind == "prepare"
    ]
    world.write(put(keys.CLAIMS, Claims("another plan")))
    assert not world.run(first), "it was made without knowledge of the other"
    world.start()


def test_a_gpu_that_two_jobs_have_is_an_invariant_that_is_broken() -> None:
    world = world_of(spec()).start()
    taken = given(world)["worker.0"]
    another(world, taken, share=2)
    with pytest.raises(InvariantBroken, match=f"GPU {taken[0]} is given to .* \\(rule 5\\)"):
        reconcile(world.snapshot())


def test_a_generation_that_takes_over_a_shared_gpu_for_another_member_breaks_nothing() -> None:
    shared = Resources(gpus=1, gpu_share=2)
    world = world_of(spec(shared), share=2)
    another(world, ("GPU-n0-0",), share=2)
    placed = {"worker.0": ("GPU-n0-0",), "worker.1": ("GPU-n0-1",)}
    following = {"worker.0": ("GPU-n1-0",), "worker.1": ("GPU-n0-0",)}
    name = world.spec.name
    for plan_id, generation, gpus in (("p1", 1, placed), ("p2", 2, following)):
        placements = tuple(
            Placement("worker", index, gpus[f"worker.{index}"][0][4:6], "i0", gpus[f"worker.{index}"])
            for index in range(2)
        )
        world.write(put(keys.plan(name, plan_id), Plan(name, plan_id, generation, "i", placements)))
    world.write(put(keys.switch(name), JobSwitch(name, "uuid", JobPhase.RUNNING, 1, "p1")))
    invariants.check(world.snapshot())
    spoilt = Placement("worker", 2, "n0", "i0", ("GPU-n0-0",))
    held = world.job().plans["p2"].value
    world.write(put(keys.plan(name, "p2"), replace(held, placements=(*held.placements, spoilt))))
    with pytest.raises(InvariantBroken, match="GPU-n0-0"):
        invariants.check(world.snapshot())


def test_tasks_share_a_gpu_where_they_and_its_node_agree() -> None:
    job = spec(Resources(gpus=1, gpu_share=3), workers=6)
    assert len(set(places(world_of(job, gpus=1, share=2)).values())) == 4
    assert "0 free" in why_not(world_of(job, gpus=1, share=1))
    world = world_of(job, gpus=1, share=3).start()
    assert assigned(world, "worker.0").gpus_shared
    another(world, ("GPU-n0-0",))


def test_a_task_that_shares_is_not_put_beside_one_that_does_not() -> None:
    world = world_of(spec(Resources(gpus=1, gpu_share=2), workers=4), gpus=1, share=2)
    another(world, ("GPU-n0-0",))
    assert {uuid for gpus in places(world).values() for uuid in gpus} == {"GPU-n1-0", "GPU-n2-0"}


@pytest.mark.parametrize(
    ("need", "found"),
    [
        (Resources(gpus=1, gpu_memory_bytes=60 * GIB), "GPU-n1-1"),
        (Resources(gpus=1, gpu_model="a100"), "GPU-n2-0"),
        (Resources(gpus=1, gpu_indices=(3,)), "GPU-n0-3"),
        (Resources(gpus=1), "GPU-n0-3"),
    ],
)
def test_a_gpu_is_chosen_by_what_it_is(need: Resources, found: str) -> None:
    world = World(spec(need, workers=1))
    world.see_gpus("n0", gpu("n0", 3, 16 * GIB, "Tesla T4"))
    world.see_gpus("n1", gpu("n1", 0, 40 * GIB, "T4"), gpu("n1", 1, 80 * GIB, "NVIDIA H100"))
    world.see_gpus("n2", gpu("n2", 0, 40 * GIB, "NVIDIA A100"))
    assert places(world)["worker.0"] == (found,)


def _life(world: World, node: str) -> Incarnation:
    return codec.decode(Incarnation, world.store.read(keys.node(node))[0].value)


def test_what_nobody_has_is_told_with_its_kind() -> None:
    world = world_of(spec(Resources(gpus=2, gpu_model="B200", gpu_memory_bytes=90 * GIB)))
    assert "needs 2 GPUs named B200 with 90 GiB, 0 free (2 short)" in why_not(world)


def test_a_job_that_is_packed_fills_one_node_before_the_next() -> None:
    roomy = spec(workers=4)
    spread = {uuid.split("-")[1] for (uuid,) in list(places(world_of(roomy, gpus=4)).values())[2:]}
    packed = replace(roomy, packing=Packing.PACK)
    tight = {uuid.split("-")[1] for (uuid,) in list(places(world_of(packed, gpus=4)).values())[2:]}
    assert (len(spread), len(tight)) == (3, 1)


def test_a_container_goes_to_nodes_that_run_containers() -> None:
    world = World(replace(spec(Resources()), container=ContainerSpec("tf")))
    assert why_not(world) == "digits needs a node whose runtime is docker; none of 3 nodes has it"
    life = _life(world, "n1")
    world.write(put(keys.node("n1"), replace(life, resources=replace(life.resources, runtime="docker"))))
    assert {offer.node for offer in find_places(world.snapshot(), world.job()).placements.values()} == {"n1"}


# Faults.


@pytest.mark.parametrize("action", [GpuAction.RESET_GPU, GpuAction.CONTACT])
def test_a_gpu_that_is_broken_is_quarantined_and_its_task_goes_on_with_another(action: GpuAction) -> None:
    world = world_of(spec()).start()
    (bad,) = given(world)["worker.0"]
    node = node_of(world, "worker.0")
    befall(world, bad, action)
    world.until(lambda: world.switch().generation == 2)
    found = given(world)
    assert bad not in [uuid for gpus in found.values() for uuid in gpus]
    assert node_of(world, "worker.0") == node, "the node is not to blame, and has another"
    (incident,) = [each for each in world.incidents().values() if each.cause is Cause.GPU]
    assert incident.scope is Scope.ALL
    assert "XID 48" in incident.detail
    assert world.switch().ledger.program == 0
    assert world.switch().ledger.infrastructure > 0
    assert world.snapshot().nodes[node].cordon is None
    assert world.done.count("gpu_quarantined") == 1


def test_a_task_that_dies_of_its_gpu_is_not_charged_for_it() -> None:
    world = world_of(spec()).start()
    befall(world, given(world)["worker.0"][0], GpuAction.RESET_GPU)
    world.end_task("worker.0", code=1)
    world.until(lambda: world.switch().generation == 2)
    causes = {each.cause for each in world.incidents().values()}
    assert causes == {Cause.SUBMITTED, Cause.GPU}
    assert world.switch().ledger.program == 0


def test_without_another_gpu_the_job_trains_on_and_says_what_it_waits_for() -> None:
    world = world_of(spec(workers=6)).start()
    befall(world, "GPU-n1-0", GpuAction.RESET_GPU)
    for _ in range(40):
        world.tick()
    assert world.switch().generation == 1
    assert len(world.running()) == 8
    told = waiting_for(world.snapshot(), world.job())
    assert "needs 1 GPUs, 0 free (1 short) on the best node" in told
    assert "(GPUs that are not given: 1 quarantined on n1)" in told


def test_a_fault_that_asks_for_a_restart_restarts_its_task_alone_and_once() -> None:
    world = world_of(spec()).start()
    before = given(world)
    befall(world, before["worker.0"][0], GpuAction.RESTART_TASK)
    world.until(lambda: world.running()["worker.0"].number == 2)
    for _ in range(40):
        world.tick()
    assert world.running()["worker.0"].number == 2, "each fault once"
    assert world.running()["worker.1"].number == 1
    assert world.switch().generation == 1
    assert given(world) == before
    assert assigned(world, "worker.0").gpu_faults == (1,)
    world.new_leader()
    for _ in range(40):
        world.tick()
    assert world.running()["worker.0"].number == 2, "a new leader does not act on it again"
    befall(world, before["worker.0"][0], GpuAction.RESTART_TASK, fault=2)
    world.until(lambda: world.running()["worker.0"].number == 3)
    assert world.done.count("gpu_fault") == 2


def test_a_fault_that_asks_for_a_restart_restarts_all_where_one_cannot_be_alone() -> None:
    world = world_of(spec(strategy=Strategy.SYNC)).start()
    befall(world, given(world)["worker.0"][0], GpuAction.RESTART_TASK)
    world.until(lambda: world.switch().generation == 2)
    for _ in range(40):
        world.tick()
    assert world.switch().generation == 2


def crash(world: World, fault: int) -> None:
    """A program does on its GPU what kills its work there, a while after its start."""
    for _ in range(50):
        world.tick()
    befall(world, given(world)["worker.0"][0], GpuAction.RESTART_TASK, fault, own=True)


def until_attempt(world: World, number: int) -> None:
    """The task that has the GPU runs for the nth time."""
    world.until(lambda: "worker.0" in world.running() and world.running()["worker.0"].number == number)


@pytest.mark.parametrize(
    ("code", "signal", "cause"), [(1, None, Cause.PROGRAM_EXIT), (None, 6, Cause.PROGRAM_SIGNAL)]
)
def test_a_program_that_ends_of_what_it_did_on_its_gpu_is_charged_for_it(
    code: int | None, signal: int | None, cause: Cause
) -> None:
    world = world_of(spec()).start()
    crash(world, 1)
    world.end_task("worker.0", code=code, signal=signal)
    until_attempt(world, 2)
    assert {each.cause for each in world.incidents().values()} == {Cause.SUBMITTED, cause}
    assert world.switch().ledger.program == 1


def test_a_program_that_crashes_on_its_gpu_has_time_to_say_why() -> None:
    world = world_of(spec()).start()
    crash(world, 1)
    began_ms = world.now_ms
    while world.now_ms < began_ms + 4_800:
        world.tick()
    assert world.running()["worker.0"].number == 1
    until_attempt(world, 2)
    assert world.now_ms < began_ms + 6_000
    assert world.switch().ledger.program == 1


def test_a_program_that_goes_on_to_crash_on_its_gpu_has_no_more_time_to_say_why() -> None:
    """The agent counts a new fault as soon as 5 s are over since the last."""
    world = world_of(spec()).start()
    crash(world, 1)
    began_ms, fault = world.now_ms, 1
    while world.running()["worker.0"].number == 1 and world.now_ms < began_ms + 20_000:
        world.tick()
        if (world.now_ms - began_ms) // 2_000 >= fault:
            fault += 1
            befall(world, given(world)["worker.0"][0], GpuAction.RESTART_TASK, fault, own=True)
    assert world.now_ms < began_ms + 6_000
    until_attempt(world, 2)
    assert world.switch().ledger.program == 1

    crash(world, fault + 1)
    began_ms = world.now_ms
    while world.now_ms < began_ms + 4_800:
        world.tick()
    assert world.running()["worker.0"].number == 2, "its time counts from its own first crash"


def test_a_program_that_crashed_as_it_began_and_goes_on_is_charged() -> None:
    """Its first fault may be of the attempt before; those that follow are its own."""
    world = world_of(spec()).start()
    began_ms, fault = world.now_ms, 0
    while world.running()["worker.0"].number == 1 and world.now_ms < began_ms + 20_000:
        if (world.now_ms - began_ms) // 3_000 >= fault:
            fault += 1
            befall(world, given(world)["worker.0"][0], GpuAction.RESTART_TASK, fault, own=True)
        world.tick()
    until_attempt(world, 2)
    assert world.switch().ledger.program == 1


def test_a_program_that_crashes_on_one_gpu_after_the_other_has_no_more_time_to_say_why() -> None:
    world = world_of(spec(Resources(gpus=2), workers=1)).start()
    for _ in range(50):
        world.tick()
    node, began_ms = node_of(world, "worker.0"), world.now_ms
    for hurt in (1, 2):
        crashed = [
            replace(gpu(node, index), action=GpuAction.RESTART_TASK, fault=1, blames_program=True)
            for index in range(hurt)
        ]
        world.see_gpus(node, *crashed, *(gpu(node, index) for index in range(hurt, 2)))
        while world.now_ms < began_ms + 3_000:
            world.tick()
    until_attempt(world, 2)
    assert world.now_ms < began_ms + 6_000


def test_a_program_that_crashes_on_its_gpu_again_and_again_is_given_up() -> None:
    job = spec()
    world = world_of(replace(job, restart=RestartPolicy(max_restarts=2, backoff_ms=0))).start()
    for fault in (1, 2):
        crash(world, fault)
        until_attempt(world, fault + 1)
        assert world.switch().ledger.program == fault
    (first, _) = [each for each in world.incidents().values() if each.cause is Cause.PROGRAM_SIGNAL]
    assert "XID 31" in first.detail
    crash(world, 3)
    world.until(lambda: world.switch().phase is JobPhase.FAILED)


def test_what_its_predecessor_did_is_not_charged_to_the_next_attempt() -> None:
    world = world_of(spec()).start()
    world.end_task("worker.0", signal=6)
    until_attempt(world, 2)
    befall(world, given(world)["worker.0"][0], GpuAction.RESTART_TASK, own=True)
    until_attempt(world, 3)
    assert world.switch().ledger.program == 1


def test_a_fault_of_the_gpu_itself_counts_before_what_the_program_did() -> None:
    world = world_of(spec(Resources(gpus=2), workers=1)).start()
    for _ in range(50):
        world.tick()
    node = node_of(world, "worker.0")
    hurt = [replace(gpu(node, index), action=GpuAction.RESTART_TASK, fault=1) for index in range(2)]
    world.see_gpus(node, replace(hurt[0], blames_program=True), hurt[1])
    until_attempt(world, 2)
    assert world.switch().ledger.program == 0


def test_what_a_program_does_on_a_gpu_that_it_shares_ends_nobody_else() -> None:
    world = world_of(spec(Resources(gpus=1, gpu_share=2), workers=6), gpus=1, share=2).start()
    crash(world, 1)
    for _ in range(40):
        world.tick()
    assert {each.number for each in world.running().values()} == {1}
    world.end_task("worker.0", signal=6)
    until_attempt(world, 2)
    assert world.switch().ledger.program == 1


def test_a_report_that_is_renewed_does_not_prolong_the_pause() -> None:
    policy = RestartPolicy(backoff_ms=8_000, backoff_max_ms=8_000)
    world = world_of(replace(spec(), restart=policy)).start()
    crash(world, 1)
    until_attempt(world, 2)
    crash(world, 2)
    for memory in range(90):
        held = world.snapshot().nodes[node_of(world, "worker.0")].gpus
        assert held is not None
        grown = tuple(replace(each, memory_bytes=80 * GIB + memory) for each in held.value.gpus)
        world.write(put(held.key, replace(held.value, gpus=grown)))
        world.tick(100)
    assert world.running()["worker.0"].number == 3


def test_a_fault_that_asks_for_it_drains_the_node() -> None:
    world = world_of(spec()).start()
    node = node_of(world, "worker.0")
    befall(world, given(world)["worker.0"][0], GpuAction.DRAIN_NODE)
    world.until(lambda: world.switch().generation == 2)
    assert node not in {each.node for each in world.running().values()}
    cordon = world.snapshot().nodes[node].cordon
    assert cordon is not None
    assert cordon.value.drain
    assert "XID 48" in cordon.value.reason


def test_what_is_unknown_gets_no_new_task_and_keeps_those_that_it_has() -> None:
    world = world_of(spec()).start()
    world.write(
        *(
            put(keys.gpus(node), replace(held.value, gpus=tuple(_unknown(g) for g in held.value.gpus)))
            for node, picture in world.snapshot().nodes.items()
            if (held := picture.gpus) is not None
        )
    )
    for _ in range(40):
        world.tick()
    assert world.switch().generation == 1
    assert len(world.running()) == 4
    assert "2 unknown on n0, 2 unknown on n1, 2 unknown on n2)" in why_not(world)


def _unknown(one: Gpu) -> Gpu:
    return replace(one, health=GpuHealth.UNKNOWN, reason="NVML does not answer")


def test_a_gpu_that_is_split_is_not_given_whole() -> None:
    world = world_of(spec(), gpus=0)
    world.see_gpus("n0", replace(gpu("n0", 0), mig=True))
    assert "1 split by MIG on n0" in why_not(world)


def test_a_quarantine_outlives_its_leader_and_ends_with_a_boot() -> None:
    world = world_of(spec()).start()
    befall(world, "GPU-n0-0", GpuAction.RESET_GPU)
    world.until(lambda: "gpu_quarantined" in world.done)
    world.see_gpus("n0", gpu("n0", 0), gpu("n0", 1))
    world.new_leader()
    for _ in range(20):
        world.tick()
    assert world.snapshot().quarantines, "it looks well again, which proves nothing"
    world.register("n0", "i9", boot_id="another")
    world.until(lambda: not world.snapshot().quarantines)


def test_what_was_told_before_a_boot_does_not_count_after_it() -> None:
    world = world_of(spec()).start()
    befall(world, "GPU-n0-0", GpuAction.DRAIN_NODE)
    world.until(lambda: "gpu_quarantined" in world.done)
    world.register("n0", "i9", succeeds=("i0",), boot_id="another")
    for _ in range(20):
        world.tick()
    assert world.done.count("gpu_quarantined") == 1
    world.see_gpus("n0", gpu("n0", 0), gpu("n0", 1))
    world.until(lambda: not world.snapshot().quarantines)


def test_a_lifted_quarantine_is_for_that_fault_alone() -> None:
    world = world_of(spec()).start()
    befall(world, "GPU-n0-0", GpuAction.RESET_GPU)
    world.until(lambda: "gpu_quarantined" in world.done)
    (held,) = world.snapshot().quarantines.values()
    world.write(put(held.key, replace(held.value, lifted=True)))
    for _ in range(20):
        world.tick()
    assert world.done.count("gpu_quarantined") == 1
    assert "quarantined" not in why_not(world)
    befall(world, "GPU-n0-0", GpuAction.RESET_GPU, fault=2)
    world.until(lambda: world.done.count("gpu_quarantined") == 2)


def test_many_faults_of_one_kind_are_one_quarantine() -> None:
    world = world_of(spec()).start()
    for fault in range(1, 20):
        befall(world, "GPU-n0-0", GpuAction.RESET_GPU, fault)
        world.tick()
    assert world.done.count("gpu_quarantined") == 1


def test_a_plan_that_would_give_a_gpu_that_broke_meanwhile_is_given_up() -> None:
    world = world_of(spec(strategy=Strategy.SYNC)).start()
    world.agents["n0"].refuses = ""
    world.end_task("worker.0", signal=9)
    world.tick(leader=False)
    world.decide()
    plan = world.job().next_plan
    assert plan is not None
    (uuid,) = next(p.gpus for p in plan.value.placements if p.gpus)
    befall(world, uuid, GpuAction.RESET_GPU)
    world.until(lambda: world.switch().generation == 2)
    assert "plan_abandoned" in world.done
    assert uuid not in [each for gpus in given(world).values() for each in gpus]


# Drained nodes.


def drain(world: World, node: str) -> None:
    world.write(put(keys.cordon(node), Cordon(node, "new fans", drain=True)))


def test_the_tasks_of_a_drained_node_move_at_no_cost_to_the_budget() -> None:
    world = world_of(spec()).start()
    drain(world, "n1")
    world.until(lambda: world.switch().generation == 2)
    for _ in range(40):
        world.tick()
    assert "n1" not in {each.node for each in world.running().values()}
    assert world.switch().generation == 2
    (incident,) = [each for each in world.incidents().values() if each.cause is Cause.DRAINED]
    assert "new fans" in incident.detail
    assert world.switch().ledger.program == 0


def test_a_drained_node_keeps_its_tasks_until_there_is_room() -> None:
    world = world_of(spec(workers=6)).start()
    drain(world, "n1")
    for _ in range(40):
        world.tick()
    assert len(world.running()) == 8
    assert "needs 1 GPUs" in waiting_for(world.snapshot(), world.job())
    world.register("n3", "i3")
    world.see_gpus("n3", gpu("n3", 0), gpu("n3", 1))
    world.until(lambda: world.switch().generation == 2)
    assert "n1" not in {each.node for each in world.running().values()}


def test_a_drain_that_is_called_off_leaves_nothing_behind() -> None:
    world = world_of(spec()).start()
    for agent in world.agents.values():
        agent.acting = False
    drain(world, "n1")
    world.decide()
    assert world.job().next_plan is not None
    (held,) = [picture.cordon for picture in world.snapshot().nodes.values() if picture.cordon]
    world.write(Delete(held.key))
    for agent in world.agents.values():
        agent.acting = True
    for _ in range(20):
        world.tick()
    assert world.switch().generation == 1
    assert not [each for each in world.incidents().values() if each.cause is Cause.DRAINED]
    assert world.job().next_plan is None


def test_a_drain_that_is_called_off_as_its_generation_is_closed_leaves_no_incident_open() -> None:
    world = world_of(spec()).start()
    drain(world, "n1")
    world.until(lambda: world.switch().closing is not None)
    (incident,) = [each for each in world.incidents().values() if each.cause is Cause.DRAINED]
    assert incident.outcome is Outcome.OPEN
    (held,) = [picture.cordon for picture in world.snapshot().nodes.values() if picture.cordon]
    world.write(Delete(held.key))
    world.until(lambda: world.incidents()[incident.id].outcome is not Outcome.OPEN)
    assert world.incidents()[incident.id].outcome is Outcome.SUPERSEDED
    assert world.switch().generation == 1


def test_a_drain_that_is_called_off_after_its_plan_was_given_up_leaves_no_incident_open() -> None:
    world = world_of(spec()).start()
    drain(world, "n1")
    world.until(lambda: any(each.cause is Cause.DRAINED for each in world.incidents().values()))
    plan = world.job().next_plan
    assert plan is not None
    targets = {placement.node for placement in plan.value.placements}
    for node in targets:
        drain(world, node)
    world.until(lambda: world.job().next_plan is None)
    (incident,) = [each for each in world.incidents().values() if each.cause is Cause.DRAINED]
    assert incident.outcome is Outcome.OPEN
    for picture in world.snapshot().nodes.values():
        if picture.cordon is not None:
            world.write(Delete(picture.cordon.key))
    world.until(lambda: world.incidents()[incident.id].outcome is not Outcome.OPEN)
    assert world.incidents()[incident.id].outcome is Outcome.SUPERSEDED
    assert world.switch().generation == 1
