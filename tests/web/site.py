"""A supervisor's HTTP door over scripted snapshots: real sockets and pages, no daemon behind."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from aiohttp import ClientSession

from supervisor.adapters.files.config.daemon import HttpConfig
from supervisor.api.server import ControlService
from supervisor.contract import keys
from supervisor.contract.desired import JobPhase, JobSwitch, LeaderRecord
from supervisor.contract.job.spec import JobIntent, JobRecord
from supervisor.control.decide.plan import put
from supervisor.web.routes import routes
from supervisor.web.source import Source
from supervisor.wire.audit import Auditor
from supervisor.wire.gate import Policy
from supervisor.wire.http import HttpDoor
from supervisor.wire.rpc import Guard
from tests.api.services import FakeJobService
from tests.control.world import World
from tests.support.ports import free_port
from tests.support.sinks import ListSink
from tests.support.waiting import until

TOKEN = "t" * 32
HOST = "127.0.0.1"
START_MS = 1_795_680_000_000


@dataclass
class Site:
    """One supervisor. `world` is what it sees while it leads."""

    stack: AsyncExitStack
    world: World
    port: int = field(default_factory=free_port)
    service: FakeJobService = field(init=False)
    sink: ListSink = field(default_factory=ListSink)
    _running: asyncio.Task[object] | None = None

    def __post_init__(self) -> None:
        self.service = FakeJobService(
            self.world.snapshot(), LeaderRecord("s0", "unix:/s0", 1, f"http://{HOST}:{self.port}")
        )

    async def open(self) -> Site:
        source = Source(ControlService(self.service, "demo", Guard()), self.service, "demo")
        door = HttpDoor(
            settings=HttpConfig(listen=f"{HOST}:{self.port}"),
            guard=Guard(token=TOKEN),
            policy=Policy(),
            auditor=Auditor(),
            sink=self.sink,
            routes=lambda: routes(source),
        )
        self._running = asyncio.create_task(door.run())
        self.stack.push_async_callback(self.close)
        count = len(self.sink.lines)
        await until(lambda: len(self.sink.lines) > count)
        return self

    async def close(self) -> None:
        """The supervisor is away."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def show(self) -> None:
        """Let it see what its world has become."""
        self.service.picture = self.world.snapshot()

    def tick(self, ms: int = 1_000) -> None:
        """Let time go by in its world, and show that."""
        for _ in range(max(1, ms // 100)):
            self.world.wall_ms += 100
            self.world.tick(100)
        self.show()

    def follow(self, leader: LeaderRecord | None) -> None:
        """Let it lead no more."""
        self.service.picture, self.service.record = None, leader

    def url(self, path: str = "/") -> str:
        return f"http://{HOST}:{self.port}{path}"

    def add_jobs(self, count: int) -> None:
        """More jobs, which wait."""
        for index in range(count):
            name = f"job-{index:04d}"
            spec = replace(self.world.spec, name=name)
            self.world.write(
                put(keys.job_record(name), JobRecord(spec, f"u{index}", 0)),
                put(keys.intent(name), JobIntent()),
                put(keys.switch(name), JobSwitch(name, f"u{index}", JobPhase.WAITING, 0)),
            )
        self.show()


async def get(site: Site, path: str, *, follow: bool = False) -> tuple[int, str, str]:
    """Status, text, and the Location if there is one."""
    async with (
        ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
        session.get(site.url(path), allow_redirects=follow) as answer,
    ):
        return answer.status, await answer.text(), answer.headers.get("Location", "")
