"""`/api/v1` and the pages over real sockets: supervisorctl's documents, and HTML without scripts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import ClientSession

from supervisor.api import views
from supervisor.api.server import ControlService
from supervisor.contract import codec, keys
from supervisor.contract.access import Caller, Kind
from supervisor.contract.desired import JobPhase, LeaderRecord
from supervisor.contract.incident import PHASES, Cause, Event, Outcome
from supervisor.contract.job.spec import JobRecord, Scope
from supervisor.contract.observed import Gpu
from supervisor.control.decide.plan import put
from supervisor.web import sentences
from supervisor.web.drawings import lineage, time_line
from supervisor.web.pages import Pages
from supervisor.web.samples import Samples, table
from supervisor.web.source import Source
from supervisor.wire.http import Asked
from supervisor.wire.rpc import Guard
from tests.control.world import Telling, World
from tests.web.site import HOST, TOKEN, Site, get

HOSTILE = "<script>alert(1)</script>\"'&\u202e\x1b[2J"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        yield await Site(stack, World().start()).open()


def objection(schemas: dict[str, object], schema: object, value: object, where: str = "") -> str:
    """Where a value does not match its schema, and why; empty if it does. Enough of JSON Schema for ours."""
    assert isinstance(schema, dict)
    if "$ref" in schema:
        return objection(schemas, schemas[schema["$ref"].rpartition("/")[2]], value, where)
    if "anyOf" in schema:
        tried = [objection(schemas, each, value, where) for each in schema["anyOf"]]
        return "" if "" in tried else tried[0]
    kinds: dict[str, type | tuple[type, ...]] = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "null": type(None),
    }
    kind = schema.get("type")
    if kind == "boolean":
        return "" if isinstance(value, bool) else f"{where}: {value!r} is no boolean"
    if kind is not None and (not isinstance(value, kinds[kind]) or isinstance(value, bool)):
        return f"{where}: {value!r} is no {kind}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where}: {value!r} is none of {schema['enum']}"
    found = []
    if isinstance(value, dict):
        known = schema.get("properties", {})
        found += [f"{where}.{name}: missing" for name in schema.get("required", ()) if name not in value]
        for name, each in value.items():
            inner = known.get(name, schema.get("additionalProperties"))
            found.append(
                f"{where}.{name}: not described"
                if not isinstance(inner, dict)
                else objection(schemas, inner, each, f"{where}.{name}")
            )
    if isinstance(value, list):
        found += [objection(schemas, schema["items"], each, f"{where}[]") for each in value]
    return next(filter(None, found), "")


def busy(site: Site) -> None:
    """A world with something of everything."""
    world = site.world
    world.see_gpus("n0", Gpu("GPU-1", 0, "H200", 1 << 37))
    world.commit(1, 100)
    world.end_task("worker.0", signal=9)
    site.tick(5_000)


async def test_answers_are_the_documents_of_supervisorctl_and_match_openapi(site: Site) -> None:
    busy(site)
    status, text, _ = await get(site, "/api/v1/openapi.json")
    described = json.loads(text)
    assert (status, described["openapi"]) == (200, "3.1.0")
    schemas, checked = described["components"]["schemas"], 0
    for template, operations in described["paths"].items():
        content = operations["get"]["responses"]["200"]["content"]
        if "text/event-stream" in content:
            continue  # the output of a task: an agent has it
        path = template.replace("{job}", "digits").replace("{node}", "n0")
        status, text, _ = await get(site, path)
        assert status == 200, (path, text)
        wrong = objection(schemas, content["application/json"]["schema"], json.loads(text))
        assert wrong == "", path
        checked += 1
    assert checked == 11
    snap = site.service.picture
    assert snap is not None
    shown = json.loads((await get(site, "/api/v1/jobs/digits"))[1])
    assert shown["jobs"] == [codec.to_plain(views.shown_job(snap, "digits"))]
    assert json.loads((await get(site, "/api/v1/jobs"))[1]) == shown
    story = json.loads((await get(site, "/api/v1/jobs/digits/incidents"))[1])
    assert [each["cause"] for each in story["incidents"]] == ["submitted", "killed"]
    failure = schemas["Failure"]
    for path, code in (
        ("/jobs/none", 404),
        ("/nodes/none", 404),
        ("/events?last=x", 400),
        ("/jobs/..%2f", 400),
    ):
        status, text, _ = await get(site, f"/api/v1{path}")
        assert (status, objection(schemas, failure, json.loads(text))) == (code, "")


async def test_events_go_on_after_the_last_that_was_seen(site: Site) -> None:
    first = json.loads((await get(site, "/api/v1/events?last=1"))[1])
    assert len(first["events"]) <= 1
    site.world.write(put(keys.event(900), Event(5, "test", "digits", "news")))
    site.show()
    then = json.loads((await get(site, f"/api/v1/events?after={first['last']}"))[1])
    assert [each["text"] for each in then["events"]] == ["news"]


async def lines_of(site: Site, path: str) -> AsyncIterator[str]:
    async with (
        ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
        session.get(site.url(path)) as answer,
    ):
        assert answer.headers["Content-Type"] == "text/event-stream"
        async for line in answer.content:
            yield line.decode()


async def test_a_stream_tells_changes_and_that_another_supervisor_leads(site: Site) -> None:
    seen: list[str] = []
    async with asyncio.timeout(20):
        async for line in lines_of(site, "/api/v1/stream?job=digits"):
            seen.append(line)
            if line.startswith("event: job") and seen.count(line) == 1:
                site.world.write(put(keys.event(901), Event(5, "test", "digits", HOSTILE)))
                site.world.end_task("worker.0", signal=9)
                site.tick(100)
            elif line.startswith("event: event"):
                site.follow(LeaderRecord("s1", "unix:/s1", 2))
    data = [json.loads(line[6:]) for line in seen if line.startswith("data: ")]
    assert data[0]["name"] == "digits"
    assert HOSTILE in [each.get("text") for each in data]
    assert data[-1]["error"] == "NotLeading"
    assert data[-1]["leader"] == "unix:/s1"


async def test_a_page_streams_the_parts_that_change(site: Site) -> None:
    seen: list[dict[str, str]] = []
    async with asyncio.timeout(20):
        async for line in lines_of(site, "/jobs/digits?live=1"):
            if line.startswith('data: {"st'):
                seen.append(json.loads(line[6:]))
                site.world.commit(1, 100 * len(seen))
                site.tick(200)
                if len(seen) == 2:
                    site.follow(None)
            if line.startswith("event: moved"):
                break
    assert set(seen[0]) == {"state", "timeline", "tasks", "checkpoints", "story", "events"}
    assert "g1-s100" in seen[1]["checkpoints"]


async def test_a_page_that_is_looked_at_is_made_in_turns_once_for_all(site: Site) -> None:
    turns = 0

    @asynccontextmanager
    async def turn() -> AsyncIterator[None]:
        nonlocal turns
        turns += 1
        yield

    source = Source(ControlService(site.service, "demo", Guard()), site.service, "demo")
    pages = Pages(source, Samples(source.snapshot))
    (_, view), caller = pages.views()["/jobs"], Caller(Kind.LOCAL, "token")
    asked = Asked(caller=caller, path="/jobs", target="/jobs?live=1", query={"live": "1"}, turn=turn)
    looks = [(await pages.show(view, asked)).body for _ in range(3)]
    for each in looks:
        assert not isinstance(each, bytes)
        assert await anext(each) == b"retry: 1000\n\n"
        assert b"digits" in await anext(each)
        await each.aclose()
    assert turns == 1


async def test_followers_send_callers_to_the_leader(site: Site) -> None:
    site.follow(LeaderRecord("s1", "unix:/s1", 2, f"http://{HOST}:1"))
    for path in ("/jobs?q=a%20b", "/api/v1/jobs", "/"):
        status, _, location = await get(site, path)
        assert (status, location) == (307, f"http://{HOST}:1{path}")
    for known, told in (
        (LeaderRecord("s1", "unix:/s1", 2), "s1 leads, at unix:/s1"),
        (LeaderRecord("s1", "unix:/s1", 2, site.url("")), "s1 leads"),
        (None, "no supervisor leads"),
    ):
        site.follow(known)
        status, text, _ = await get(site, "/jobs")
        assert (status, told in text, 'http-equiv="refresh"' in text) == (503, True, True)
        assert (await get(site, "/api/v1/jobs"))[0] == 503


async def test_a_job_that_ended_without_its_last_save_needs_a_look(site: Site) -> None:
    assert "All jobs are well." in (await get(site, "/"))[1]
    ended = replace(
        site.world.switch(), phase=JobPhase.SUCCEEDED, reason="over; warning: g1-s9", uncommitted="g1-s9"
    )
    site.world.write(put(keys.switch("digits"), ended))
    site.tick()
    _, text, _ = await get(site, "/")
    assert "All jobs are well." not in text
    assert "over; warning: g1-s9" in text


async def test_hostile_names_and_output_stay_text(site: Site) -> None:
    world = site.world
    busy(site)
    world.write(put(keys.event(902), Event(5, "test", "digits", HOSTILE)))
    record = world.job().record.value
    world.write(put(keys.job_record("digits"), JobRecord(record.spec, record.uuid, 0, owner=HOSTILE)))
    world.end_task("worker.1", code=1, tail=HOSTILE)
    world.agents["n0"].refuses = HOSTILE
    site.tick(2_000)
    for path in (
        "/",
        "/jobs",
        "/jobs/digits",
        "/events",
        "/nodes/n0",
        f"/jobs?q={'%3Cscript%3E'}",
        "/jobs/%3Cscript%3E",
    ):
        status, text, _ = await get(site, path)
        assert status in (200, 400), path
        assert "<script>" not in text, path
        assert "\u202e" not in text, path
        assert "\x1b" not in text, path
    assert "&lt;script&gt;alert(1)" in (await get(site, "/jobs/digits"))[1]
    assert [line for line in site.sink.lines if line[0] == "error"] == []


async def test_no_page_or_document_has_what_a_jobs_environment_holds() -> None:
    spec, secret = World().spec, "hunter2"
    roles = tuple(replace(role, env={"PLAIN": secret}) for role in spec.roles)
    async with AsyncExitStack() as stack:
        site = await Site(stack, Telling(replace(spec, roles=roles)).start()).open()
        busy(site)
        described = json.loads((await get(site, "/api/v1/openapi.json"))[1])["paths"].items()
        documents = [
            path.replace("{job}", "digits").replace("{node}", "n0")
            for path, operations in described
            if "text/event-stream" not in operations["get"]["responses"]["200"]["content"]
        ]
        for path in ("/", "/jobs", "/jobs/digits", "/events", "/nodes/n0", *documents):
            status, text, _ = await get(site, path)
            assert (status, secret in text) == (200, path.endswith("/description")), path


async def test_a_node_has_the_events_that_name_it(site: Site) -> None:
    for number, text in enumerate(("prepared on n1, n0", "n0 is lost: silent", "n0-b and x-n0 are others")):
        site.world.write(put(keys.event(910 + number), Event(5, "test", "digits", text)))
    site.show()
    _, text, _ = await get(site, "/nodes/n0")
    assert ("prepared on n1, n0" in text, "n0 is lost" in text, "are others" in text) == (True, True, False)


async def test_a_thousand_jobs_are_shown_a_page_at_a_time(site: Site) -> None:
    site.add_jobs(1_000)
    _, text, _ = await get(site, "/jobs")
    assert text.count('scope="row"') == 50
    assert "1,001 jobs" in text
    assert len(text) < 60_000
    _, text, _ = await get(site, "/jobs?q=job-09&page=2")
    assert "job-0950" in text
    assert "100 jobs of 1001" in text
    _, text, _ = await get(site, "/jobs?state=running")
    assert text.count('scope="row"') == 1
    assert len(json.loads((await get(site, "/api/v1/jobs"))[1])["jobs"]) == 1_001


def test_a_time_line_has_the_phases_and_zooms() -> None:
    world = World().start()
    world.wall_ms = 10_000_000
    world.end_task("worker.0", signal=9)
    world.until(lambda: len(world.incidents()) == 2)
    for _ in range(60):
        world.wall_ms += 50
        world.tick()
    incidents = views.explanation(world.snapshot(), "digits").incidents
    (submitted, killed) = incidents
    line = time_line(incidents, world.wall_ms)
    assert line is not None
    assert [mark.incident.cause for mark in line.marks] == ["submitted", "killed"]
    assert [band.generation for band in line.bands] == [1]
    for mark in line.marks:
        assert 0 <= mark.x <= 100 - mark.width + 1e-9
    near = time_line(incidents, world.wall_ms, killed.wall_ms - 1_000, killed.wall_ms + 2_000)
    assert near is not None
    (mark,) = near.marks
    assert {piece.name for piece in mark.pieces} == {name for name, ms in killed.phases_ms.items() if ms}
    assert near.zoomed(0.5)[1] - near.zoomed(0.5)[0] == near.span_ms // 2
    assert near.shifted(1.0)[0] == near.to_ms
    assert time_line((), 1) is None
    assert submitted.generation == 1


def test_a_lineage_joins_generations_at_their_base() -> None:
    world = World().start()
    base = world.commit(1, 100)
    world.commit(1, 200)
    world.commit(2, 150, base)
    found = views.checkpoint_list(world.snapshot(), "digits").checkpoints
    drawn = lineage(found)
    assert drawn is not None
    at = {dot.checkpoint.ref.step: (dot.x, dot.y) for dot in drawn.dots}
    assert {((line.x1, line.y1), (line.x2, line.y2)) for line in drawn.lines} == {
        (at[100], at[200]),
        (at[100], at[150]),
    }
    assert at[100][0] < at[150][0] < at[200][0]
    assert at[100][1] == at[200][1] < at[150][1]
    assert lineage(()) is None


def test_samples_are_of_the_generation_in_force_alone() -> None:
    world = World().start()
    samples = Samples(world.snapshot)
    samples.take(replace(world.snapshot(), wall_ms=5_000))
    world.tick()
    samples.take(replace(world.snapshot(), wall_ms=7_000))
    made = table(samples.of("digits"))
    assert made["seconds"] == [5.0, 7.0]
    assert made["members"] == sorted(world.running())
    assert table([]) == {"seconds": [], "members": [], "steps": [], "rates": []}


def test_every_cause_phase_and_outcome_has_its_words() -> None:
    assert set(sentences.CAUSES) == {cause.value for cause in Cause}
    assert set(sentences.DECIDED) == {scope.value for scope in Scope}
    assert set(sentences.OUTCOMES) == set(Outcome)
    assert set(sentences.MS) == set(PHASES)
