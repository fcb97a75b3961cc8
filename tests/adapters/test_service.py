"""The end and the reload of a daemon, as its service manager asks for them by signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from supervisor.adapters import service
from supervisor.adapters.files.config.supervisor import SupervisorConfig, load_supervisor
from tests.support.sinks import ListSink


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_what_comes_last_is_done_while_the_work_still_runs(number: signal.Signals) -> None:
    story: list[str] = []
    serving = asyncio.Event()

    async def work() -> None:
        try:
            serving.set()
            await asyncio.Event().wait()
        finally:
            story.append("work ends")

    async def last() -> None:
        story.append("last begins")
        await asyncio.sleep(0)
        story.append("last ends")

    running = asyncio.create_task(service.until_told(work(), last))
    await serving.wait()
    os.kill(os.getpid(), number)
    assert await asyncio.wait_for(running, 10)
    assert story == ["last begins", "last ends", "work ends"]


SUPERVISOR = {
    "cluster": "c",
    "id": "s0",
    "listen": "unix:/none",
    "state_dir": "s",
    "etcd": {"endpoints": ["unix:/etcd"]},
}


async def test_a_configuration_is_read_again_at_sighup(tmp_path: Path) -> None:
    file, sink = tmp_path / "supervisor.yaml", ListSink()
    file.write_text(json.dumps(SUPERVISOR))
    taken: list[SupervisorConfig] = []
    heard, serving = asyncio.Event(), asyncio.Event()

    def take(config: SupervisorConfig) -> None:
        taken.append(config)

    config = load_supervisor(file)
    reload = service.reloading(config, partial(load_supervisor, file), take, sink)

    async def work() -> None:
        serving.set()
        await asyncio.Event().wait()

    async def hang_up() -> None:
        heard.clear()
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(10):
            await heard.wait()

    def reload_and_tell() -> None:
        reload()
        heard.set()

    running = asyncio.create_task(service.until_told(work(), reload=reload_and_tell))
    await serving.wait()
    changed = {"users": {"bob": {"role": "viewer"}}, "denied": ["user:eve"], "profile": "fast"}
    changed["fence"] = {"after": "1s"}
    file.write_text(json.dumps(SUPERVISOR | changed))
    await hang_up()
    file.write_text(json.dumps(SUPERVISOR | {"denied": ["eve"]}))
    await hang_up()
    file.write_text(json.dumps(SUPERVISOR | {"profile": "fast"}))
    await hang_up()
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert [(each.denied, list(each.users), each.fence.after, each.profile) for each in taken] == [
        (["user:eve"], ["bob"], 1000, "default"),
        ([], [], None, "default"),
    ]
    assert [(level, event) for level, event, _ in sink.lines] == [
        ("info", "configuration read again"),
        ("error", "configuration not read again"),
        ("info", "configuration read again"),
    ]
    told = [fields for _, event, fields in sink.lines if event == "configuration read again"]
    assert told == [{"taken": ["denied", "fence", "users"], "restart_needed_for": ["profile"]}] * 2


async def test_work_that_ends_by_itself_is_not_followed_by_anything() -> None:
    async def work() -> None:
        raise RuntimeError("a bug")

    async def last() -> None:
        raise AssertionError("nobody asked")

    with pytest.raises(RuntimeError, match="a bug"):
        await service.until_told(work(), last)


def test_agents_are_shared_among_the_members_of_etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[tuple[str, ...]] = []
    monkeypatch.setattr(service, "EtcdCoordination", lambda endpoints, *_, **__: orders.append(endpoints))
    file = tmp_path / "supervisor.yaml"
    file.write_text(json.dumps(SUPERVISOR | {"etcd": {"endpoints": ["unix:/1", "unix:/2", "unix:/3"]}}))
    config = load_supervisor(file)
    for name in ("", *(f"node-{number}" for number in range(30))):
        service.connect(config, name)
    assert orders[0] == ("unix:/1", "unix:/2", "unix:/3"), "supervisors take them as they are written"
    assert all(sorted(each) == ["unix:/1", "unix:/2", "unix:/3"] for each in orders)
    assert min(Counter(each[0] for each in orders[1:]).values()) >= 5
