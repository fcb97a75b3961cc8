"""Certificates are replaced while commands run: nothing fails, no stream ends, and the newest are in use."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agent.link import GrpcLinks
from chaos.cluster.certificates import Authority
from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.api.certificates import CertificateEvents
from supervisor.api.client import ControlClient
from supervisor.api.server import serve_api
from supervisor.contract.desired import LeaderRecord
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.incident import Event
from supervisor.contract.observed import LINK_PROTOCOL, Beat
from supervisor.control.decide.snapshot import Versioned
from supervisor.wire.rpc import Guard
from tests.api.services import FakeJobService, Place
from tests.control.world import World
from tests.support.etcd_server import EtcdServer
from tests.support.ports import free_port
from tests.support.sinks import ListSink

ROTATIONS = 20
HOLDERS = {"s0": "supervisor:s0", "n1": "agent:n1", "adam": "user:adam"}


class Rotated:
    """Files of some holders, which are replaced one after the other, as people do it."""

    def __init__(self, root: Path, holders: Sequence[str]) -> None:
        self.root = root
        self.holders = holders
        self.count = 0
        self.authority = self.another()
        self.trust(self.authority)
        for holder in holders:
            self.replace(holder)

    def another(self) -> Authority:
        self.count += 1
        return Authority(self.root / f"authority-{self.count}")

    def trust(self, *authorities: Authority) -> None:
        both = b"".join(each.certificate.read_bytes() for each in authorities)
        (self.root / "ca.new").write_bytes(both)
        (self.root / "ca.new").replace(self.root / "ca.pem")

    def replace(self, holder: str) -> None:
        self.count += 1
        made = self.authority.issue(f"{holder}-{self.count}", ["127.0.0.1"], HOLDERS.get(holder, ""))
        made[1].replace(self.root / f"{holder}.key")
        made[0].replace(self.root / f"{holder}.pem")

    def files(self, holder: str) -> TlsFiles:
        return TlsFiles(self.root / "ca.pem", self.root / f"{holder}.pem", self.root / f"{holder}.key")


@dataclass
class Served:
    """A supervisor with TLS, and the files of all who talk to it."""

    rotated: Rotated
    listen: str
    beats: list[Beat]
    job_service: FakeJobService

    def guard(self, holder: str) -> Guard:
        return Guard(self.rotated.files(holder))

    async def status(self, guard: Guard) -> str:
        """A command of its own, as `supervisorctl` is."""
        try:
            async with ControlClient((self.listen,), guard, deadline_s=60) as client:
                return (await client.status()).jobs[0].name
        except TfSupervisorError as error:
            return str(error)

    def shown(self) -> bytes:
        """The certificate that a new connection is shown."""
        context = ssl.create_default_context(cafile=str(self.rotated.root / "ca.pem"))
        context.load_cert_chain(self.rotated.root / "adam.pem", self.rotated.root / "adam.key")
        host, _, port = self.listen.partition(":")
        with (
            socket.create_connection((host, int(port)), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            found = secured.getpeercert(binary_form=True)
        assert found is not None
        return found


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        rotated, listen = Rotated(tmp_path, tuple(HOLDERS)), f"127.0.0.1:{free_port()}"
        service = FakeJobService(World().start().snapshot(), LeaderRecord("s0", listen, 1))
        shown = {name: str(getattr(rotated.files("s0"), name)) for name in ("ca", "cert", "key")}
        users = {"adam": {"role": "admin"}}
        config = Place(tmp_path, stack).config("s0", listen=listen, tls=shown, users=users)
        beats: list[Beat] = []
        server = await serve_api(service, beats.append, config)
        stack.push_async_callback(server.close, 0)
        yield Served(rotated, listen, beats, service)


async def test_certificates_are_replaced_while_commands_run(served: Served) -> None:
    rotated, adam, sink = served.rotated, served.guard("adam"), ListSink()
    links = GrpcLinks([served.listen], served.guard("n1"), sink)
    await links.open(ignore)
    answers: list[str] = []
    over, answered = asyncio.Event(), asyncio.Event()

    async def keep_asking() -> None:
        while not over.is_set():
            answers.append(await served.status(adam))
            answered.set()
            links.send(Beat(LINK_PROTOCOL, "n1", "i1", len(answers)))

    async def two_commands() -> None:
        """One of them has begun after this call."""
        for _ in range(2):
            answered.clear()
            async with asyncio.timeout(60):
                await answered.wait()

    asking = asyncio.create_task(keep_asking())
    try:
        for _ in range(ROTATIONS):
            before, rotated.authority = rotated.authority, rotated.another()
            rotated.trust(before, rotated.authority)
            await two_commands()
            for holder in HOLDERS:
                rotated.replace(holder)
            await two_commands()
            rotated.trust(rotated.authority)
        await two_commands()
    finally:
        over.set()
        await asking
        await links.close()
    assert set(answers) == {"digits"}
    assert served.beats[-1].seq > len(answers) // 2
    assert [event for _, event, _ in sink.lines] == [], "the stream of beats never ended"
    newest = ssl.PEM_cert_to_DER_cert((rotated.root / "s0.pem").read_text())
    assert await asyncio.to_thread(served.shown) == newest


async def test_a_certificate_of_a_former_authority_is_taken_no_more(served: Served) -> None:
    rotated, former = served.rotated, served.guard("adam")
    assert former.certificates is not None
    old = former.certificates.current()
    assert await served.status(former) == "digits"
    rotated.authority = rotated.another()
    rotated.trust(rotated.authority)
    for holder in HOLDERS:
        rotated.replace(holder)
    assert await served.status(served.guard("adam")) == "digits"
    rotated.trust(rotated.authority, Authority(rotated.root / "other"))
    (rotated.root / "adam.key").write_bytes(old.key)
    (rotated.root / "adam.pem").write_bytes(old.cert)
    with pytest.raises(TfSupervisorError):
        async with ControlClient((served.listen,), served.guard("adam"), deadline_s=2) as client:
            await client.status()


async def test_an_agents_certificate_that_ends_soon_is_an_event_once(served: Served) -> None:
    events = CertificateEvents(served.job_service, ListSink())
    own = {"supervisor:s0": "expires at 2026-03-11 12:00 UTC"}
    events.heard(Beat(LINK_PROTOCOL, "n1", "i1", 1, certificate="expired at 2026-03-01 12:00 UTC"))
    await events.tell(own)
    texts = {**own, "agent:n1": "expired at 2026-03-01 12:00 UTC"}
    assert served.job_service.asked == list(texts.items())
    made = [Event(0, "certificate", "", "", {"holder": each, "state": text}) for each, text in texts.items()]
    told = tuple(Versioned(f"events/{number}", event, 1, 1, 0, 0) for number, event in enumerate(made))
    assert served.job_service.picture is not None
    served.job_service.picture = replace(served.job_service.picture, events=told)
    await events.tell(own)
    events.heard(Beat(LINK_PROTOCOL, "n1", "i1", 2))
    served.job_service.picture = replace(served.job_service.picture, events=())
    await events.tell({})
    served.job_service.picture = None
    await events.tell(own)
    assert len(served.job_service.asked) == 2


async def test_etcd_is_reached_again_with_the_newest_certificate(tmp_path: Path) -> None:
    rotated = Rotated(tmp_path, ("etcd", "s0"))
    with EtcdServer(tls=rotated.files("etcd")) as server:
        client = EtcdCoordination(
            [server.endpoint], "tls", tls=rotated.files("s0"), rpc_deadline_ms=20_000, silence_ms=20_000
        )
        try:
            assert await client.get("x") is None
            rotated.authority = rotated.another()
            rotated.trust(rotated.authority)
            for holder in ("etcd", "s0"):
                rotated.replace(holder)
            await asyncio.to_thread(server.restart)
            assert await client.get("x") is None
        finally:
            await client.close()


def ignore(_: object) -> None:
    pass
