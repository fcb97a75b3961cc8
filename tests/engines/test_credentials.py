"""The certificate of a pool's agent: asked for until it is there, renewed, and told about in words."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import pytest
from click.testing import CliRunner

from supervisor.adapters.certificates import openssl
from supervisor.adapters.certificates.issuer import Issuer, Leaf
from supervisor.adapters.certificates.reload import Certificates
from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.adapters.files.config.agent import load_agent
from supervisor.adapters.files.private import write_private
from supervisor.cli.cluster.certs import certs
from supervisor.cli.pool import commands as commands_of_pool
from supervisor.cli.pool import tokens
from supervisor.contract.errors import Refused, TfSupervisorError, Unreachable, UserError
from supervisor.contract.pool.requests import Certificate, CertifyRequest, PoolView
from supervisor.engines import agent_file, credentials, keeper
from supervisor.engines.agent_file import Own
from supervisor.engines.credentials import Credentials
from supervisor.engines.engine import PoolAgent, State
from supervisor.engines.keeper import Order
from supervisor.wire.rpc import Guard
from tests.support.waiting import wait_until

NODE = "train.n1"
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    for words in (("issue", str(made), "supervisor:s0"), ("pool-authority", str(made))):
        assert CliRunner().invoke(certs, words).exit_code == 0
    return made


@dataclass
class Supervisors:
    """Supervisors that answer as they are told. With no answer left they sign."""

    tls: Path
    answers: list[TfSupervisorError] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """The node, and the certificate that was shown."""
    shown: Path = Path()

    def client(self, addresses: Sequence[str], guard: Guard, *, deadline_s: float) -> Self:
        assert list(addresses) == ["127.0.0.1:7600"]
        assert guard.tls is not None
        guard.tls.load()
        self.shown = guard.tls.cert
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def certify(self, request: CertifyRequest) -> Certificate:
        self.asked.append((request.node, self.shown.name))
        if self.answers:
            raise self.answers.pop(0)
        return Certificate(*self.sign(request.request, HOUR))

    def sign(self, request: str, life: timedelta, ago: timedelta = timedelta()) -> tuple[str, int]:
        issuer = Issuer(self.tls / "pool-ca.pem", self.tls / "pool-ca.key", life)
        leaf = Leaf(name="pool:train", uris=(f"agent:{NODE}",), life=life)
        pem, ends = issuer.sign(request, leaf, datetime.now(UTC) - ago)
        return pem, round(ends.timestamp() * 1000)


@pytest.fixture
def supervisors(tls: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisors:
    made = Supervisors(tls)
    monkeypatch.setattr(credentials, "ControlClient", made.client)
    monkeypatch.setattr(credentials, "FIRST_MS", 1)
    monkeypatch.setattr(credentials, "MOST_MS", 1)
    return made


@dataclass
class Kept:
    """An agent's certificate, and what its keeper says of it."""

    kept: Credentials
    own: TlsFiles
    token: Path
    said: list[str]


@pytest.fixture
def agent(tls: Path, tmp_path: Path, supervisors: Supervisors) -> Kept:
    shared = tmp_path / "pool.yaml"
    shared.write_text(json.dumps(body(tls, tmp_path)))
    prepare_disk(tmp_path)
    assert agent_file.check(shared, "train").certified
    made = load_agent(agent_file.write(shared, Own(node=NODE)))
    token, own, said = tmp_path / "train.token", made.tls_files(), list[str]()
    assert own is not None
    put_token(supervisors, token)
    return Kept(Credentials(made, token, said.append), own, token, said)


def body(tls: Path, directory: Path) -> dict[str, object]:
    """A file that all agents of a pool share."""
    ca = {"ca": str(tls / "ca.pem")}
    return {
        "cluster": "c",
        "node": "any",
        "supervisors": ["127.0.0.1:7600"],
        "etcd": {"endpoints": ["127.0.0.1:2379"], "tls": ca},
        "listen": "127.0.0.1:7601",
        "tls": ca,
        "state_dir": str(directory / "agents"),
        "lock_dir": str(directory / "locks"),
        "checkpoint_parent": str(directory / "tasks"),
        **({"task_user": "0:0"} if os.geteuid() == 0 else {}),
    }


def prepare_disk(directory: Path) -> None:
    """The files that a keeper has made before."""
    (directory / "locks").mkdir()
    (directory / "agents" / NODE).mkdir(mode=0o700, parents=True)


def put_token(supervisors: Supervisors, path: Path, ago: timedelta = timedelta()) -> None:
    key, request = openssl.key_and_request("token-of-pool:train")
    write_private(path, key + supervisors.sign(request, HOUR, ago)[0].encode())


