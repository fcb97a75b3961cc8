"""What targets are told of, and the events that only they need."""

from __future__ import annotations

import json
from dataclasses import replace

from supervisor.contract.incident import Event, Topic
from supervisor.contract.timing import FAST
from supervisor.control.decide import notifications
from tests.control.world import Telling, World
from tests.support.builders import job_spec


def topics(world: World) -> list[tuple[str, str]]:
    """(topic, text) of what a target would be told of."""
    found = notifications.after(world.snapshot(), 0)
    told = [(notifications.topic_of(held.value), held.value.text) for held in found]
    return [(topic.value, text) for topic, text in told if topic is not None]


def kinds(world: World, kind: str) -> list[Event]:
    return [held.value for held in world.snapshot().events if held.value.kind == kind]


def test_a_job_that_begins_and_succeeds_is_told_of_once() -> None:
    world = Telling().start()
    for member in ("chief.0", "worker.0", "worker.1"):
        world.end_task(member, code=0)
    world.until(lambda: "succeeded" in world.done)
    assert [topic for topic, _ in topics(world)] == ["succeeded"]


def test_an_incident_is_told_when_it_is_acted_on_and_when_it_is_over() -> None:
    world = Telling().start()
    world.done.clear()
    world.end_task("worker.0", signal=9)
    world.until(lambda: "recovered" in world.done)
    assert [topic for topic, _ in topics(world)] == ["incident", "incident"]


def test_a_lost_node_is_told_once_by_one_leader_after_the_other() -> None:
    world = Telling().start()
    node = world.lose("worker.0")
    world.until(lambda: bool(kinds(world, "node_lost")))
    world.new_leader()
    world.let_pass(4 * FAST.d_ms)
    (event,) = kinds(world, "node_lost")
    assert event.fields["node"] == node
    assert notifications.topic_of(event) is Topic.NODE_LOST


def test_a_node_that_appeals_is_not_told_of_as_lost() -> None:
    world = Telling().start()
    node = world.lose("worker.0")
    world.come_back(node)
    world.let_pass(2 * FAST.d_ms)
    assert not kinds(world, "node_lost")


def test_the_last_restart_of_the_budget_is_told_of_and_then_the_end() -> None:
    spec = job_spec()
    world = Telling(replace(spec, restart=replace(spec.restart, max_restarts=1, backoff_ms=0))).start()
    assert not kinds(world, "budget_low")
    world.end_task("worker.0", code=1)
    world.until(lambda: bool(kinds(world, "budget_low")))
    world.new_leader()
    world.let_pass(2_000)
    assert len(kinds(world, "budget_low")) == 1
    world.end_task("worker.0", code=1)
    world.until(lambda: "job_failed" in world.done)
    told = [topic for topic, _ in topics(world)]
    assert told.count("budget") == 1
    assert told[-1] == "failed"


def test_the_identity_of_an_event_is_its_own_whoever_tells_of_it() -> None:
    world = Telling().start()
    world.form_cluster()
    snap = world.snapshot()
    assert snap.cluster is not None
    first, second = snap.events[:2]
    world.new_leader()
    again = world.snapshot().events[0]
    assert notifications.identity("u", first) == notifications.identity("u", again)
    assert notifications.identity("u", first) != notifications.identity("u", second)
    assert notifications.identity("u", first) != notifications.identity("another", first)
    told = json.loads(notifications.message(snap.cluster.value, first))
    assert told["id"] == notifications.identity("cluster", first)
    assert (told["cluster"], told["text"]) == ("c", first.value.text)
