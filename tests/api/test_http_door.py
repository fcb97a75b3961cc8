"""The HTTP door at real sockets: callers, hostile requests, and callers that hang."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
from aiohttp import ClientConnectionError, ClientError, ClientSession, TCPConnector

from chaos.cluster.certificates import Authority
from supervisor.adapters.audit import open_audit
from supervisor.adapters.certificates.reload import Certificates
from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.adapters.files.config.daemon import AuditConfig, HttpConfig
from supervisor.contract.access import Role, Standing
from supervisor.contract.errors import NotFound, Unreachable
from supervisor.wire import http_server
from supervisor.wire.audit import Auditor
from supervisor.wire.gate import Policy
from supervisor.wire.http import Answer, Asked, Handler, HttpDoor, Route
from supervisor.wire.rpc import Guard
from tests.support.ports import free_port
from tests.support.sinks import ListSink
from tests.support.waiting import until

TOKEN = "t" * 32
USERS = {"vera": Standing(Role.VIEWER), "nobody": Standing()}
HOST = "127.0.0.1"


@dataclass
class Site:
    """One door, and what its handlers saw."""

    stack: AsyncExitStack
    guard: Guard
    policy: Policy = field(default_factory=lambda: Policy(USERS))
    auditor: Auditor = field(default_factory=Auditor)
    sink: ListSink = field(default_factory=ListSink)
    port: int = field(default_factory=free_port)
    asked: list[Asked] = field(default_factory=list)
    sent: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    load: Callable[[], None] = lambda: None
    busy: Handler | None = None

    async def open(self) -> Site:
        paths = {"/seen/{job}": self.see, "/hang": self.hang, "/gone": self.gone, "/bug": self.bug}
        routes = [Route(path, "Control.Status", handler) for path, handler in paths.items()]
        routes += [Route("/stored/{job}", "Control.Describe", self.see)]
        routes += [Route("/stream", "Control.Events", self.stream), Route("/secret", "Node.Exec", self.see)]
        routes += [Route("/quiet", "Control.Events", self.quiet)]
        routes += [Route("/busy", "Control.Status", self.be_busy)]

        def load() -> list[Route]:
            self.load()
            return routes

        door = HttpDoor(
            settings=HttpConfig(listen=f"{HOST}:{self.port}", advertise=f"boss:{self.port}"),
            guard=self.guard,
            policy=self.policy,
            auditor=self.auditor,
            sink=self.sink,
            routes=load,
        )
        running = asyncio.create_task(door.run())
        self.stack.push_async_callback(asyncio.gather, running, return_exceptions=True)
        self.stack.callback(running.cancel)
        await self.line("HTTP door is open")
        return self

    async def line(self, event: str) -> Mapping[str, object]:
        def found() -> list[dict[str, object]]:
            return [fields for _, said, fields in self.sink.lines if said == event]

        await until(lambda: bool(found()))
        return found()[-1]

    def url(self, path: str = "/seen/digits") -> str:
        return f"{'https' if self.guard.tls else 'http'}://{HOST}:{self.port}{path}"

    async def raw(self, text: bytes) -> bytes:
        """Everything that comes back before the door closes the connection."""
        reader, writer = await asyncio.open_connection(HOST, self.port)
        try:
            writer.write(text)
            async with asyncio.timeout(10):
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def see(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        return Answer(json.dumps([str(asked.caller), dict(asked.names), dict(asked.query)]).encode())

    async def hang(self, asked: Asked) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    async def gone(self, asked: Asked) -> Answer:
        raise NotFound("no job 'x'")

    async def bug(self, asked: Asked) -> Answer:
        raise ValueError("hunter2")

    async def stream(self, asked: Asked) -> Answer:
        return Answer(self.chunks(), "text/event-stream")

    async def be_busy(self, asked: Asked) -> Answer:
        assert self.busy is not None
        return await self.busy(asked)

    async def quiet(self, asked: Asked) -> Answer:
        return Answer(self.silence(), "text/event-stream")

    async def silence(self) -> AsyncGenerator[bytes, None]:
        try:
            yield b":"
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                self.sent += 1
                yield b"x" * 65_536
                await asyncio.sleep(0)
        finally:
            self.ended.set()


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


@pytest.fixture
async def site(stack: AsyncExitStack) -> Site:
    return await Site(stack, Guard(token=TOKEN)).open()


async def get(
    site: Site,
    path: str = "/seen/digits",
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> tuple[int, dict[str, str], str]:
    """Status, headers and text; on a connection of its own."""
    connector = TCPConnector(ssl=context) if context is not None else TCPConnector()
    async with (
        ClientSession(connector=connector) as session,
        session.get(site.url(path), headers=headers, allow_redirects=False) as answer,
    ):
        return answer.status, dict(answer.headers), await answer.text()


BEARER = {"Authorization": f"Bearer {TOKEN}"}


async def test_programs_show_the_token_as_a_bearer(site: Site) -> None:
    status, headers, text = await get(site, "/seen/digits?last=3&last=4", BEARER)
    assert (status, json.loads(text)) == (200, ["token", {"job": "digits"}, {"last": "3"}])
    assert headers.items() >= http_server.SECURITY.items()
    for wrong in ({}, {"Authorization": "Bearer " + "u" * 32}, {"Authorization": f"Basic {TOKEN}"}):
        status, headers, text = await get(site, headers=wrong)
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "Authorization: Bearer" in text
        assert headers.items() >= http_server.SECURITY.items()
    assert len(site.asked) == 1


async def test_a_browser_shows_the_token_once_and_keeps_a_cookie_that_is_not_it(site: Site) -> None:
    status, headers, _ = await get(site, f"/seen/digits?last=3&token={TOKEN}")
    assert (status, headers["Location"]) == (303, "/seen/digits?last=3")
    cookie, *attributes = headers["Set-Cookie"].split("; ")
    assert attributes == ["Path=/", "HttpOnly", "SameSite=Strict"]
    assert TOKEN not in cookie
    assert (await get(site, headers["Location"], {"Cookie": cookie}))[0] == 200
    name, _, value = cookie.partition("=")
    assert (await get(site, headers={"Cookie": f"{name}={TOKEN}"}))[0] == 401
    assert (await get(site, headers={"Authorization": f"Bearer {value}"}))[0] == 401
    assert (await get(site, "/seen/digits?token=wrong", {"Cookie": cookie}))[0] == 401
    assert len(site.asked) == 1, "the token alone shows nothing"


async def test_no_token_leads_to_another_site(site: Site) -> None:
    for path in ("//evil.example/", "/\\evil.example", "/%2fevil.example", "/@evil.example"):
        status, headers, _ = await get(site, f"{path}?token={TOKEN}")
        assert (status, headers.get("Location")) == (404, None), path


async def test_other_pages_cannot_reach_it_by_a_name_of_their_own(site: Site) -> None:
    port = site.port
    for host in (f"{HOST}:{port}", f"localhost:{port}", f"[::1]:{port}", "[::1]", f"BOSS:{port}", "10.1.2.3"):
        assert (await get(site, headers={"Host": host, **BEARER}))[0] == 200, host
    for host in (f"evil.example:{port}", "localhost.evil.example", "", "127.0.0.1.evil:1", "a:b:c"):
        assert (await get(site, headers={"Host": host, **BEARER}))[0] == 421, host
    twice = f"GET /seen/x HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    assert b" 200 " not in await site.raw(twice.encode())


HOSTILE = {
    "another method": b"POST /seen/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
    "a method of its own": b"BREW /seen/x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a body": b"GET /seen/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
    "a body without end": b"GET /gone HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nh",
    "no host": b"GET /seen/x HTTP/1.1\r\n\r\n",
    "a long line": b"GET /seen/" + b"x" * 9_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a long header": b"GET /seen/x HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 9_000 + b"\r\n\r\n",
    "many headers": b"GET /seen/x HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n",
    "two lengths": b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
    "a path upwards": b"GET /seen/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a path with a nul": b"GET /se%00en/x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an upgrade": b"GET /gone HTTP/1.1\r\nHost: [::1]\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_hostile_requests_are_turned_away(site: Site, what: str) -> None:
    answer = await site.raw(HOSTILE[what])
    head = answer.partition(b"\r\n\r\n")[0].decode().splitlines()
    assert int(head[0].split()[1]) in (400, 401, 404, 405, 421), head
    assert {f"{name}: {value}" for name, value in http_server.SECURITY.items()} <= set(head)
    assert (await get(site, headers=BEARER))[0] == 200, "it goes on"
    assert [line for line in site.sink.lines if line[1] != "HTTP door is open"] == []
    assert len(site.asked) == 1


async def test_errors_are_answers_and_tell_nothing_of_a_bug(site: Site) -> None:
    status, _, text = await get(site, "/gone", BEARER)
    assert (status, json.loads(text)["error"]) == (404, "NotFound")
    status, _, text = await get(site, "/bug", BEARER)
    assert (status, "hunter2" in text) == (500, False)
    assert "hunter2" in str((await site.line("an HTTP request failed"))["reason"])
    status, _, text = await get(site, "/secret", BEARER)
    assert status == 200, "whoever has the token may do everything"


async def test_head_has_no_body(site: Site) -> None:
    ask = f"HEAD /seen/x HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    head, _, body = (await site.raw(ask.encode())).partition(b"\r\n\r\n")
    assert (head.split()[1], body) == (b"200", b"")
    head, _, body = (await site.raw(ask.replace("/seen/x", "/stream").encode())).partition(b"\r\n\r\n")
    assert (head.split()[1], body) == (b"200", b"")
    assert site.sent == 0


async def test_callers_that_hang_hold_up_nobody(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 8)
    monkeypatch.setattr(http_server, "ANSWER_S", 1.0)
    hanging = [await asyncio.open_connection(HOST, site.port) for _ in range(20)]
    for _, writer in hanging:
        writer.write(b"GET /seen/x HTTP/1.1\r\nHo")
    try:
        begun = asyncio.get_running_loop().time()
        slow = asyncio.create_task(get(site, "/hang", BEARER))
        assert (await get(site, headers=BEARER))[0] == 200
        assert asyncio.get_running_loop().time() - begun < 1.0
        assert (await slow)[0] == 503
    finally:
        for _, writer in hanging:
            writer.close()


async def test_a_caller_that_asks_without_pause_leaves_time_to_the_loop(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "PACE_S", 0.0)
    at_once, most = 0, 0

    async def busy(asked: Asked) -> Answer:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.1)
        at_once -= 1
        return Answer(b"")

    site.busy = busy
    begun = asyncio.get_running_loop().time()
    answers = await asyncio.gather(*(get(site, "/busy", BEARER) for _ in range(12)))
    assert {status for status, _, _ in answers} == {200}
    assert most == http_server.MOST_AT_ONCE
    assert asyncio.get_running_loop().time() - begun > 0.49, (
        "three rounds, with a rest after each but the last"
    )


async def test_streams_of_a_caller_take_turns_and_hold_up_no_request(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MOST_AT_ONCE", 1)
    monkeypatch.setattr(http_server, "ANSWER_S", 1.0)
    monkeypatch.setattr(http_server, "PACE_S", 0.0)
    at_once, most, hangs = 0, 0, asyncio.Event()

    async def live(asked: Asked) -> AsyncGenerator[bytes, None]:
        nonlocal at_once, most
        yield b"begun "
        try:
            async with asked.turn():
                at_once += 1
                most = max(most, at_once)
                await (hangs.wait() if asked.query else asyncio.sleep(0.05))
        except Unreachable as error:
            yield str(error).encode()
        finally:
            at_once -= 1

    async def stream(asked: Asked) -> Answer:
        return Answer(live(asked), "text/event-stream")

    site.busy = stream
    answers = await asyncio.gather(*(get(site, "/busy", BEARER) for _ in range(4)))
    assert {text for _, _, text in answers} == {"begun "}
    assert most == 1
    hung = asyncio.create_task(get(site, "/busy?hangs=1", BEARER))
    await until(lambda: at_once == 1)
    assert (await get(site, headers=BEARER))[0] == 200
    assert not hung.done(), "a request did not wait for it"
    assert (await hung)[2] == "begun there is no answer within 1 s"


async def test_a_connection_without_a_whole_request_is_closed(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "IDLE_S", 0.3)
    site = await Site(stack, Guard(token=TOKEN)).open()
    for begun in (b"", b"GET /seen/x HTTP/1.1\r\nHo", b"\r\n"):
        assert await site.raw(begun) == b""
    kept = f"GET /seen/x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
    assert (await site.raw(kept)).count(b" 200 ") == 1


async def test_a_caller_that_does_not_read_a_stream_is_dropped(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "SLOW_S", 0.3)
    monkeypatch.setattr(http_server, "MOST_STREAMS", 1)
    reader, writer = await asyncio.open_connection(HOST, site.port, limit=1024)
    ask = f"GET /stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    writer.write(ask.encode())
    await reader.readline()
    status, headers, _ = await get(site, "/stream", BEARER)
    assert (status, headers["Retry-After"]) == (503, "5"), "one stream more than is allowed"
    async with asyncio.timeout(10):
        await site.ended.wait()
    assert site.sent * 65_536 < 32 << 20
    writer.close()
    assert (await get(site, headers=BEARER))[0] == 200


async def test_a_stream_with_nothing_to_send_ends_when_its_caller_is_gone(site: Site) -> None:
    reader, writer = await asyncio.open_connection(HOST, site.port)
    ask = f"GET /quiet HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    writer.write(ask.encode())
    await reader.readuntil(b"\r\n:\r\n")
    writer.close()
    async with asyncio.timeout(10):
        await site.ended.wait()


def files_of(root: Path, name: str, identity: str, authority: Authority, trusted: Path) -> TlsFiles:
    return TlsFiles(trusted, *authority.issue(name, [HOST], identity))


def shown(files: TlsFiles | None, trusted: Path) -> ssl.SSLContext:
    """A client's context, with its certificate."""
    context = ssl.create_default_context(cafile=str(trusted))
    if files is not None:
        context.load_cert_chain(files.cert, files.key)
    return context


