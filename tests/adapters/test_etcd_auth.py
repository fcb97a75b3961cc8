"""Users of etcd: etcd itself refuses what is not a daemon's own, and nothing that a daemon does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chaos.cluster.certificates import Authority
from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.adapters.etcd.client import EtcdCoordination
from supervisor.adapters.etcd.maintenance import EtcdCalls
from supervisor.adapters.etcd.users import lets_everybody_in
from supervisor.cli.main import cli
from supervisor.contract import keys
from supervisor.contract.boundaries import BULK, Coordination, Get, Op, Put, WatchBatch
from supervisor.contract.errors import Compacted, Refused, TfSupervisorError, UserError
from supervisor.contract.etcd_roles import may
from supervisor.contract.ids import task_id
from supervisor.control.decide import etcd_space
from supervisor.control.decide.etcd_space import LOOK_MS, SpaceSettings
from supervisor.control.loop.etcd_care import EtcdCare
from tests.support.clocks import ManualClock
from tests.support.etcd_server import EtcdServer, etcd_binaries
from tests.support.sinks import ListSink

CLUSTER = "c"
HOLDERS = ("supervisor:s0", "agent:n1", "agent:n2", "pool:train")
TASK = task_id("digits", "worker", 0)
OWN = (keys.node("n1"), keys.gpus("n1"), keys.appeal("n1", "life"))
SHARED = (keys.prepared(TASK, "p"), keys.staged("digits", "p", "n1"), "commits/digits/1", keys.head("digits"))
FOREIGN = (
    keys.node("n2"),
    keys.node("n1") + "0",
    keys.gpus("n2"),
    keys.appeal("n2", "life"),
    keys.lost("n1", "life"),
    keys.switch("digits"),
    keys.assignment("n1", TASK, "p"),
    keys.job_record("digits"),
    keys.LEADER,
    keys.CLUSTER,
    keys.event(1),
    keys.chunk("a" * 64, 0),
)
READ = (
    keys.CLUSTER,
    keys.node("n2"),
    keys.switch("digits"),
    keys.lost("n1", "l"),
    keys.job_record("digits"),
    "doctor",
)
UNREAD = (
    keys.intent("digits"),
    keys.event(1),
    keys.lost("n2", "l"),
    keys.assignment("n2", TASK, "p"),
    keys.LEADER,
)


@dataclass
class Guarded:
    """An etcd with users, and certificates for them."""

    root: Path
    authority: Authority
    server: EtcdServer
    files: dict[str, TlsFiles] = field(default_factory=dict)

    def of(self, identity: str) -> TlsFiles:
        if identity not in self.files:
            name = identity.replace(":", "-")
            made = self.authority.issue(name, ["127.0.0.1"], identity)
            self.files[identity] = TlsFiles(self.authority.certificate, *made)
        return self.files[identity]

    def client(self, identity: str) -> EtcdCoordination:
        return EtcdCoordination(
            [self.server.endpoint], CLUSTER, tls=self.of(identity), rpc_deadline_ms=20_000, silence_ms=20_000
        )

    def ctl(self, *argv: str, user: str = "user:admin") -> Result:
        """`supervisorctl etcd`."""
        shown = {
            name: {each: str(getattr(self.of(name), each)) for each in ("ca", "cert", "key")}
            for name in (user, "supervisor:s0")
        }
        client, supervisor = self.root / "client.yaml", self.root / "supervisor.yaml"
        client.write_text(
            json.dumps({"cluster": CLUSTER, "supervisors": ["127.0.0.1:1"], "tls": shown[user]})
        )
        etcd = {"endpoints": [self.server.endpoint], "tls": shown["supervisor:s0"]}
        body = {"cluster": CLUSTER, "id": "s0", "listen": "unix:/none", "state_dir": "s", "etcd": etcd}
        supervisor.write_text(json.dumps(body))
        verb, *rest = argv
        options = ("--supervisor-config", str(supervisor), "--config", str(client))
        return CliRunner().invoke(cli, ["etcd", verb, *rest, *options])


@pytest.fixture(scope="module", params=sorted(etcd_binaries()))
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    root = tmp_path_factory.mktemp("guarded")
    authority = Authority(root / "tls")
    own = TlsFiles(authority.certificate, *authority.issue("etcd", ["127.0.0.1"]))
    with EtcdServer(binary=etcd_binaries()[request.param], tls=own) as server:
        made = Guarded(root, authority, server)
        before = made.ctl("check", *HOLDERS)
        assert before.exit_code == 1, before.output
        assert "user agent:n1 is missing" in before.output
        assert asyncio.run(lets_everybody_in([server.endpoint], made.of("supervisor:s0")))
        done = made.ctl("setup", *HOLDERS)
        assert done.exit_code == 0, done.output
        assert "etcd lets everybody in" in done.output
        done = made.ctl("setup", "--enable", *HOLDERS)
        assert done.exit_code == 0, done.output
        yield made


async def refused(what: Awaitable[object]) -> bool:
    try:
        await what
    except Refused as error:
        return "permission denied" in str(error)
    return False


async def anything_of(watch: AsyncGenerator[WatchBatch, None]) -> None:
    async with aclosing(watch):
        async for batch in watch:
            assert not batch.changes


def put(client: Coordination, key: str) -> Awaitable[object]:
    wanted: list[Op] = [Put(key, b"{}")]
    return client.txn((), wanted)


async def test_etcd_refuses_an_agent_what_is_not_its_own(guarded: Guarded) -> None:
    client = guarded.client("agent:n1")
    try:
        for key in (*OWN, *SHARED):
            assert not await refused(put(client, key)), key
        for key in FOREIGN:
            assert await refused(put(client, key)), key
        for key in READ:
            assert not await refused(client.get(key)), key
        for key in UNREAD:
            assert await refused(client.get(key)), key
        assert not await refused(client.list(keys.assignments_of("n1")))
        assert not await refused(client.list(keys.chunks_of("a" * 64)))
        assert await refused(client.list(keys.assignments_of("n2")))
        assert await refused(client.list(""))
        assert await refused(client.txn((), [Get(keys.node("n1")), Get(keys.intent("digits"))]))
    finally:
        await client.close()


async def test_everybody_finds_out_whether_etcd_lets_everybody_in(guarded: Guarded) -> None:
    for holder in ("supervisor:s0", "user:admin"):
        assert not await lets_everybody_in([guarded.server.endpoint], guarded.of(holder))


async def test_the_agents_of_a_pool_are_one_user_and_write_for_its_nodes_alone(guarded: Guarded) -> None:
    client = guarded.client("pool:train")
    try:
        for node in ("train.n1", "train.n2.2"):
            for key in (keys.node(node), keys.gpus(node), keys.appeal(node, "life")):
                assert not await refused(put(client, key)), key
            assert await refused(put(client, keys.lost(node, "life")))
            assert not await refused(client.get(keys.lost(node, "life")))
            assert not await refused(client.list(keys.assignments_of(node)))
            assert not await refused(client.list(keys.spares_of(node)))
        for node in ("n1", "train", "train2.n1", "Train.n1", "trainxn1"):
            assert await refused(put(client, keys.node(node))), node
            assert await refused(client.list(keys.assignments_of(node))), node
        for key in (*SHARED, *READ):
            assert await refused(client.get(key)) is (key == keys.lost("n1", "l")), key
        for key in (keys.pool_record("train"), keys.switch("digits"), keys.LEADER, keys.CLUSTER):
            assert await refused(put(client, key)), key
        assert await refused(client.get(keys.pool_record("train")))
        assert may("pool:train", keys.node("train.n1"), writes=True)
        assert not may("pool:train", keys.node("n1"), writes=True)
    finally:
        await client.close()


async def test_an_agents_lease_and_watches_are_its_own(guarded: Guarded) -> None:
    client = guarded.client("agent:n1")
    try:
        lease = await client.grant(5)
        await client.txn((), [Put(keys.node("n1"), b"{}", lease)])
        assert await client.keep_alive(lease)
        for prefix in (keys.assignments_of("n1"), "switches/", keys.spares_of("n1")):
            watch = client.watch(prefix, 1)
            await anext(watch)
            await watch.aclose()
        await client.revoke(lease)
        async with asyncio.timeout(20):
            with pytest.raises(Refused):
                await anything_of(client.watch(keys.assignments_of("n2"), 1))
    finally:
        await client.close()


async def test_a_supervisor_may_write_everything_of_its_cluster(guarded: Guarded) -> None:
    client = guarded.client("supervisor:s0")
    try:
        for key in (*OWN, *SHARED, *FOREIGN, *UNREAD, f"{BULK}code/x/0"):
            assert not await refused(put(client, key)), key
    finally:
        await client.close()


@pytest.mark.parametrize("identity", ["user:bob", "agent:n3"])
async def test_etcd_refuses_who_is_no_user_of_it(guarded: Guarded, identity: str) -> None:
    client = guarded.client(identity)
    try:
        with pytest.raises(TfSupervisorError):
            await client.get(keys.CLUSTER)
    finally:
        await client.close()


def test_what_has_changed_is_told_and_mended(guarded: Guarded) -> None:
    assert (
        guarded.ctl("check", *HOLDERS).output
        == "users and roles are as they should be\netcd refuses everybody else\n"
    )
    more = guarded.ctl("check", *HOLDERS, "agent:n9", "-o", "json")
    assert json.loads(more.output)["missing"] == [
        "role tfsup-c-node-n9 is missing",
        "user agent:n9 is missing",
    ]
    assert guarded.ctl("setup", *HOLDERS, "agent:n9").exit_code == 0
    assert guarded.ctl("check", *HOLDERS, "agent:n9").exit_code == 0
    foreign = guarded.ctl("setup", "agent:n9", user="user:bob")
    assert isinstance(foreign.exception, Refused)


@pytest.mark.parametrize("holder", ["user:alice", "n1", "agent:a/b", "agent:"])
def test_only_daemons_are_users_of_etcd(guarded: Guarded, holder: str) -> None:
    assert isinstance(guarded.ctl("setup", holder).exception, UserError)


def test_the_table_says_what_etcd_does() -> None:
    """The simulator holds its agents to `may`."""
    assert all(may("agent:n1", key, writes=True) for key in (*OWN, *SHARED))
    assert not any(may("agent:n1", key, writes=True) for key in FOREIGN)
    assert all(may("agent:n1", key) for key in READ)
    assert not any(may("agent:n1", key) for key in UNREAD)
    assert not may("agent:n1", "", prefix=True)


async def is_refused(what: Awaitable[object]) -> bool:
    try:
        await what
    except Refused:
        return True
    return False


async def test_maintenance_is_the_administrators_where_etcd_holds_to_that(guarded: Guarded) -> None:
    """etcd 3.4 lets every user compact; 3.5.28 and later only root."""
    supervisor = EtcdCalls([guarded.server.endpoint], guarded.of("supervisor:s0"))
    admin = EtcdCalls([guarded.server.endpoint], guarded.of("user:admin"))
    (member,) = await supervisor.members()
    assert member.file_bytes > 0
    older = guarded.server.binary == etcd_binaries()["etcd-packaged"]
    assert await is_refused(supervisor.compact(member.revision)) is not older
    assert await is_refused(supervisor.disarm()) is False, "there is no alarm"
    assert await is_refused(supervisor.defragment(member.endpoint))
    await admin.compact(member.revision)
    await admin.defragment(member.endpoint)


async def test_a_supervisor_that_may_not_compact_sees_whether_something_else_does(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_space, "UNCOMPACTED_MS", 180_000)
    clock, client = ManualClock(), guarded.client("supervisor:s0")
    care = EtcdCare(
        EtcdCalls([guarded.server.endpoint], guarded.of("supervisor:s0")),
        client,
        SpaceSettings(2 << 30, 60_000),
        leads=lambda: True,
        leader=lambda: None,
        tell=lambda _: asyncio.sleep(0),
        clock=clock,
        sink=ListSink(),
    )

    async def minutes(count: int) -> None:
        for _ in range(4 * count):
            clock.ms += LOOK_MS
            await put(client, keys.event(1))
            await care.look()

    await minutes(6)
    if guarded.server.binary == etcd_binaries()["etcd-packaged"]:
        assert care.lines == ()
        compacted = await client.list("")
        with pytest.raises(Compacted):
            await client.get_at(keys.LEADER, compacted.revision - 20)
    else:
        assert "--auto-compaction-retention" in " ".join(care.lines)
        admin = EtcdCalls([guarded.server.endpoint], guarded.of("user:admin"))
        await admin.compact((await client.list("")).revision)
        await minutes(1)
        assert care.lines == ()
    await client.close()


def test_defragmentation_shows_the_administrators_certificate(guarded: Guarded) -> None:
    cert = str(guarded.of("user:admin").cert)
    done = guarded.ctl("defrag", "--cert", cert, "-o", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["members"][0]["after"] > 0
    refused = guarded.ctl("defrag")
    assert isinstance(refused.exception, Refused)
    assert "give --cert" in str(refused.exception)
