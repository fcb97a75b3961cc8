"""`delete`: a job is forgotten once nothing of it can run, and what is written late goes too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recovery.formats.retention import DAY_MS
from supervisor.contract import keys
from supervisor.contract.boundaries import Delete
from supervisor.contract.desired import DeletedJob, JobPhase
from supervisor.contract.errors import Conflict, NotFound
from supervisor.contract.incident import Outcome
from supervisor.contract.job.spec import Limits, Wanted
from supervisor.contract.timing import FAST
from supervisor.contract.views.jobs import SubmitMode, SubmitRequest
from supervisor.control.decide import parking
from supervisor.control.decide.facts.cluster_time import TICK_MS
from supervisor.control.decide.jobs import deletion
from supervisor.control.decide.plan import put
from tests.control.bank import open_bank
from tests.control.world import World, waiting_for
from tests.support.builders import job_spec


def asked(world: World) -> World:
    assert world.run(deletion.ask(world.job()))
    return world


def lasting(after_ms: int | None) -> World:
    """A world whose job is deleted so long after its end."""
    return World(replace(job_spec(), limits=Limits(delete_after_ms=after_ms))).start()


def succeed(world: World) -> int:
    """The job's end, and when it was."""
    for member in ("chief.0", "worker.0", "worker.1"):
        world.end_task(member, code=0)
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    return world.now_ms


def left(world: World, name: str = "digits") -> list[str]:
    """Keys about the job, but for that of its deletion."""
    about = [entry.key for entry in world.store.select("") if keys.known_family(entry.key)]
    return [key for key in about if keys.subject_of(key)[0] == name and not key.startswith("deleted/")]


def is_gone(world: World) -> bool:
    return "digits" not in world.snapshot().jobs


def test_a_running_job_is_stopped_and_forgotten() -> None:
    world = World().start()
    world.write(put(keys.job_record("digits"), replace(world.job().record.value, owner="user:a", group="g")))
    world.commit(1, 100)
    world_uri = world.job().record.value.store_uri
    asked(world)
    assert world.job().intent.value.wanted is Wanted.STOP
    world.until(lambda: is_gone(world))
    world.until(lambda: not left(world))
    assert "stopped" in world.done
    (record,) = world.snapshot().deleted.values()
    assert record.value == DeletedJob("digits", "uuid", 1, "user:a", "g", world_uri)


@pytest.mark.parametrize("phase", [JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.STOPPED])
def test_so_is_one_that_has_ended(phase: JobPhase) -> None:
    world = World().start()
    world.write(put(keys.switch("digits"), replace(world.switch(), phase=phase)))
    world.until(lambda: all(held.value.confirmed_dead for held in world.job().attempts.values()))
    asked(world).until(lambda: is_gone(world))


def test_so_is_one_that_is_parked_and_whose_rules_raise() -> None:
    world = World().start()
    world.parks = True
    world.run(parking.park(world.job(), ValueError("odd")))
    asked(world).until(lambda: is_gone(world))


def test_nothing_goes_before_each_attempt_is_confirmed_dead() -> None:
    world = World().start()
    world.agents[world.node_of("ps.0")].obedient = False
    world.parks = True
    world.write(put(keys.switch("digits"), replace(world.switch(), phase=JobPhase.STOPPED)))
    asked(world)
    for _ in range(5):
        world.tick()
    assert not is_gone(world)
    assert "ps:0" in waiting_for(world.snapshot(), world.job())


def test_an_open_incident_ends_while_the_deletion_waits() -> None:
    world = World().start()
    world.agents[world.node_of("ps.0")].obedient = False
    held = next(iter(world.job().incidents.values()))
    world.write(put(held.key, replace(held.value, outcome=Outcome.OPEN)))
    world.write(put(keys.switch("digits"), replace(world.switch(), phase=JobPhase.STOPPED)))
    asked(world)
    for _ in range(5):
        world.tick()
    assert not is_gone(world)
    assert world.job().incidents[held.value.id].value.outcome is Outcome.ENDED