async def test_an_agent_asks_until_a_supervisor_answers(agent: Kept, supervisors: Supervisors) -> None:
    nobody = Unreachable("no leading supervisor answered within 20 s (127.0.0.1:7600: no connection)")
    supervisors.answers = [nobody, nobody, Refused("its pool has ended, or was revoked"), nobody]
    await agent.kept.obtain()
    assert supervisors.asked == [(NODE, "train.token")] * 5
    first, refused, again, done = agent.said
    assert first == again, "told once, until it changes"
    assert "127.0.0.1:7600: no connection" in first
    assert "its pool has ended, or was revoked" in refused
    assert done.startswith("train.n1 has a certificate until ")
    assert agent.own.key == agent.own.cert, "a key and its certificate come and go together"
    assert agent.own.cert.stat().st_mode & 0o777 == 0o600
    Certificates(agent.own).current()


async def test_it_gives_up_when_it_is_refused_for_a_while(
    agent: Kept, supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "REFUSED_S", 0)
    supervisors.answers = [Refused("another token has taken the place of this one")] * 9
    with pytest.raises(Refused, match=r"the place of this one; train\.n1 has no other"):
        await agent.kept.obtain()
    put_token(supervisors, agent.token, ago=2 * HOUR)
    supervisors.asked.clear()
    with pytest.raises(
        Refused, match=r"train\.token expired at .*; `supervisorctl pool token` makes another"
    ):
        await agent.kept.obtain()
    assert supervisors.asked == [], "servers end such a connection without a word"
    agent.token.chmod(0o644)
    with pytest.raises(Refused, match=r"train\.token: private key has mode 0644"):
        await agent.kept.obtain()
    agent.token.unlink()
    with pytest.raises(Refused, match=r"train\.token: cannot read this TLS file"):
        await agent.kept.obtain()


