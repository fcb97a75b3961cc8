"""Pauses of the cluster and of jobs: nothing is restarted or moved, all else goes on (rule 6.14)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import pytest

from supervisor.api.views import cluster_status, job_view
from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import Cordon, JobPhase
from supervisor.contract.errors import UserError
from supervisor.contract.incident import Outcome
from supervisor.contract.job.pause import Pause
from supervisor.contract.job.spec import JobIntent, Wanted
from supervisor.contract.timing import FAST
from supervisor.contract.views.jobs import SubmitMode, SubmitRequest
from supervisor.control.decide.plan import put
from supervisor.control.services.jobs import JobService
from tests.control.leader import Leader, other_job
from tests.control.world import Telling, World
from tests.support.builders import job_spec

PAUSE = Pause(by="user:olga", reason="new switches")


def pause(world: World, of: str) -> None:
    """Pause the cluster, or the job."""
    job = world.snapshot().jobs.get(world.spec.name)
    if of == "cluster":
        world.write(put(keys.PAUSE, PAUSE))
    else:
        assert job is not None
        world.write(put(job.intent.key, replace(job.intent.value, paused=PAUSE)))
    world.done.clear()


def resume(world: World) -> None:
    """End both pauses."""
    job = world.job()
    world.write(
        put(keys.PAUSE, replace(PAUSE, in_force=False)),
        put(job.intent.key, replace(job.intent.value, paused=None)),
    )


def is_in(world: World, phase: JobPhase) -> bool:
    return world.switch().phase is phase


@pytest.mark.parametrize("of", ["cluster", "job"])
def test_a_task_that_ends_during_a_pause_is_noted_and_restarts_after_it(of: str) -> None:
    world = Telling().start()
    pause(world, of)
    world.end_task("worker.0", code=1)
    world.let_pass(20_000)
    assert world.has_started_nothing()
    view = job_view(world.snapshot(), world.job())
    assert view.waiting_for == view.paused
    assert view.paused == "paused by user:olga: new switches"
    told = [held.value for held in world.job().events if held.value.kind == "held"]
    assert [each.fields["cause"] for each in told] == ["program_exit"], "it is told once"
    resume(world)
    world.until(lambda: "worker.0" in world.running())


@pytest.mark.parametrize("of", ["cluster", "job"])
def test_during_a_pause_a_lost_node_is_declared_lost_and_its_tasks_stay(of: str) -> None:
    world = Telling().start()
    world.commit(1, 100)
    pause(world, of)
    node = world.lose("chief.0")
    world.let_pass(5 * FAST.d_ms)
    assert world.snapshot().nodes[node].marks
    assert world.has_started_nothing()
    assert not world.to_switch_off, "nothing is to be replaced"
    world.new_leader()
    world.let_pass(5 * FAST.d_ms)
    assert world.has_started_nothing(), "the pause outlives the leader"
    resume(world)
    world.until(lambda: world.switch().generation == 2)


def test_without_a_pause_the_machine_of_a_lost_node_would_be_switched_off() -> None:
    world = World().start()
    world.lose("chief.0")
    world.until(lambda: bool(world.to_switch_off))


@pytest.mark.parametrize("of", ["cluster", "job"])
def test_a_pause_reopens_a_switch_that_is_closed_for_commits(of: str) -> None:
    world = World().start()
    world.commit(1, 100)
    for agent in world.agents.values():
        agent.stages = False
    world.end_task("ps.0", signal=9)
    world.until(lambda: world.switch().closing is not None)
    pause(world, of)
    world.let_pass(200)
    assert world.switch().closing is None
    assert world.job().next_plan is None
    for agent in world.agents.values():
        agent.stages = True
    resume(world)
    world.until(lambda: world.switch().generation == 2)
    assert world.switch().base == CheckpointRef(1, 100)


@pytest.mark.parametrize("of", ["cluster", "job"])
def test_a_restart_that_was_decided_before_the_pause_has_no_effect(of: str) -> None:
    world = World().start()
    world.end_task("worker.0", code=1)
    world.now_ms += 10_000
    action = world.next_action("restart_in_place")
    pause(world, of)
    assert not world.run(action)
    resume(world)
    world.until(lambda: "worker.0" in world.running())


def test_a_job_that_is_submitted_during_a_pause_waits_and_says_why() -> None:
    world = World()
    pause(world, "cluster")
    world.let_pass(5_000)
    assert world.switch().phase is JobPhase.WAITING
    assert "paused by user:olga" in job_view(world.snapshot(), world.job()).waiting_for
    resume(world)
    world.until(lambda: world.switch().phase is JobPhase.RUNNING)


@pytest.mark.parametrize("of", ["cluster", "job"])
def test_during_a_pause_training_ends_well_and_an_operator_can_stop_it(of: str) -> None:
    for stops in (False, True):
        world = World().start()
        pause(world, of)
        if stops:
            intent = world.job().intent.value
            world.write(put(keys.intent("digits"), replace(intent, wanted=Wanted.STOP)))
        else:
            for member in ("chief.0", "worker.0", "worker.1"):
                world.end_task(member, code=0)
        ended = JobPhase.STOPPED if stops else JobPhase.SUCCEEDED
        world.until(partial(is_in, world, ended))


def test_a_pause_of_one_job_holds_no_other() -> None:
    world = World()
    other = JobIntent(paused=PAUSE)
    world.write(put(keys.intent("another"), other))
    world.start()
    world.end_task("worker.0", code=1)
    world.until(lambda: "worker.0" in world.running())


def test_the_budget_is_not_charged_and_the_job_does_not_fail_during_a_pause() -> None:
    spec = job_spec()
    world = World(replace(spec, restart=replace(spec.restart, max_restarts=0))).start()
    pause(world, "cluster")
    world.end_task("worker.0", code=1)
    world.let_pass(10_000)
    assert world.switch().phase is JobPhase.RUNNING
    resume(world)
    world.until(lambda: world.switch().phase is JobPhase.FAILED)


async def test_an_operator_pauses_and_resumes_the_cluster_and_a_job() -> None:
    leader = Leader()
    world, service = leader.world.start(), leader.job_service
    assert (await service.pauses.pause("new switches")).detail.startswith("nothing is restarted or moved")
    assert "already" in (await service.pauses.pause("again")).detail
    assert "new switches" in cluster_status(world.snapshot(), "c", None, ()).paused
    assert "it waits: paused by" in (await service.restart("digits")).detail
    assert "but all jobs are held" in (await service.pauses.resume_job("digits")).detail
    assert (await service.pauses.resume()).detail.startswith("all jobs go on")
    assert "not paused" in (await service.pauses.resume()).detail
    assert not cluster_status(world.snapshot(), "c", None, ()).paused
    assert (await service.pauses.resume_job("digits")).detail == "it is not paused"
    await service.pauses.pause_job("digits", "")
    assert "already" in (await service.pauses.pause_job("digits", "")).detail
    assert job_view(world.snapshot(), world.job()).paused == "paused by an operator"
    await service.restart("digits")
    assert world.job().intent.value.paused is not None, "a wish to restart it ends no pause"
    assert (await service.pauses.resume_job("digits")).detail == "it goes on"


async def test_a_reason_of_any_length_that_is_taken_fits_the_record() -> None:
    leader = Leader()
    service: JobService = leader.job_service
    leader.world.start()
    asks: tuple[Callable[[str], Awaitable[object]], ...] = (
        service.pauses.pause,
        lambda reason: service.pauses.pause_job("digits", reason),
    )
    for ask in asks:
        with pytest.raises(UserError, match="at most 500"):
            await ask("x" * 501)
        await ask("\N{SNOWMAN}" * 500)


async def test_a_submit_says_that_it_waits() -> None:
    leader = Leader()
    await leader.job_service.pauses.pause("")
    answer = await leader.job_service.submissions.submit(SubmitRequest(other_job()))
    assert "it waits: paused by" in answer.detail


async def test_the_pause_of_a_job_stays_when_it_ends_and_is_submitted_again() -> None:
    leader = Leader()
    world, service = leader.world.start(), leader.job_service
    await service.pauses.pause_job("digits", "mine")
    assert "; it waits: paused by an operator: mine" in (await service.scale("digits", {"worker": 3})).detail
    await service.stop("digits")
    world.until(lambda: is_in(world, JobPhase.STOPPED))
    assert job_view(world.snapshot(), world.job()).paused == "paused by an operator: mine"
    answer = await service.submissions.submit(SubmitRequest(world.spec, SubmitMode.RESUME))
    assert "; it waits: paused by an operator: mine" in answer.detail
    world.let_pass(2_000)
    assert is_in(world, JobPhase.WAITING)


def test_during_a_pause_a_lost_node_is_told_once_for_all_its_tasks() -> None:
    spec = job_spec()
    roles = tuple(replace(role, count=6) if role.name == "worker" else role for role in spec.roles)
    world = Telling(replace(spec, roles=roles))
    world.stays = ""
    world.start()
    pause(world, "cluster")
    node = world.lose("worker.0")
    world.let_pass(3 * FAST.d_ms)
    told = [held.value.fields["node"] for held in world.job().events if held.value.kind == "held"]
    assert told == [node]


def test_what_was_begun_before_a_pause_and_is_needed_no_more_is_closed_during_it() -> None:
    world = World(nodes=6).start()
    world.commit(1, 100)
    for agent in world.agents.values():
        agent.stages = False
    node = world.node_of("chief.0")
    world.write(put(keys.cordon(node), Cordon(node, "new fans", drain=True)))
    world.until(lambda: len(world.incidents()) == 2)
    pause(world, "cluster")
    world.write(Delete(keys.cordon(node)))
    world.until(lambda: Outcome.OPEN not in {each.outcome for each in world.incidents().values()})


def test_a_release_that_knows_no_pauses_cannot_read_the_wish_and_so_restarts_nothing() -> None:
    assert b'"record":"JobIntent+paused"' in codec.encode(JobIntent(paused=PAUSE))
    assert b'"record":"JobIntent"' in codec.encode(JobIntent())