def test_a_node_that_is_lost_counts_as_dead_once_its_mark_is_final() -> None:
    world = World().start()
    node = world.node_of("ps.0")
    world.write(put(keys.switch("digits"), replace(world.switch(), phase=JobPhase.STOPPED)))
    world.switch_off(node)
    asked(world)
    began_ms = world.now_ms
    world.until(lambda: is_gone(world))
    assert world.now_ms - began_ms >= FAST.d_ms
    (mark,) = world.snapshot().nodes[node].marks.values()
    assert mark.value.final, "an agent that thaws cannot appeal and come back with its tasks"


def test_an_appeal_that_comes_at_the_same_moment_keeps_the_job() -> None:
    world = World().start()
    node = world.node_of("ps.0")
    world.write(put(keys.switch("digits"), replace(world.switch(), phase=JobPhase.STOPPED)))
    world.switch_off(node)
    asked(world).until(lambda: bool(world.snapshot().nodes[node].marks))
    world.now_ms += FAST.d_ms
    action = world.next_action("job_deleted")
    world.appeal(node, world.agents[node].incarnation)
    assert not world.run(action)


def test_a_task_of_which_nothing_is_known_is_waited_for() -> None:
    world = World().start()
    attempt, report = next(iter(world.job().attempts.items()))
    world.write(put(keys.switch("digits"), replace(world.switch(), phase=JobPhase.STOPPED)))
    world.until(lambda: all(held.value.confirmed_dead for held in world.job().attempts.values()))
    world.write(Delete(report.key))
    asked(world)
    began_ms = world.job().switch.seen_ms
    assert attempt.task.member in waiting_for(world.snapshot(), world.job())
    world.until(lambda: is_gone(world))
    assert world.now_ms - began_ms >= 2 * FAST.d_ms


def test_a_start_at_the_same_moment_keeps_the_job() -> None:
    world = World().start()
    world.write(put(keys.switch("digits"), replace(world.switch(), phase=JobPhase.STOPPED)))
    world.until(lambda: all(held.value.confirmed_dead for held in world.job().attempts.values()))
    asked(world)
    action = world.next_action("job_deleted")
    world.intend(serial=1)
    assert not world.run(action)
    assert not is_gone(world)


def test_what_is_written_late_goes_too_and_never_what_nobody_deleted() -> None:
    world = World().start()
    report = next(iter(world.job().attempts.values())).value
    asked(world).until(lambda: is_gone(world) and not left(world))
    world.write(put(keys.attempt(report.attempt), report))
    strange = replace(report, job="unknown")
    world.write(put(keys.attempt(strange.attempt), strange))
    world.tick()
    assert not left(world)
    assert left(world, "unknown") == [keys.attempt(strange.attempt)]


def test_many_records_go_in_several_transactions() -> None:
    world = World().start()
    attempt = next(iter(world.job().attempts.values())).value
    asked(world).until(lambda: is_gone(world))
    for number in range(250):
        late = replace(attempt, number=number + 10)
        world.write(put(keys.attempt(late.attempt), late))
    world.done.clear()
    world.until(lambda: not left(world))
    assert world.done.count("records_removed") == 3


def test_the_record_of_a_deletion_is_forgotten_after_a_day() -> None:
    world = World()
    asked(world).until(lambda: is_gone(world) and not left(world))
    world.now_ms += deletion.KEPT_MS
    world.tick()
    assert not world.snapshot().deleted


async def test_while_it_is_deleted_nothing_else_can_be_asked_for() -> None:
    bank = await open_bank()
    await bank.job_service.delete("digits")
    await bank.job_service.delete("digits")
    bank.end()
    for question in (bank.job_service.start("digits"), bank.job_service.restart("digits")):
        with pytest.raises(Conflict, match="is being deleted"):
            await question
    with pytest.raises(Conflict, match="is being deleted"):
        await bank.job_service.submissions.submit(SubmitRequest(bank.world.spec, SubmitMode.FRESH))


