"""Looking after real etcd: history goes before the quota is used up, and a full etcd takes writes again."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chaos.cluster.certificates import Authority
from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.adapters.etcd import maintenance
from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.adapters.etcd.endpoints import Endpoint
from supervisor.adapters.etcd.maintenance import EtcdCalls
from supervisor.cli.cluster import etcd
from supervisor.cli.main import cli
from supervisor.contract import keys
from supervisor.contract.boundaries import Delete, Op, Put
from supervisor.contract.desired import LeaderRecord
from supervisor.contract.errors import (
    CoordinationFull,
    CoordinationUnreachable,
    Refused,
    Unreachable,
    UserError,
)
from supervisor.contract.etcd_member import EtcdMember
from supervisor.control.decide.etcd_space import LOOK_MS, MIB, SLOW_MS, SpaceSettings
from supervisor.control.decide.plan import Action
from supervisor.control.loop.etcd_care import EtcdCare
from tests.support.clocks import ManualClock
from tests.support.etcd_server import EtcdCluster, EtcdServer, etcd_binaries
from tests.support.sinks import ListSink

QUOTA = 24 * MIB
CHUNK = bytes(1_000_000)
LEADER = LeaderRecord("s0", "unix:/s0", 1)


@dataclass
class Small:
    """An etcd with a small quota, a client of it, and a supervisor that cares for it."""

    server: EtcdServer
    client: EtcdCoordination
    leads: bool = True
    leader: LeaderRecord | None = LEADER
    events: list[Action] = field(default_factory=list)
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.calls = EtcdCalls([self.server.endpoint], None)
        self.care = EtcdCare(
            self.calls,
            self.client,
            SpaceSettings(QUOTA, 600_000),
            leads=lambda: self.leads,
            leader=lambda: self.leader,
            tell=self.tell,
            clock=self.clock,
            sink=ListSink(),
        )

    async def tell(self, event: Action) -> None:
        await self.client.txn((), [Put("event", event.text.encode())])
        self.events.append(event)

    async def later(self, looks: int = 1) -> None:
        for _ in range(looks):
            self.clock.ms += LOOK_MS
            await self.care.look()

    async def ship(self, number: int) -> None:
        """Upload the code of a job, as one chunk, and remove it."""
        chunk = keys.chunk(f"{number:064x}", 0)
        wanted: list[Op] = [Put(chunk, CHUNK)]
        await self.client.txn((), wanted)
        await self.client.txn((), [Delete(chunk)])

    async def fill(self) -> None:
        for number in range(100):
            try:
                await self.ship(number)
            except CoordinationFull:
                return
        raise AssertionError("etcd never was full")

    async def until_there_is_room(self) -> None:
        """Etcd frees what was compacted in the background; between looks there is time for that."""
        async with asyncio.timeout(30):
            while (await self.calls.members())[0].used_bytes > 0.7 * QUOTA:
                await self.later()
                await asyncio.sleep(0.02)

    async def until_it_takes_writes(self) -> None:
        """Daemons go on to ask etcd for leases, and users to submit, meanwhile."""
        async with asyncio.timeout(60):
            while True:
                await self.later()
                with contextlib.suppress(CoordinationFull):
                    await self.client.grant(10)
                    await self.ship(0)
                    return
                await asyncio.sleep(0.05)


@pytest.fixture(params=sorted(etcd_binaries()))
async def small(request: pytest.FixtureRequest) -> AsyncIterator[Small]:
    flags = ("--quota-backend-bytes", str(QUOTA))
    with EtcdServer(binary=etcd_binaries()[request.param], flags=flags) as server:
        client = EtcdCoordination([server.endpoint], "c", rpc_deadline_ms=20_000, silence_ms=20_000)
        yield Small(server, client)
        await client.close()


async def test_submits_of_several_quotas_fit_into_one(small: Small) -> None:
    """Without compaction etcd is full after one quota: `test_a_full_etcd_takes_writes_again`."""
    for number in range(4 * QUOTA // len(CHUNK)):
        await small.ship(number)
        await small.later()
        await small.until_there_is_room()
    (member,) = await small.calls.members()
    assert member.file_bytes < QUOTA
    assert not member.full


async def test_a_full_etcd_takes_writes_again(small: Small) -> None:
    await small.later()
    await small.fill()
    await small.later()
    (line,) = small.care.lines
    assert "etcd is full (alarm NOSPACE)" in line
    assert "docs/etcd-care.md" in line
    assert small.events == [], "a full etcd takes no event"
    await small.until_it_takes_writes()
    await small.later()
    (member,) = await small.calls.members()
    assert not member.full
    assert member.file_bytes < QUOTA // 2
    assert small.care.lines == ()
    kinds = [event.kind for event in small.events]
    assert kinds[0] == "etcd_full"
    assert kinds[-1] == "etcd_has_room"
    assert "etcd_defragmented" in kinds


async def test_a_full_etcd_is_cared_for_without_a_leader(small: Small) -> None:
    """It grants no lease: nobody can come to lead."""
    small.leads, small.leader = False, None
    await small.fill()
    with pytest.raises(CoordinationFull):
        await small.client.grant(10)
    await small.until_it_takes_writes()


async def test_a_follower_leaves_a_full_etcd_to_the_leader(small: Small) -> None:
    small.leads = False
    await small.fill()
    await small.later(10)
    (member,) = await small.calls.members()
    assert member.full
    assert "etcd is full" in " ".join(small.care.lines)


async def test_a_member_that_is_away_is_told(tmp_path: Path) -> None:
    calls = EtcdCalls([f"unix:{tmp_path}/nobody:0"], None)
    (member,) = await calls.members()
    assert member.problem
    assert not member.refused
    with pytest.raises(CoordinationUnreachable):
        await calls.compact(1)


async def test_a_full_etcd_is_helped_by_hand(small: Small, tmp_path: Path) -> None:
    await small.fill()
    done = await asyncio.to_thread(defrag, tmp_path, [small.server.endpoint])
    assert done.exit_code == 0, done.output
    assert "the alarm NOSPACE is ended" in done.output
    await small.ship(0)


def defrag(directory: Path, endpoints: list[str], *more: str, tls: TlsFiles | None = None) -> Result:
    """`supervisorctl etcd defrag`."""
    config = directory / "s.yaml"
    body = {"cluster": "c", "id": "s0", "listen": "unix:/none", "state_dir": "s"}
    shown = {each: str(getattr(tls, each)) for each in ("ca", "cert", "key")} if tls is not None else None
    config.write_text(json.dumps({**body, "etcd": {"endpoints": endpoints, "tls": shown}}))
    return CliRunner().invoke(cli, ["etcd", "defrag", "--supervisor-config", str(config), *more])


def test_members_are_defragmented_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader hands over first."""
    with EtcdCluster() as cluster:
        before = next(each for each in cluster.members if each.is_leader())
        done = defrag(tmp_path, cluster.endpoints)
        assert done.exit_code == 0, done.output
        assert done.output.count(" -> ") == 3
        assert before.endpoint in done.output.splitlines()[-1]
        assert not before.is_leader()
        before.freeze()
        monkeypatch.setattr(maintenance, "STATUS_S", 0.5)
        refused = defrag(tmp_path, cluster.endpoints)
        monkeypatch.setattr(etcd, "WELL_S", 0.1)
        others = defrag(tmp_path, cluster.endpoints, "--anyway")
        monkeypatch.setattr(etcd, "QUICK_BYTES", 0)
        much = defrag(tmp_path, cluster.endpoints, "--anyway")
        large = defrag(tmp_path, cluster.endpoints, "--anyway", "--large", "-o", "json")
        before.thaw()
        assert isinstance(refused.exception, Unreachable)
        assert before.endpoint in str(refused.exception)
        assert others.exit_code == 0, others.output
        assert others.output.count(" -> ") == 2
        assert f"{before.endpoint}: left out, it does not answer" in others.output
        assert isinstance(much.exception, UserError)
        assert "they are no majority" in str(much.exception)
        assert large.exit_code == 0, large.output
        told = json.loads(large.output)
        assert told["left_out"] == [before.endpoint]
        assert len(told["members"]) == 2