async def test_certificates_name_their_holders_as_on_grpc(tmp_path: Path, stack: AsyncExitStack) -> None:
    ours, users, foreign = (Authority(tmp_path / name) for name in ("ours", "users", "foreign"))
    ca = ours.certificate
    served = TlsFiles(ca, *ours.issue("s0", [HOST], "supervisor:s0"), users.certificate)
    site = await Site(stack, Guard(served, token=TOKEN)).open()

    async def ask(identity: str, authority: Authority | None, path: str = "/seen/digits") -> int:
        made = files_of(tmp_path, "caller", identity, authority, ca) if authority is not None else None
        try:
            return (await get(site, path, BEARER, shown(made, ca)))[0]
        except ClientConnectionError:
            return 0

    assert await ask("user:vera", users) == 200
    assert await ask("user:vera", ours) == 200
    assert await ask("user:vera", foreign) == 0
    assert await ask("", None) == 0
    assert await ask("", ours) == 403
    assert await ask("user:nobody", users) == 403
    assert await ask("agent:n1", ours) == 403
    assert await ask("supervisor:s1", users, "/secret") == 403, "users' authority signs users alone"
    assert await ask("supervisor:s1", ours, "/secret") == 200
    assert await ask("user:vera", users, "/secret") == 403
    site.policy.denied = frozenset({"user:vera"})
    assert await ask("user:vera", users) == 403
    assert {str(asked.caller) for asked in site.asked} == {"user:vera", "supervisor:s1"}


