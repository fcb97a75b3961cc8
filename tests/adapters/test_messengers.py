"""Targets of notifications: a real HTTP receiver and real commands, which hang, fail, or are not there."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from supervisor.adapters import notify_command, webhook
from supervisor.adapters.files.config.notify import TargetConfig, objection
from supervisor.adapters.messengers import messenger_of
from supervisor.adapters.notify_command import NotifyCommand
from supervisor.adapters.webhook import Webhook
from supervisor.contract.errors import Refused, Unreachable, UserError
from tests.support.waiting import until

SECRET = "whsec_" + base64.b64encode(b"a key of some length").decode()
PATH = "/services/T0000/secret-in-the-path"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Receiver:
    """A web server that keeps what it was sent."""

    url: str = ""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    answer: Answer | None = None
    lets_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.got.append((headers, await request.read()))
        return await self.answer(request) if self.answer is not None else web.Response(status=204)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", made.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        made.lets_go.set()
        await runner.cleanup()


async def test_a_message_is_posted_and_signed(receiver: Receiver) -> None:
    body = json.dumps({"id": "7-abc"}).encode()
    await Webhook(receiver.url + PATH, SECRET).send(body, "7-abc")
    ((headers, got),) = receiver.got
    assert got == body
    assert headers["webhook-id"] == "7-abc"
    assert headers["content-type"] == "application/json"
    signed = f"7-abc.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(b"a key of some length", signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


async def test_without_a_secret_there_is_no_signature(receiver: Receiver) -> None:
    await Webhook(receiver.url).send(b"{}", "1-a")
    assert "webhook-signature" not in receiver.got[0][0]


async def hangs(receiver: Receiver, _request: web.Request) -> web.StreamResponse:
    await receiver.lets_go.wait()
    return web.Response()


async def fails(_receiver: Receiver, _request: web.Request) -> web.StreamResponse:
    return web.Response(status=500, text="x" * 1_000_000)


async def redirects(receiver: Receiver, _request: web.Request) -> web.StreamResponse:
    return web.Response(status=307, headers={"location": receiver.url + "/elsewhere"})


async def closes(_receiver: Receiver, request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (hangs, "not answered in"),
        (fails, "status 500"),
        (redirects, "redirect"),
        (closes, "there is no answer"),
    ],
)
async def test_a_receiver_that_does_not_take_it_is_an_error_that_names_no_address(
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[Receiver, web.Request], Awaitable[web.StreamResponse]],
    why: str,
) -> None:
    monkeypatch.setattr(webhook, "SEND_S", 0.3)
    receiver.answer = lambda request: answer(receiver, request)
    with pytest.raises((Unreachable, Refused), match=why) as caught:
        await Webhook(receiver.url + PATH, SECRET).send(b"{}", "1-a")
    assert "secret" not in str(caught.value)
    assert str(receiver.url) not in str(caught.value)
    assert len(receiver.got) == 1, "no redirect is followed"


async def test_nobody_at_the_address_is_an_error_that_does_not_name_it() -> None:
    with pytest.raises(Unreachable, match="there is no answer") as caught:
        await Webhook(f"http://127.0.0.1:1{PATH}").send(b"{}", "1-a")
    assert "127.0.0.1" not in str(caught.value)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


async def test_a_command_gets_the_message_on_its_standard_input(tmp_path: Path) -> None:
    command = script(tmp_path / "tell", 'cat >"$1"')
    await NotifyCommand([command, str(tmp_path / "got")]).send(b'{"id": "1-a"}', "1-a")
    assert (tmp_path / "got").read_text() == '{"id": "1-a"}\n'


async def test_a_command_that_fails_or_reads_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="ended with code 3"):
        await NotifyCommand([script(tmp_path / "fails", "exit 3")]).send(b"x" * 1_000_000, "1-a")


async def test_a_command_that_hangs_is_killed_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify_command, "COMMAND_S", 0.5)
    pids = tmp_path / "pids"
    command = script(tmp_path / "hangs", f"sleep 600 & echo $! >{pids}; echo $$ >>{pids}; sleep 600")
    with pytest.raises(Unreachable, match="has not ended within"):
        await NotifyCommand([command]).send(b"{}", "1-a")
    await until(lambda: not any(is_alive(pid) for pid in pids.read_text().split()))


def is_alive(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_command_that_is_missing_or_not_executable_is_found_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is not on this machine"):
        messenger_of(TargetConfig(command=[str(tmp_path / "nothing")]), insecure=False)
    (tmp_path / "text").write_text("no program")
    with pytest.raises(Refused, match="is not executable"):
        messenger_of(TargetConfig(command=[str(tmp_path / "text")]), insecure=False)


def test_ways_are_equal_while_their_files_hold_the_same(tmp_path: Path) -> None:
    secret, command = tmp_path / "secret", script(tmp_path / "tell", "true")
    secret.write_text("one\n")
    asked = TargetConfig(webhook="https://h/p", secret_file=str(secret))
    first = messenger_of(asked, insecure=False)
    assert first == messenger_of(asked, insecure=False)
    secret.write_text("two\n")
    assert first != messenger_of(asked, insecure=False)
    assert NotifyCommand([command]) == NotifyCommand([command]) != NotifyCommand([command, "x"])
    assert len({NotifyCommand([command]), NotifyCommand([command]), first}) == 2


def test_files_of_a_webhook_are_read_at_the_start_and_not_quoted(tmp_path: Path) -> None:
    address, secret = tmp_path / "address", tmp_path / "secret"
    address.write_text("gopher://token-in-it\n")
    with pytest.raises(UserError, match="is no address") as caught:
        messenger_of(TargetConfig(webhook_file=str(address)), insecure=False)
    assert "token-in-it" not in str(caught.value)
    address.write_text("https://hooks.example/secret\n")
    secret.write_text("whsec_***\n")
    with pytest.raises(UserError, match="no base64") as caught:
        messenger_of(TargetConfig(webhook_file=str(address), secret_file=str(secret)), insecure=False)
    assert "***" not in str(caught.value)
    secret.write_text("\n")
    with pytest.raises(UserError, match="is empty"):
        messenger_of(TargetConfig(webhook_file=str(address), secret_file=str(secret)), insecure=False)
    secret.write_text("plain\n")
    messenger_of(TargetConfig(webhook_file=str(address), secret_file=str(secret)), insecure=False)


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("https://hooks.example/x", ""),
        ("http://127.0.0.1:9/x", ""),
        ("http://[::1]:9/x", ""),
        ("http://hooks.example/x", "read by everybody"),
        ("https://user:pw@hooks.example/x", "has a user"),
        ("https://hooks.example:99999/", "is no address"),
        ("ftp://hooks.example", "is no address"),
        ("file:///etc/passwd", "is no address"),
        ("https://", "is no address"),
        ("x", "is no address"),
    ],
)
def test_an_address_that_is_not_good_is_refused(url: str, wrong: str) -> None:
    assert wrong in objection(url, insecure=False)
    assert bool(wrong) is bool(objection(url, insecure=False))