async def test_a_later_job_of_the_name_begins_above_its_generations() -> None:
    bank = await open_bank()
    world = bank.world
    await bank.job_service.delete("digits")
    world.until(lambda: is_gone(world) and not left(world))
    with pytest.raises(NotFound):
        await bank.job_service.delete("digits")
    await bank.job_service.submissions.submit(SubmitRequest(world.spec, SubmitMode.FRESH))
    assert world.switch().generation == 1
    assert not world.snapshot().deleted
    world.until(lambda: world.switch().phase is JobPhase.RUNNING)
    assert world.switch().generation == 2


async def test_it_is_refused_while_records_of_the_last_one_are_left() -> None:
    bank = await open_bank()
    report = next(iter(bank.world.job().attempts.values()), None)
    await bank.job_service.delete("digits")
    bank.world.until(lambda: is_gone(bank.world) and not left(bank.world))
    assert report is not None
    bank.world.write(put(report.key, report.value))
    with pytest.raises(Conflict, match="last records are being removed"):
        await bank.job_service.submissions.submit(SubmitRequest(bank.world.spec, SubmitMode.FRESH))


def test_a_job_is_deleted_so_long_after_its_success() -> None:
    world = lasting(30_000)
    ended_ms = succeed(world)
    world.until(lambda: is_gone(world))
    assert world.now_ms - ended_ms >= 30_000
    assert world.done.count("expired") == 1


def test_so_is_a_failed_one_and_never_before_others_have_seen_its_end() -> None:
    world = lasting(0)
    world.write(put(keys.switch("digits"), replace(world.switch(), phase=JobPhase.FAILED)))
    assert world.until(lambda: is_gone(world)) >= deletion.SEEN_MS


@pytest.mark.parametrize("after_ms", [None, 2 * DAY_MS])
def test_a_job_stays_until_its_time_is_over(after_ms: int | None) -> None:
    world = lasting(after_ms)
    succeed(world)
    for _ in range(5):
        world.tick(DAY_MS // 10)
    assert not is_gone(world)


def test_a_stopped_job_waits_for_its_start() -> None:
    world = lasting(0)
    world.intend(wanted=Wanted.STOP)
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    world.let_pass(2 * deletion.SEEN_MS)
    assert not is_gone(world)


def test_what_is_kept_for_inspection_keeps_the_job() -> None:
    world = lasting(0)
    held = replace(world.switch(), phase=JobPhase.FAILED, held=("worker.0",))
    world.write(put(keys.switch("digits"), held))
    world.let_pass(2 * deletion.SEEN_MS)
    assert not is_gone(world)
    world.write(put(keys.switch("digits"), replace(held, held=())))
    world.snapshot()
    world.now_ms += deletion.SEEN_MS
    assert deletion.expire(world.snapshot(), world.job())


def test_the_next_leader_counts_on() -> None:
    world = lasting(DAY_MS)
    ended_ms = succeed(world)
    while world.now_ms - ended_ms < DAY_MS // 2:
        world.tick(TICK_MS)
        world.snapshot()  # it sees what it writes at once
    world.new_leader()
    world.until(lambda: is_gone(world), limit_ms=DAY_MS, step_ms=TICK_MS)
    assert DAY_MS <= world.now_ms - ended_ms < DAY_MS + DAY_MS // 10


def test_a_start_at_the_moment_of_its_end_keeps_the_job() -> None:
    world = lasting(0)
    world.write(put(keys.switch("digits"), replace(world.switch(), phase=JobPhase.SUCCEEDED)))
    world.snapshot()
    world.now_ms += deletion.SEEN_MS
    (action,) = deletion.expire(world.snapshot(), world.job())
    world.intend(serial=1)
    assert not world.run(action)
