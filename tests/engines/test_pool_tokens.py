"""Clients that start and end a pool at the same moment; the leader that certifies its agents is real."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest
from click.testing import CliRunner

from supervisor.cli.main import cli
from supervisor.cli.options import Globals
from supervisor.cli.pool import commands, left_behind, tokens
from supervisor.cli.pool.tokens import Token
from supervisor.contract.access import Kind
from supervisor.contract.errors import Conflict, NotFound, Refused, UserError
from supervisor.contract.pool.requests import Certificate, OpenPoolRequest, PoolList
from supervisor.engines.engine import Pool, PoolAgent, State
from tests.control.certifying import OLGA, Pools, calling, make_authority, shown

NAME = "train"
HERE, YARN = "slurm:main:0", "yarn:rm-8032:olga"


@dataclass
class Queue:
    """An engine with room for everything; agents end as soon as they are told to."""

    agents_there: list[PoolAgent] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    fails: str = ""
    where: str = HERE

    def origin(self) -> str:
        return self.where

    def start(self, pool: Pool, agents: int) -> list[str]:
        for each in range(agents):
            ident = f"{len(self.agents_there)}_{each}"
            self.agents_there.append(PoolAgent(id=ident, pool=pool.name, state=State.RUNNING, word="RUNNING"))
        return [each.id for each in self.agents_there[-agents:]]

    def add(self, name: str, agents: int) -> None:
        raise AssertionError

    def agents(self, name: str = "") -> list[PoolAgent]:
        return list(self.agents_there)

    def notify(self, ids: Sequence[str]) -> None:
        self.cancel(ids)

    def forget(self, name: str) -> None:
        if self.fails:
            raise Refused(self.fails)
        self.forgotten.append(name)

    def cancel(self, ids: Sequence[str], *, waiting_only: bool = False) -> None:
        if not waiting_only:
            self.agents_there = [each for each in self.agents_there if each.id not in ids]


@dataclass
class Site:
    """A cluster as clients see it. `before` a request comes what another client does meanwhile."""

    made: Pools
    queue: Queue
    token: Path
    before: dict[str, Callable[[], object]] = field(default_factory=dict)
    ready: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def pools(self, name: str) -> PoolList:
        self._meanwhile("pools")
        return self.made.service.pools(name)

    async def open_pool(self, request: OpenPoolRequest) -> Certificate:
        self._meanwhile("open")
        with calling(OLGA):
            return await self.made.service.open(request)

    async def revoke_pool(self, pool: str, node: str = "", token: str = "") -> SimpleNamespace:
        self._meanwhile("revoke")
        return SimpleNamespace(detail=await self.made.revoke(pool, node, token))

    async def nodes(self) -> SimpleNamespace:
        return SimpleNamespace(
            nodes=[
                SimpleNamespace(node=each, labels={"pool": NAME, "agent": each}, state="ready", pid=7)
                for each in self.ready
            ]
        )

    def up(self, valid_for: str = "7d") -> Sequence[PoolAgent]:
        pool = Pool(name=NAME, command=("true",), directory="/", token=str(self.token))
        asked = Token(self.token, valid_for, self.queue.origin())
        return commands._start(Globals(), self.queue, pool, 2, asked)

    def down(self) -> str:
        done = CliRunner().invoke(cli, ["pool", "down", NAME, "--now"])
        if done.exception is not None:
            raise done.exception
        return done.stdout.strip()

    def works(self) -> bool:
        """Whether agents that begin now get certificates for the token in the file."""
        pem = self.token.read_text()
        return not self.made.service.objection(
            shown(pem[pem.index("-----BEGIN CERTIFICATE") :], Kind.POOL, NAME)
        )

    def _meanwhile(self, request: str) -> None:
        if (act := self.before.pop(request, None)) is not None:
            act()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    (tmp_path / "tls").mkdir()
    made = Site(Pools(make_authority(tmp_path / "tls")), Queue(), tmp_path / "train.token")
    target = SimpleNamespace(client=lambda: made, guard=SimpleNamespace(tls=True))
    monkeypatch.setattr(commands, "_engine", lambda _on: made.queue)
    monkeypatch.setattr(left_behind, "find_target", lambda _: target)
    monkeypatch.setattr(tokens, "find_target", lambda _: target)
    monkeypatch.setattr(tokens, "find_any_target", lambda _: target)
    return made


def test_a_pool_has_a_token_until_it_is_down(site: Site) -> None:
    assert len(site.up()) == 2
    assert site.works()
    assert (
        site.down() == f"pool {NAME}: 2 agents have ended; the engine has everything back; {tokens.REVOKED}"
    )
    assert (site.made.record(NAME), site.works()) == (None, False)
    with pytest.raises(NotFound, match="there is no pool train"):
        site.down()


@pytest.mark.parametrize("at", ["pools", "revoke"])
def test_a_pool_that_begins_while_one_of_its_name_is_ended_keeps_its_certificates(
    site: Site, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    monkeypatch.setattr(tokens, "_ask", inside(tokens._ask))
    site.up()
    site.before[at] = site.up
    assert site.down().endswith(tokens.ANOTHER)
    assert site.works()
    assert len(site.queue.agents()) == 2
    assert site.down().endswith(tokens.REVOKED)


def test_a_client_that_comes_too_late_takes_no_token_from_the_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_ask", inside(tokens._ask))
    told: list[Conflict] = []

    def also() -> None:
        with pytest.raises(Conflict, match="there is a pool train with 2 agents") as caught:
            site.up()
        told.append(caught.value)

    site.before["open"] = also
    site.up()
    assert told
    assert site.works()
    assert [each.kind for each in site.made.actions] == ["pool_opened"]


def test_a_pool_that_gets_no_token_is_taken_back(site: Site) -> None:
    site.made.service.issuer = None
    with pytest.raises(Refused, match="the supervisors have no authority for pools"):
        site.up()
    assert site.queue.agents() == []
    assert not site.token.exists()


def test_a_token_that_cannot_be_written_is_told_before_anything_is_queued(site: Site) -> None:
    site.token = site.token.parent / "none" / "train.token"
    with pytest.raises(UserError, match="/none is no directory"):
        site.up()
    assert (site.queue.agents(), site.made.actions) == ([], [])


@pytest.mark.parametrize("valid_for", ["30s", "91d", "long"])
def test_a_token_that_may_not_be_so_long_valid_is_told_before_anything_is_queued(
    site: Site, valid_for: str
) -> None:
    with pytest.raises(UserError, match=f"--token-for {valid_for}: .* a(| minute to 90 day)"):
        site.up(valid_for)
    assert (site.queue.agents(), site.made.actions) == ([], [])


def test_what_a_client_that_was_killed_has_left_is_ended(site: Site) -> None:
    # Agents and no token yet; a token in etcd that was written nowhere; a token whose agents have ended.
    site.queue.start(Pool(name=NAME, command=(), directory="/"), 2)
    assert site.down().endswith("the engine has everything back")
    for agents in (2, 0):
        if agents:
            site.queue.start(Pool(name=NAME, command=(), directory="/"), agents)
        tokens.obtain(Globals(), NAME, Token(site.token, "1h", HERE))
        assert site.down().endswith(tokens.REVOKED)
        assert (site.made.record(NAME), site.queue.agents()) == (None, [])


def test_what_an_engine_keeps_of_a_pool_is_removed_last(site: Site) -> None:
    site.up()
    site.queue.fails = "YARN says: Name node is in safe mode"
    told = CliRunner().invoke(cli, ["pool", "down", NAME, "--now"])
    assert (told.exit_code, site.queue.agents(), site.made.record(NAME)) == (0, [], None)
    assert told.stdout.strip().endswith(tokens.REVOKED)
    assert "its files are not removed, which another `pool down` does: YARN says: Name node" in told.stderr
    # Another one finds no agents, and removes them.
    site.queue.fails = ""
    with pytest.raises(NotFound, match="there is no pool train"):
        site.down()
    assert site.queue.forgotten == [NAME]


def test_a_pool_that_ends_leaves_the_certificates_to_one_of_its_name_on_another_engine(site: Site) -> None:
    site.up()
    site.ready = ("train.n1",)
    assert "train.n1 are there, and slurm does not list their agents as yours, so certif" in site.down()
    assert site.works()
    site.queue.start(Pool(name=NAME, command=(), directory="/"), 1)
    site.ready = ()
    assert site.down().endswith(tokens.REVOKED)


def test_a_pool_of_another_engine_is_not_revoked(site: Site) -> None:
    site.up()
    site.queue.agents_there.clear()
    site.ready = ("train.n1",)
    with pytest.raises(
        Conflict, match=r"nothing of pool train has ended on slurm: train\.n1 are there, and slurm does not"
    ):
        site.down()
    assert site.works()


@pytest.mark.parametrize("ended", [State.RUNNING, State.ENDED, None])
def test_a_pool_that_waits_in_another_queue_is_not_revoked(site: Site, ended: State | None) -> None:
    """Its agents have no node that tells of them. One here that has ended is of a pool before."""
    site.made.skew_ms += round(time.time() * 1000) - site.made.wall_ms()
    site.queue.where = YARN
    site.up()
    site.queue.where = HERE
    site.queue.agents_there = (
        [] if ended is None else [PoolAgent(id="0_0", pool=NAME, state=ended, word=ended.name)]
    )
    stay = f"its certificates stay, as they are for agents of {YARN}"
    if ended is State.RUNNING:
        assert f"1 agents have ended; the engine has everything back; {stay}" in site.down()
    else:
        with pytest.raises(Conflict, match=f"nothing of pool train has ended on slurm: {stay}"):
            site.down()
        assert site.queue.forgotten == []
    assert site.works()
    # Where it was, it is known to have ended, however long ago.
    site.queue.where = YARN
    assert site.down() == f"pool {NAME}: it had no agents on slurm any more; {tokens.REVOKED}"


def test_a_name_is_one_queues_before_anything_is_queued(site: Site) -> None:
    site.up()
    site.queue.agents_there.clear()
    site.queue.where = YARN
    with pytest.raises(Conflict, match=f"pool train is one of {HERE}: choose another name, or end that one"):
        site.up()
    assert site.queue.agents() == []
    assert site.works()


def test_a_token_that_has_expired_is_revoked_on_any_engine(site: Site) -> None:
    site.made.skew_ms += round(time.time() * 1000) - site.made.wall_ms()
    tokens.obtain(Globals(), NAME, Token(site.token, "1h", YARN))
    with pytest.raises(Conflict):
        site.down()
    site.made.skew_ms -= 3_600_000
    tokens.obtain(Globals(), NAME, Token(site.token, "1h"))
    assert site.down().endswith(tokens.REVOKED)


def inside(ask: Callable[..., object]) -> Callable[..., object]:
    """The same where a loop runs already: what another client does comes in the middle of a request."""

    def asked(*arguments: object) -> object:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(ask, *arguments).result()

    return asked