async def test_a_jobs_stored_file_is_for_those_who_may_act_on_the_job(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    authority = Authority(tmp_path)
    users = {"vera": Standing(Role.VIEWER), "olga": Standing(Role.OPERATOR)}
    users |= {name: Standing(Role.SUBMITTER) for name in ("alice", "bob")}
    policy = Policy(users, owner=lambda target: replace(target, known=True, owner="user:alice"))
    served = files_of(tmp_path, "s0", "supervisor:s0", authority, authority.certificate)
    site = await Site(stack, Guard(served), policy).open()
    answers = {}
    for name in users:
        made = files_of(tmp_path, name, f"user:{name}", authority, authority.certificate)
        answers[name] = await get(site, "/stored/digits", {}, shown(made, authority.certificate))
    assert {name: status for name, (status, *_) in answers.items()} == {
        "vera": 403,
        "olga": 200,
        "alice": 200,
        "bob": 403,
    }
    assert "belongs to user:alice" in str(answers["bob"])


async def test_an_open_stream_ends_when_the_role_is_taken_away(tmp_path: Path, stack: AsyncExitStack) -> None:
    authority = Authority(tmp_path)
    ca = authority.certificate
    site = await Site(stack, Guard(files_of(tmp_path, "s0", "supervisor:s0", authority, ca))).open()
    vera = shown(files_of(tmp_path, "vera", "user:vera", authority, ca), ca)
    async with (
        ClientSession(connector=TCPConnector(ssl=vera)) as session,
        session.get(site.url("/stream")) as answer,
    ):
        await answer.content.readexactly(65_536)
        site.policy.users = {}
        with pytest.raises(ClientError):
            await answer.read()
    async with asyncio.timeout(10):
        await site.ended.wait()


async def test_certificates_are_read_again(tmp_path: Path, stack: AsyncExitStack) -> None:
    before, after = Authority(tmp_path / "before"), Authority(tmp_path / "after")
    ca = tmp_path / "ca.pem"

    def trust(authority: Authority) -> None:
        (tmp_path / "new").write_bytes(authority.certificate.read_bytes())
        (tmp_path / "new").replace(ca)

    def serve(authority: Authority) -> None:
        cert, key = authority.issue("s0", [HOST], "supervisor:s0")
        key.replace(tmp_path / "s0.key")
        cert.replace(tmp_path / "s0.pem")

    trust(before)
    serve(before)
    site = await Site(stack, Guard(TlsFiles(ca, tmp_path / "s0.pem", tmp_path / "s0.key"))).open()
    old = files_of(tmp_path, "vera", "user:vera", before, ca)
    assert (await get(site, context=shown(old, before.certificate)))[0] == 200
    trust(after)
    serve(after)
    new = files_of(tmp_path, "vera", "user:vera", after, ca)
    assert (await get(site, context=shown(new, after.certificate)))[0] == 200
    with pytest.raises(ClientConnectionError):
        await get(site, context=shown(old, after.certificate))
    (tmp_path / "s0.key").write_text("-----BEGIN PRIVATE KEY-----\n")
    assert (await get(site, context=shown(new, after.certificate)))[0] == 200, "the former stays in use"


async def test_a_caller_that_does_not_shake_hands_holds_up_nobody(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HANDSHAKE_S", 0.5)
    authority = Authority(tmp_path)
    site = await Site(
        stack, Guard(files_of(tmp_path, "s0", "supervisor:s0", authority, authority.certificate))
    ).open()
    assert await site.raw(b"") == b"", "it is closed"
    vera = shown(
        files_of(tmp_path, "vera", "user:vera", authority, authority.certificate), authority.certificate
    )
    assert (await get(site, context=vera))[0] == 200
    monkeypatch.setattr(http_server, "HANDSHAKE_S", 60.0)
    monkeypatch.setattr(http_server, "MOST_HANDSHAKES", 4)
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 8)
    waiting = [await asyncio.open_connection(HOST, site.port) for _ in range(12)]
    assert (await get(site, context=vera))[0] == 200, "it takes the place of the oldest"
    for _, writer in waiting:
        writer.close()


async def test_an_ended_connection_counts_until_its_caller_lets_go(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 8)
    authority = Authority(tmp_path)
    ca = authority.certificate
    site = await Site(stack, Guard(files_of(tmp_path, "s0", "supervisor:s0", authority, ca))).open()
    context = shown(files_of(tmp_path, "nobody", "user:nobody", authority, ca), ca)

    def refused() -> ssl.SSLSocket:
        made = context.wrap_socket(socket.create_connection((HOST, site.port)), server_hostname=HOST)
        made.sendall(b"GET /seen/x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 403 " in made.recv(100)
        return made

    kept = [await asyncio.to_thread(refused) for _ in range(20)]
    ours = [each for each in psutil.Process().net_connections("tcp") if each.laddr[1] == site.port]
    for each in kept:
        each.close()
    assert len(ours) <= 1 + http_server.MOST_CONNECTIONS, "the listening one, and those that are open"


async def test_certificates_in_files_that_hang_leave_threads_to_others(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, goes_on = Authority(tmp_path), threading.Event()
    ca = authority.certificate
    read = Certificates.server_context

    def hang(self: Certificates) -> ssl.SSLContext:
        goes_on.wait(30)
        return read(self)

    monkeypatch.setattr(Certificates, "server_context", hang)
    site = await Site(stack, Guard(files_of(tmp_path, "s0", "supervisor:s0", authority, ca))).open()
    waiting = [await asyncio.open_connection(HOST, site.port) for _ in range(40)]
    try:
        async with asyncio.timeout(10):
            await asyncio.to_thread(until_taken, site.port, 40)
    finally:
        goes_on.set()
    for _, writer in waiting:
        writer.close()
    vera = files_of(tmp_path, "vera", "user:vera", authority, ca)
    assert (await get(site, context=shown(vera, ca)))[0] == 200


def until_taken(port: int, count: int) -> None:
    """Wait, in a thread of those that all share, until the door has taken so many connections."""
    while sum(each.laddr[1] == port for each in psutil.Process().net_connections("tcp")) <= count:
        time.sleep(0.05)


async def test_reads_are_in_the_audit_log(tmp_path: Path, stack: AsyncExitStack) -> None:
    log = open_audit(AuditConfig(file=str(tmp_path / "audit")), ListSink())
    site = await Site(stack, Guard(token=TOKEN), auditor=Auditor("supervisor:s0", log)).open()
    await get(site, headers=BEARER)
    await get(site)
    assert log is not None
    await asyncio.to_thread(log.close)
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [(line["stage"], line["method"]) for line in lines] == [
        ("received", "Control.Status"),
        ("completed", "Control.Status"),
        ("refused", "Control.Status"),
    ]
    assert lines[0]["on"] == {"job": "digits"}
    assert TOKEN not in (tmp_path / "audit").read_text()


async def test_a_port_in_use_is_tried_again(stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.wire.http.AGAIN_S", 0.05)
    first = await asyncio.start_server(lambda *_: None, HOST, 0)
    site = Site(stack, Guard(token=TOKEN), port=first.sockets[0].getsockname()[1])
    opening = asyncio.create_task(site.open())
    assert "in use" in str((await site.line("cannot listen for HTTP"))["reason"])
    first.close()
    await opening
    assert (await get(site, headers=BEARER))[0] == 200


async def test_a_door_that_has_failed_is_opened_again(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.wire.http.AGAIN_S", 0.05)
    tries = iter([KeyError("no such template"), None])

    def load() -> None:
        if (error := next(tries)) is not None:
            raise error

    site = await Site(stack, Guard(token=TOKEN), load=load).open()
    with pytest.raises(ClientConnectionError):
        await get(site, headers=BEARER)
    assert "no such template" in str((await site.line("the HTTP door has failed"))["reason"])
    await until(lambda: [said for _, said, _ in site.sink.lines].count("HTTP door is open") == 2)
    assert (await get(site, headers=BEARER))[0] == 200


def test_daemons_do_not_load_it_before_it_is_used() -> None:
    code = "import sys, supervisor.main, agent.main; print({'aiohttp', 'jinja2'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
