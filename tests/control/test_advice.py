"""A user whose program saves where nothing is taken from is told so, by name, once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.api.views import explanation, job_view
from supervisor.contract import codec, keys
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Event, Outcome
from supervisor.contract.job.bounds import objections
from supervisor.contract.job.spec import Limits, Strategy
from supervisor.contract.observed import Saves, Sign, TaskBeat
from supervisor.control.decide.plan import put
from tests.control.world import Telling, World, says_of_saves
from tests.support.builders import job_spec

AWAY = Saves(outside=1, elsewhere=("/tmp/my_working_dir",))


@pytest.fixture
def world() -> World:
    made = Telling(job_spec({"worker": 2, "ps": 1}))
    made.start()
    return made


def told(world: World) -> list[tuple[str, str]]:
    events = [codec.decode(Event, entry.value) for entry in world.store.select("events/")]
    return [(event.kind, event.text) for event in events if event.kind.startswith("saves_")]


def shown(world: World) -> tuple[str, ...]:
    return job_view(world.snapshot(), world.job()).advice


def restart(world: World, member: str) -> None:
    before = world.running()[member].attempt
    world.end_task(member, code=1)
    world.until(lambda: member in world.running() and world.running()[member].attempt != before)


def test_a_save_outside_is_told_once_and_shown_as_long_as_it_is_so(world: World) -> None:
    assert shown(world) == ()
    says_of_saves(world, "worker.0", AWAY)
    for _ in range(5):
        world.tick()
    ((kind, text),) = told(world)
    assert kind == "saves_elsewhere"
    assert text.startswith("worker:0 saves to /tmp/my_working_dir, which is lost with its node")
    assert "write `checkpoint.adopt: /tmp/my_working_dir` in the job file" in text
    assert shown(world) == (text,)
    world.new_leader()
    world.tick()
    restart(world, "worker.0")
    says_of_saves(world, "worker.0", AWAY)
    world.tick()
    assert len(told(world)) == 1, "neither a new leader nor a new attempt tells it again"
    says_of_saves(world, "worker.0", Saves(inside=1, outside=3, elsewhere=AWAY.elsewhere))
    world.tick()
    assert shown(world) == ()


def test_a_place_that_changes_at_each_start_is_told_as_such(world: World) -> None:
    says_of_saves(world, "worker.0", Saves(outside=1, elsewhere=("/runs/0930",)))
    world.tick()
    restart(world, "worker.0")
    says_of_saves(world, "worker.0", Saves(outside=1, elsewhere=("/runs/0945",)))
    world.tick()
    world.tick()
    (first, _), (second, text) = told(world)
    assert (first, second) == ("saves_elsewhere", "saves_at_changing_places")
    assert "(/runs/0930, then /runs/0945)" in text
    assert "os.environ['CHECKPOINT_DIR']" in text
    assert shown(world) == (text,)


@pytest.mark.parametrize("directory", ["/tmp/tmpx1_yz9ab", "/var/tmp/tmpabcdefgh/model"])
def test_a_temporary_directory_is_known_by_its_name(world: World, directory: str) -> None:
    says_of_saves(world, "worker.0", Saves(outside=1, elsewhere=(directory,)))
    world.tick()
    ((kind, _),) = told(world)
    assert kind == "saves_at_changing_places"


def test_nothing_is_told_of_others_while_one_task_saves_inside(world: World) -> None:
    says_of_saves(world, "worker.1", AWAY)
    world.tick()
    assert told(world) == [], "its first save may be a little before the one that counts"
    says_of_saves(world, "worker.0", Saves(inside=1))
    says_of_saves(world, "worker.1", replace(AWAY, outside=9))
    world.tick()
    assert told(world) == []


def test_another_task_than_the_saver_is_named_if_it_alone_saves(world: World) -> None:
    says_of_saves(world, "worker.1", replace(AWAY, outside=2))
    world.tick()
    ((_, text),) = told(world)
    assert text.startswith("worker:1 saves to")


def test_what_the_last_attempt_said_as_it_ended_is_told_after_the_job(world: World) -> None:
    for member, saves in (("worker.0", Saves()), ("worker.1", AWAY)):
        report = world.running()[member]
        world.end_task(member, code=0)
        held = world.job().attempts[report.attempt].value
        world.write(put(keys.attempt(report.attempt), replace(held, saves=saves)))
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    world.tick()
    ((_, text),) = told(world)
    assert text.startswith("worker:1 saves to")
    assert shown(world) == (text,)


def test_a_uri_is_not_said_to_be_lost(world: World) -> None:
    says_of_saves(world, "worker.0", Saves(outside=1, elsewhere=("gs://bucket/model",)))
    world.tick()
    ((_, text),) = told(world)
    assert "which is not read from there" in text


def test_a_forged_path_fits_the_event(world: World) -> None:
    says_of_saves(world, "worker.0", Saves(outside=1, elsewhere=("/" + "x" * 100_000,)))
    world.tick()
    ((_, text),) = told(world)
    assert len(text) <= 1_500


def test_nobody_is_advised_to_adopt_the_directory_of_the_program(world: World) -> None:
    """The program could not be found there any more. `validate` and `submit` refuse it."""
    says_of_saves(world, "worker.0", Saves(outside=1, elsewhere=("/work",)))
    world.tick()
    ((_, text),) = told(world)
    assert "checkpoint.adopt" not in text
    assert "write its other files to `{output_dir}`" in text
    spec = replace(world.spec, checkpoint=replace(world.spec.checkpoint, adopt="/work"))
    assert ["{output_dir}" in each.text for each in objections(spec)] == [True]


def advised(world: World, kind: str) -> list[str]:
    events = [codec.decode(Event, entry.value) for entry in world.store.select("events/")]
    return [event.text for event in events if event.kind == kind]


def begins_at(world: World, step: int, *, local: bool) -> None:
    """Restart all; from then on the tasks say that they began at this step."""
    before = world.switch().generation
    world.end_task("worker.0", signal=9)
    for agent in world.agents.values():
        for member in ("worker.0",):
            attempt = f"digits/{member.replace('.', ':')}@{before + 1}.1"
            agent.tells[attempt] = lambda beat: replace(
                beat, first_step=step, step=max(step, beat.step), is_local=local
            )
    world.until(lambda: world.switch().generation == before + 1)
    world.until(lambda: all(each.outcome is not Outcome.OPEN for each in world.incidents().values()))
    world.tick()


def plain() -> World:
    made = Telling(job_spec({"worker": 1}, Strategy.PLAIN))
    made.start()
    made.commit(1, 60)
    made.steps["worker"] = 97
    made.tick()
    return made


@pytest.mark.parametrize("local", [True, False])
def test_a_program_that_does_not_restore_is_named_once(local: bool) -> None:
    world = plain()
    begins_at(world, 1, local=local)
    if local:
        assert advised(world, "does_not_restore") == [], "it may count its steps anew"
        world.commit(2, 20)
        world.tick()
    (text,) = advised(world, "does_not_restore")
    assert text.startswith("worker:0 began at step 1 although checkpoint g1-s60 was in $CHECKPOINT_DIR")
    assert "it does not restore, or counts its steps anew; let it" in text, "its own process was not seen"
    assert text in shown(world)
    newest = explanation(world.snapshot(), "digits").incidents[-1]
    assert (newest.to_step, newest.lost_steps) == (1, -1 if local else 96)
    begins_at(world, 1, local=local)
    assert len(advised(world, "does_not_restore")) == 1


@pytest.mark.parametrize("restored", [True, False])
def test_a_program_that_numbers_its_saves_anew_restores_if_it_was_seen_to_read_one(restored: bool) -> None:
    """As `ModelCheckpoint` by epochs does, after `load_weights`."""
    world = plain()
    begins_at(world, 1, local=True)
    says_of_saves(world, "worker.0", Saves(inside=1, watched=True, restored=restored))
    world.commit(2, 20)
    world.tick()
    found = advised(world, "does_not_restore")
    assert ["it does not restore; let it load" in each for each in found] == ([] if restored else [True])


def test_a_program_that_restores_is_not_named() -> None:
    world = plain()
    begins_at(world, 61, local=False)
    assert advised(world, "does_not_restore") == []
    newest = explanation(world.snapshot(), "digits").incidents[-1]
    assert (newest.to_step, newest.lost_steps) == (61, 37)


def test_one_number_at_the_start_says_nothing_of_the_steps_that_are_lost() -> None:
    """It is where training began, not how far it came."""
    world = Telling(job_spec({"worker": 1}, Strategy.PLAIN))
    world.steps["worker"] = 5
    world.start()
    world.until(lambda: all(each.outcome is Outcome.RECOVERED for each in world.incidents().values()))
    begins_at(world, 5, local=False)
    assert [each.lost_steps for each in explanation(world.snapshot(), "digits").incidents] == [-1, -1]


def test_a_job_whose_learner_has_ended_asks_whether_its_actors_ever_end() -> None:
    spec = replace(job_spec({"learner": 1, "actor": 2}, Strategy.IN_GRAPH), limits=Limits(startup_ms=15_000))
    world = Telling(spec)
    world.start()
    for member in ("actor.0", "actor.1"):
        report = world.running()[member]
        world.agents[report.node].tells[str(report.attempt)] = lambda beat: TaskBeat(
            beat.attempt, signs=(Sign("output", 0, 0),)
        )
    world.end_task("learner.0", code=0)
    world.pass_time(20_000)
    assert advised(world, "cannot_end") == []
    world.until(lambda: advised(world, "cannot_end"), 60_000)
    world.let_pass(60_000)
    assert advised(world, "hang_suspected") == [], "they wait for nothing that will come"
    assert not any(
        each.detail for each in job_view(world.snapshot(), world.job()).tasks if each.role == "actor"
    )
    (text,) = advised(world, "cannot_end")
    assert text == (
        "the job waits for actor:0, actor:1, which may never end by themselves: learner:0 ended with exit "
        "code 0; if so, write `roles.actor.serves: true` in the job file"
    )
    assert text in shown(world)
    world.end_task("actor.0", code=0)
    world.end_task("actor.1", code=0)
    world.until(lambda: world.switch().phase is JobPhase.SUCCEEDED)
    assert shown(world) == ()


@pytest.mark.parametrize("steps", [True, False])
def test_a_worker_that_makes_no_steps_after_the_others_have_ended_is_asked_about(steps: bool) -> None:
    world = Telling(job_spec({"worker": 2}))
    world.start()
    for agent in world.agents.values():
        agent.steps = steps
    world.end_task("worker.0", code=0)
    world.let_pass(40_000)
    found = advised(world, "cannot_end")
    assert [("`success_policy: worker_0`" in each) for each in found] == ([] if steps else [True])