async def test_it_renews_with_its_own_and_else_with_the_token(
    agent: Kept, supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agent.kept.obtain()
    before = agent.own.load()
    left = agent.kept._due - datetime.now(UTC)
    assert 0.3 * HOUR < left < 0.7 * HOUR
    monkeypatch.setattr(credentials, "LOOK_S", 0.001)
    agent.kept._due = datetime.now(UTC)
    supervisors.answers = [Unreachable("nobody leads"), Refused("too old"), Refused("of another pool")]
    keeping = asyncio.create_task(agent.kept.keep())
    await asyncio.to_thread(wait_until, lambda: agent.own.load().cert != before.cert, "it is renewed")
    keeping.cancel()
    assert [shown for _, shown in supervisors.asked] == [
        "train.token",
        "certificate.pem",
        "certificate.pem",
        "train.token",
        "certificate.pem",
    ]
    assert agent.said[1:3] == [
        f"the certificate of train.n1 is not renewed: {why}; asking again"
        for why in ("nobody leads", "too old; of another pool")
    ]
    assert Certificates(agent.own).current().key != before.key, "each has a key of its own"


async def test_a_certificate_of_before_serves_where_the_token_has_expired(
    agent: Kept, supervisors: Supervisors
) -> None:
    await agent.kept.obtain()
    put_token(supervisors, agent.token, ago=2 * HOUR)
    await agent.kept.obtain()
    assert [shown for _, shown in supervisors.asked] == ["train.token", "certificate.pem"]


async def test_an_agent_comes_back_while_no_supervisor_answers(
    agent: Kept, supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agent.kept.obtain()
    good = agent.own.cert.read_bytes()
    key, cert = good[: (cut := good.index(b"-----BEGIN CERTIFICATE"))], good[cut:]
    other, request = openssl.key_and_request("agent:train.n1")
    expired = other + supervisors.sign(request, HOUR, 2 * HOUR)[0].encode()
    supervisors.answers = [Unreachable("no leading supervisor answered")]
    await agent.kept.obtain()
    assert agent.said[1:] == [
        "train.n1 begins with the certificate that it had: no leading supervisor answered"
    ]
    monkeypatch.setattr(credentials, "QUICK_S", 0)
    await agent.kept.obtain()
    assert agent.said[2:] == ["train.n1 begins with the certificate that it had: no supervisor answers"]
    assert agent.kept._due > datetime.now(UTC), "one of this life is renewed in its time"
    monkeypatch.setattr(credentials, "QUICK_S", 60)
    # One that is broken, of another key or expired serves nobody.
    put_token(supervisors, agent.token)
    for pem in (other + cert, key, cert, key + b"x", b"x", expired):
        agent.own.cert.write_bytes(pem)
        assert not agent.kept._has_one(), pem
    agent.own.cert.write_bytes(good)
    assert agent.kept._has_one()


async def test_an_agent_that_begins_before_its_token_is_made_waits_for_it(
    agent: Kept, supervisors: Supervisors
) -> None:
    agent.token.unlink()
    obtaining = asyncio.create_task(agent.kept.obtain())
    await asyncio.to_thread(wait_until, lambda: bool(agent.said), "it says what it waits for")
    assert "train.token: cannot read this TLS file" in agent.said[0]
    put_token(supervisors, agent.token)
    await obtaining
    assert supervisors.asked == [(NODE, "train.token")]

    # The next pool of this name: a certificate of the one before is refused, and serves nobody.
    agent.token.unlink()
    agent.said.clear()
    supervisors.answers = [Refused("its pool has ended, or was revoked")] * 2
    obtaining = asyncio.create_task(agent.kept.obtain())
    await asyncio.to_thread(wait_until, lambda: not supervisors.answers, "the one of before is shown")
    put_token(supervisors, agent.token)
    await obtaining
    shown = [each for _, each in supervisors.asked[1:]]
    assert set(shown[:2]) == {"certificate.pem"}
    told = f"{agent.token}: cannot read this TLS file"
    assert any(told in each and "its pool has ended" in each for each in agent.said), agent.said


async def test_a_disk_that_is_full_for_a_while_ends_no_renewal(
    agent: Kept, supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agent.kept.obtain()
    before = agent.own.load()
    monkeypatch.setattr(credentials, "LOOK_S", 0.001)
    agent.kept._due = datetime.now(UTC)
    with monkeypatch.context() as full:
        full.setattr(tempfile, "TemporaryDirectory", no_room)
        keeping = asyncio.create_task(agent.kept.keep())
        await asyncio.to_thread(wait_until, lambda: len(agent.said) > 1, "it says so")
    assert "a certificate's files cannot be written: No space left on device" in agent.said[1]
    await asyncio.to_thread(wait_until, lambda: agent.own.load().cert != before.cert, "it is renewed")
    keeping.cancel()


def no_room(**_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_names_certificates_needs_no_token(tls: Path, tmp_path: Path) -> None:
    prepare_disk(tmp_path)
    own = {"cert": str(tls / "agent-{node}.pem"), "key": str(tls / "agent-{node}.key")}
    given = body(tls, tmp_path)
    named = {"ca": str(tls / "ca.pem"), **own}
    shared = tmp_path / "pool.yaml"
    shared.write_text(
        json.dumps({**given, "tls": named, "etcd": {"endpoints": ["127.0.0.1:2379"], "tls": named}})
    )
    assert not agent_file.check(shared, "train").certified
    made = agent_file.write(shared, Own(node=NODE))
    order = Order(pool="train", place="n1", id="1", file=shared, client=())
    assert keeper.credentials_of(order, made) is None
    shared.write_text(json.dumps(given))
    with pytest.raises(UserError, match=r"tls names no `cert` and `key`: add them, or start the pool by"):
        keeper.credentials_of(order, agent_file.write(shared, Own(node=NODE)))
    shared.write_text(json.dumps({**given, "tls": {"ca": "ca.pem", "cert": "c.pem"}}))
    with pytest.raises(UserError, match=r"tls\.key"):
        agent_file.check(shared, "train")


def test_pool_status_says_how_far_an_agent_has_come() -> None:
    running = PoolAgent(id="1_0", pool="train", state=State.RUNNING, word="RUNNING", place="n1", log="/l")
    view = PoolView("train", "user:olga", 0, (), {"train.n1": 1})
    told = commands_of_pool._reason
    assert told(running, None, "", None) == "no supervisor knows its node; see /l"
    assert "it may not reach etcd; see /l" in told(running, None, "", view)
    another = PoolView("train", "user:olga", 1 << 50, (), {"train.n11": 1})
    reaches_none = "the supervisor that leads has given it no certificate: its machine may reach none; see /l"
    assert told(running, None, "", another) == reaches_none
    expired = replace(another, token_ends_wall_ms=0)
    assert (
        told(running, None, "", expired) == "it gets no certificate, as the pool's token has expired; see /l"
    )


def test_a_pools_certificates_are_told_in_words() -> None:
    ends = datetime(2099, 1, 2, 3, 4, tzinfo=UTC)
    view = PoolView("train", "user:olga", round(ends.timestamp() * 1000), ("train.n2",), {"train.n1": 1})
    assert tokens.told(view) == (
        "its token is valid until 2099-01-02 03:04 UTC; 1 nodes have had certificates; revoked: train.n2"
    )
    assert "`supervisorctl pool token p FILE` makes another; 0 nodes" in tokens.told(PoolView("p", "", 0))
