"""Notices of agents about a job's files become one event each, and a line in `status`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.api.views import job_view
from supervisor.contract import codec
from supervisor.contract.incident import Event
from supervisor.contract.observed import MODEL_PUBLISHED, NOTICES, WORK_KEPT, Notice
from supervisor.control.decide.checkpoints.notices import MOST_TOLD
from tests.control.world import Telling, World
from tests.support.builders import job_spec

KEPT = Notice("digits", "uuid", WORK_KEPT, "/ckpt/u/summaries (3, 100)", "3 files stay on n0")


@pytest.fixture
def world() -> World:
    made = Telling(job_spec({"worker": 1, "ps": 1}))
    made.start()
    return made


def told(world: World) -> list[tuple[str, str, str]]:
    events = [codec.decode(Event, entry.value) for entry in world.store.select("events/")]
    return [(each.kind, each.fields["node"], each.text) for each in events if each.kind in NOTICES]


def ticks(world: World, count: int = 5) -> None:
    for _ in range(count):
        world.tick()


def test_each_is_told_once_also_by_another_leader_and_shown_while_it_is_so(world: World) -> None:
    agent = world.agents["n0"]
    agent.notices = (KEPT, replace(KEPT, about="other", text="1 file"))
    ticks(world)
    expected = [(WORK_KEPT, "n0", "3 files stay on n0"), (WORK_KEPT, "n0", "1 file")]
    assert told(world) == expected
    world.new_leader()
    ticks(world)
    assert told(world) == expected
    assert job_view(world.snapshot(), world.job()).notices == ("3 files stay on n0", "1 file")
    agent.notices = ()
    ticks(world)
    assert job_view(world.snapshot(), world.job()).notices == ()


def test_what_an_earlier_job_of_this_name_has_left_is_told_as_such_and_is_not_in_status(world: World) -> None:
    world.agents["n0"].notices = (replace(KEPT, job_uuid="deleted since"),)
    ticks(world)
    assert told(world) == [(WORK_KEPT, "n0", "of an earlier job digits: 3 files stay on n0")]
    assert job_view(world.snapshot(), world.job()).notices == ()


def test_what_is_of_another_job_or_of_no_known_kind_is_not_told(world: World) -> None:
    world.agents["n0"].notices = (replace(KEPT, job="another"), replace(KEPT, kind="flip"))
    ticks(world)
    assert told(world) == []


def test_a_long_word_of_a_hostile_file_fits_its_record(world: World) -> None:
    world.agents["n0"].notices = (replace(KEPT, about="x" * 10_000, text="y" * 100_000),)
    ticks(world)
    ((_, _, text),) = told(world)
    assert len(text) == 1500


def test_an_agent_that_tells_ever_new_things_does_not_drive_other_events_out(world: World) -> None:
    for beat in range(MOST_TOLD + 10):
        world.agents["n0"].notices = (replace(KEPT, about=f"made up {beat}"),)
        ticks(world, 2)
    world.agents["n1"].notices = (KEPT,)
    ticks(world)
    assert [node for _, node, _ in told(world)] == [*["n0"] * MOST_TOLD, "n1"]


def test_published_models_are_told_apart_from_trouble_and_are_none_in_status(world: World) -> None:
    for version in range(MOST_TOLD):
        about = f"model m version {version}"
        world.agents["n0"].notices = (replace(KEPT, kind=MODEL_PUBLISHED, about=about, text=about),)
        ticks(world, 2)
    assert job_view(world.snapshot(), world.job()).notices == ()
    world.agents["n0"].notices += (KEPT,)
    ticks(world)
    kinds = [kind for kind, _, _ in told(world)]
    assert kinds == [*[MODEL_PUBLISHED] * MOST_TOLD, WORK_KEPT]


def test_it_is_told_of_a_job_that_has_ended(world: World) -> None:
    world.end_task("worker.0", code=0)
    world.until(lambda: world.switch().phase.ended)
    world.agents["n0"].notices = (KEPT,)
    ticks(world)
    assert [kind for kind, _, _ in told(world)] == [WORK_KEPT]