def test_a_member_that_is_late_once_is_not_left_out(
    tmp_path: Path, etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[str] = []
    status = EtcdCalls._status

    async def late(self: EtcdCalls, endpoint: Endpoint) -> EtcdMember:
        answers.append(endpoint.text)
        return (
            await status(self, endpoint)
            if answers[1:]
            else EtcdMember(endpoint=endpoint.text, problem="late")
        )

    monkeypatch.setattr(EtcdCalls, "_status", late)
    done = defrag(tmp_path, [etcd_server.endpoint], "--anyway")
    assert done.exit_code == 0, done.output
    assert "left out" not in done.output
    assert done.output.count(" -> ") == 1


def test_the_supervisors_own_certificate_is_shown_where_no_other_is_given(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    own = TlsFiles(authority.certificate, *authority.issue("etcd", ["127.0.0.1"]))
    with EtcdServer(tls=own) as server:
        mine = TlsFiles(authority.certificate, *authority.issue("s0", ["127.0.0.1"], "supervisor:s0"))
        done = defrag(tmp_path, [server.endpoint], tls=mine)
    assert done.exit_code == 0, done.output
    assert done.output.count(" -> ") == 1


@pytest.mark.parametrize(("took_ms", "slow"), [(SLOW_MS, set[int]()), (SLOW_MS + 1, {7})])
async def test_a_slow_defragmentation_is_remembered(
    etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch, took_ms: int, slow: set[int]
) -> None:
    client = EtcdCoordination([etcd_server.endpoint], "c", rpc_deadline_ms=20_000, silence_ms=20_000)
    small = Small(etcd_server, client)

    async def defragment(_: str) -> None:
        small.clock.ms += took_ms

    monkeypatch.setattr(small.calls, "defragment", defragment)
    await small.care._defragment(EtcdMember(endpoint=etcd_server.endpoint, member_id=7))
    assert small.care._past.slow == slow
    await client.close()


async def test_a_compaction_by_hand_waits_until_every_member_has_made_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer of the member that compacted is lost: the next one has compacted already."""
    calls, sizes = EtcdCalls(["a:1", "b:1"], None), [9, 9, 8, 8, 7, 7]

    async def compacted(*_: object) -> None:
        raise Refused("etcd: OUT_OF_RANGE: mvcc: required revision has been compacted")

    async def members(*_: object) -> list[EtcdMember]:
        size = sizes.pop(0) if sizes[1:] else sizes[0]
        return [EtcdMember(endpoint="a:1", used_bytes=7), EtcdMember(endpoint="b:1", used_bytes=size)]

    monkeypatch.setattr(EtcdCalls, "_ask_any", compacted)
    monkeypatch.setattr(EtcdCalls, "members", members)
    monkeypatch.setattr(maintenance, "AGAIN_S", 0.01)
    monkeypatch.setattr(maintenance, "STEADY_S", 0.2)
    await calls.compact(5, physical=True)
    assert sizes == [7]
