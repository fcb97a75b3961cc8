"""No page, message or table shows a repr, None or -1, in whatever state a job is."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from supervisor.api import views
from supervisor.cli.jobs import goodput, look
from supervisor.cli.jobs.submit import ending
from supervisor.contract import keys
from supervisor.contract.desired import JobPhase, Parked
from supervisor.contract.job.pause import Pause
from supervisor.contract.job.spec import JobIntent, Wanted
from supervisor.contract.observed import Gpu
from supervisor.control.decide.plan import put
from tests.control.world import Telling, World
from tests.support.builders import job_spec
from tests.web.site import START_MS, Site, get

BARE = re.compile(
    r"[A-Za-z]\w*\([a-z_]+=|<[\w.]+ object at|\b[A-Z][A-Za-z]+\.[A-Z][A-Z_]+\b|\bNone\b|(?<![\w-])-1\b(?!\.)"
)
"""A dataclass, an object, a member of an enum, nothing, and a number that stands for "not known"."""
MESSAGES = (
    "text",
    "detail",
    "reason",
    "waiting_for",
    "notices",
    "advice",
    "cadence",
    "commit_trouble",
    "paused",
)


def made(world: World, *, start: bool = True) -> World:
    world.wall_ms = START_MS
    return world.start() if start else world


def starting() -> World:
    world = made(Telling(), start=False)
    world.tick()
    return world


def recovering() -> World:
    world = made(Telling())
    world.commit(1, 60)
    world.see_gpus("n0", Gpu("GPU-1", 0, "H200", 1 << 37))
    world.end_task("ps.0", signal=9)
    world.tick()
    return world


def recovered() -> World:
    world = recovering()
    world.until(lambda: world.switch().generation == 2)
    world.let_pass(2_000)
    return world


def waiting() -> World:
    world = made(Telling(nodes=0), start=False)
    world.let_pass(1_000)
    return world


def failed() -> World:
    world = made(Telling())
    for _ in range(8):
        if world.switch().phase is JobPhase.RUNNING and "chief.0" in world.running():
            world.end_task("chief.0", code=1)
        world.let_pass(5_000)
    return world


def parked() -> World:
    world = made(Telling())
    switch = replace(world.switch(), phase=JobPhase.FAILED, reason="ValueError: 1")
    error = Parked(JobPhase.RUNNING, "ValueError: 1", "assess.py:1 assess")
    world.write(put(keys.switch("digits"), replace(switch, parked=error)))
    return world


def stopped() -> World:
    world = made(Telling())
    world.intend(Wanted.STOP)
    world.until(lambda: world.switch().phase is JobPhase.STOPPED)
    return world


def scaled() -> World:
    world = made(Telling(nodes=4))
    world.write(put(keys.intent("digits"), JobIntent(sizes={"worker": 3})))
    world.let_pass(10_000)
    return world


def without_steps() -> World:
    world = Telling(job_spec({"worker": 1}))
    for agent in world.agents.values():
        agent.steps = False
    made(world)
    world.end_task("worker.0", code=0)
    world.let_pass(5_000)
    return world


def long_names() -> World:
    return made(Telling(job_spec(name="a" * 63)))


def paused() -> World:
    world = recovering()
    world.write(put(keys.PAUSE, Pause(by="user:olga", reason="new switches")))
    world.let_pass(1_000)
    return world


STATES: tuple[Callable[[], World], ...] = (
    starting,
    recovering,
    recovered,
    waiting,
    paused,
    failed,
    parked,
    stopped,
    scaled,
    without_steps,
    long_names,
)


def messages(value: object, name: str = "") -> Iterator[str]:
    """The texts of a document that are for people."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from messages(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from messages(each, name)
    elif isinstance(value, str) and name in MESSAGES:
        yield value


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
async def test_nothing_that_people_read_is_bare(
    state: Callable[[], World], capsys: pytest.CaptureFixture[str]
) -> None:
    world = state()
    name = world.spec.name
    phase = world.switch().shown_phase.value
    expected = {"starting": "waiting", "without_steps": "succeeded"}.get(state.__name__, state.__name__)
    assert phase == (expected if expected in {each.value for each in JobPhase} else "running")
    async with AsyncExitStack() as stack:
        site = await Site(stack, world).open()
        for path in ("/", "/jobs", f"/jobs/{name}", "/events", *(["/nodes/n0"] if world.agents else ())):
            status, text, _ = await get(site, path)
            assert status == 200, path
            shown = html.unescape(re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", text, flags=re.DOTALL))
            assert BARE.findall(shown) == [], path
        for path in ("/jobs", f"/jobs/{name}/incidents", "/events"):
            status, text, _ = await get(site, f"/api/v1{path}")
            assert [each for each in messages(json.loads(text)) if BARE.search(each)] == [], path
    snap = world.snapshot()
    document = views.cluster_status(snap, "demo", None, views.shown_jobs(snap))
    look._show_status(document, detailed=True)
    found = views.explanation(snap, name)
    assert BARE.findall(ending(found.job)) == []
    assert found.job.goodput is not None
    printed = f"{capsys.readouterr().out}\n{look.explanation(found)}\n{goodput.line(found.job.goodput)}"
    assert BARE.findall(printed) == []
