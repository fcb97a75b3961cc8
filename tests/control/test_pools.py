"""Which pools get certificates, and for which of their agents; the authority is real, etcd in memory."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from supervisor.adapters.certificates.issuer import Issuer
from supervisor.contract import keys
from supervisor.contract.access import Caller, Kind
from supervisor.contract.errors import Conflict, NotFound, Refused, TfSupervisorError, Unreachable, UserError
from supervisor.contract.pool.record import MOST_REVOKED, PoolRecord, objection
from supervisor.control.decide.plan import put
from supervisor.control.services import pools
from supervisor.control.services.pools import AGAIN_MS
from tests.control.certifying import ADAM, HOUR_MS, OLGA, OTTO, Pools, make_authority
from tests.support.waiting import until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return make_authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def made(authority: Issuer) -> Pools:
    return Pools(authority)


async def test_agents_get_certificates_for_the_token_and_renew_them_with_their_own(made: Pools) -> None:
    token = await made.open()
    agent = await made.certify(token)
    assert (made.service.objection(token), made.service.objection(agent)) == ("", "")
    with pytest.raises(Unreachable, match=r"train\.n1 has just had a certificate; ask again in 10 s"):
        await made.certify(agent)
    other = await made.certify(token, "train.n2.2")
    made.world.now_ms += AGAIN_MS
    assert made.service.objection(await made.certify(agent)) == ""
    (view,) = made.service.pools("").pools
    ends_ms = made.wall_ms() // 1000 * 1000 + HOUR_MS
    assert view.certified == {"train.n1": ends_ms, "train.n2.2": ends_ms - AGAIN_MS}
    assert (view.owner, view.revoked) == ("user:olga", ())
    assert made.service.pools("none").pools == ()
    assert [each.kind for each in made.actions] == ["pool_opened"]
    assert token.token not in str(made.actions[0].text)
    assert other.pool_id == agent.pool_id == token.pool_id == "id0"


async def test_what_is_revoked_is_refused_and_a_pool_of_the_same_name_is_another(made: Pools) -> None:
    token = await made.open()
    one, two = await made.certify(token), await made.certify(token, "train.n2")
    assert "supervisors refuse its agent" in await made.revoke(node="train.n2")
    assert "revoked already" in await made.revoke(node="train.n2")
    assert (made.service.objection(one), made.service.objection(two)) == ("", "train.n2 was revoked")
    for caller in (token, two):
        with pytest.raises(Refused, match=r"train\.n2 was revoked"):
            await made.certify(caller, "train.n2")
    again = await made.open()
    assert "another token has taken the place" in made.service.objection(token)
    assert (made.service.objection(again), made.service.objection(one)) == ("", "")
    assert made.service.pools("train").pools[0].revoked == ("train.n2",), "a new token lifts nothing"
    await made.revoke()
    ended = "its pool has ended, or was revoked"
    assert {made.service.objection(each) for each in (again, one, two)} == {ended}
    with pytest.raises(NotFound, match="no pool train has certificates"):
        await made.revoke()
    fresh = await made.open()
    assert {made.service.objection(each) for each in (again, one, two)} == {ended}
    assert made.service.objection(fresh) == ""
    with pytest.raises(Refused, match="its pool has ended"):
        await made.certify(one)


async def test_a_pool_is_in_one_queue(made: Pools) -> None:
    for origin in ("", "slurm:main:7", "slurm:main:7"):
        await made.open(origin=origin)
    token = await made.open()
    assert made.service.pools("train").pools[0].origin == "slurm:main:7"
    with pytest.raises(Conflict, match="pool train is one of slurm:main:7: choose another name"):
        await made.open(origin="slurm:other:7")
    assert made.service.objection(token) == ""
    await made.revoke()
    await made.open(origin="slurm:other:7")


async def test_a_pool_is_revoked_by_its_token_only_while_that_is_its_last(made: Pools) -> None:
    before, now = await made.open(), await made.open()
    with pytest.raises(Conflict, match="pool train has another token by now, and its certificates stay"):
        await made.revoke(token=before.token)
    assert made.service.objection(now) == ""
    (view,) = made.service.pools("train").pools
    assert view.token == now.token
    await made.revoke(token=view.token)
    assert made.record("train") is None


async def test_a_token_serves_its_own_pool_until_it_expires(made: Pools) -> None:
    token, other = await made.open(), await made.open("other", life_ms=60_000)
    for caller, node in ((other, "train.n1"), (token, "other.n1")):
        with pytest.raises(Refused, match="has ended, or was revoked"):
            await made.certify(caller, node)
    agent = await made.certify(other, "other.n1")
    made.skew_ms = 60_000
    assert "the token of pool other has expired" in made.service.objection(other)
    with pytest.raises(Refused, match="`supervisorctl pool token` makes another"):
        await made.certify(other, "other.n2")
    assert made.service.objection(agent) == "", "agents that have certificates go on"
    made.world.now_ms += AGAIN_MS
    assert made.service.objection(await made.certify(agent, "other.n1")) == ""


@pytest.mark.parametrize(
    ("node", "name", "error"),
    [
        ("train.n1", "agent:train.n2", "is for 'agent:train.n2'"),
        ("train.n1", "supervisor:s0", "is for 'supervisor:s0'"),
        ("train", "", "shows no certificate of a pool"),
        ("train.", "", "shows no certificate of a pool"),
        ("gpu-1", "", "shows no certificate of a pool"),
        ("train.a/b", "agent:x", "is not a valid name"),
        ("train.n1,DNS:x", "agent:x", "is not a valid name"),
    ],
)
async def test_a_request_for_another_name_is_refused(made: Pools, node: str, name: str, error: str) -> None:
    token = await made.open()
    with pytest.raises(TfSupervisorError, match=error):
        await made.certify(token, node, name)


async def test_who_shows_no_certificate_of_a_pool_gets_none(made: Pools) -> None:
    await made.open()
    for caller in (OLGA, Caller(Kind.AGENT, "train.n1"), Caller(Kind.LOCAL, "token")):
        with pytest.raises(Refused, match="shows no certificate of a pool"):
            await made.certify(caller)


async def test_a_pool_is_its_owners(made: Pools) -> None:
    await made.open()
    with pytest.raises(Conflict, match=r"pool train is of user:olga: choose another name"):
        await made.open(by=OTTO)
    assert made.service.objection(await made.open(by=ADAM)) == ""
    assert made.service.objection(await made.open()) == "", "it is hers still"


async def test_a_pool_takes_no_name_of_nodes_that_are_there(made: Pools) -> None:
    made.world.register("gpu.1", "i1")
    with pytest.raises(Conflict, match=r"node gpu\.1 is there, and no supervisor has certified it"):
        await made.open("gpu")
    token = await made.open()
    made.world.register("train.n1", "i2")
    assert made.service.objection(token) == ""
    await made.open()


async def test_wrong_requests_name_what_to_do(made: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    for pool, life_ms in (("a.b", HOUR_MS), ("train", 1), ("train", 91 * 24 * HOUR_MS)):
        with pytest.raises(UserError):
            await made.open(pool, life_ms=life_ms)
    token = await made.open()
    with pytest.raises(UserError, match=r"write train\.PLACE"):
        await made.revoke(node="other.n1")
    monkeypatch.setattr(pools, "MOST_NODES", 1)
    await made.certify(token)
    with pytest.raises(Refused, match="1 nodes of pool train have certificates, the most"):
        await made.certify(token, "train.n2")
    made.skew_ms = HOUR_MS - 1000
    made.world.now_ms += AGAIN_MS
    await made.open()
    monkeypatch.setattr(pools, "MOST_POOLS", 1)
    with pytest.raises(Conflict, match="1 pools have certificates"):
        await made.open("other")
    monkeypatch.setattr(pools, "WAITING", 0)
    with pytest.raises(Unreachable, match="ask again"):
        await made.open()

    async def is_open() -> bool:
        return True

    made.service.is_etcd_open = is_open
    with pytest.raises(Refused, match="etcd has no users"):
        await made.open()
    made.service.issuer = None
    with pytest.raises(Refused, match=r"add `pools: \{issuer: "):
        await made.open()


async def test_callers_that_go_away_start_no_more_signatures_than_others(
    made: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, end, begun = await made.open(), threading.Event(), list[str]()

    def slow(_issuer: Issuer, request: str, *_: object) -> tuple[str, datetime]:
        begun.append(request)
        assert end.wait(30)
        return "", datetime.now(UTC)

    monkeypatch.setattr(Issuer, "sign", slow)
    monkeypatch.setattr(pools, "WAITING_OF_ONE", 6)
    asked = [asyncio.create_task(made.certify(token, f"train.n{n}")) for n in range(6)]
    await until(lambda: len(begun) == pools.SIGNING and made.service._waiting.total() == 6)
    for each in asked:
        each.cancel()
    assert await asyncio.gather(*asked, return_exceptions=True)
    with pytest.raises(Unreachable, match="6 of pool train; ask again"):
        await made.certify(token)
    assert len(begun) == pools.SIGNING
    end.set()
    await until(lambda: made.service._waiting.total() == 0)
    assert len(begun) == 6


async def test_so_many_nodes_of_a_pool_are_revoked_by_name(made: Pools) -> None:
    await made.open()
    record = made.record("train")
    assert record is not None
    full = replace(record, revoked=tuple(f"train.{'n' * 50}{n}" for n in range(MOST_REVOKED)))
    made.world.write(put(keys.pool_record("train"), full))  # it fits its bound in etcd
    with pytest.raises(UserError, match="revoke the pool"):
        await made.revoke(node="train.n1")


def test_a_record_says_which_certificates_are_good() -> None:
    record = PoolRecord(name="p", id="1", owner="", token="t", token_ends_wall_ms=10, revoked=("p.b",))
    for known, node, token, pool_id, now_ms, told in (
        (record, "", "t", "1", 9, ""),
        (None, "", "t", "1", 9, "has ended"),
        (record, "", "t", "2", 9, "has ended"),
        (record, "", "", "1", 9, "another token"),
        (record, "", "t", "1", 10, "expired"),
        (record, "p.a", "", "1", 99, ""),
        (record, "p.a", "", "2", 9, "has ended"),
        (record, "p.b", "", "1", 9, "p.b was revoked"),
        (record, "q.a", "", "1", 9, "no node of p"),
        (record, "p", "", "1", 9, "no node of p"),
    ):
        found = objection(known, node=node, token=token, pool_id=pool_id, now_wall_ms=now_ms)
        assert told in found, (node, token, found)
        assert bool(told) == bool(found)
