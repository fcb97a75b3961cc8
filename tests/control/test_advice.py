"""A user whose program saves where nothing is taken from is told so, by name, once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.api.views import job_view
from supervisor.contract import codec, keys
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Event
from supervisor.contract.observed import Saves
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
