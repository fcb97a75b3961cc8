"""The authority of pools over real TLS: it makes agents of pools, and nobody else, for supervisors alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

from agent.link import open_beats
from chaos.cluster.certificates import Authority
from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.api.agents import AgentAddress, Agents, address_of
from supervisor.contract import codec, keys
from supervisor.contract.access import TABLE, Caller, Kind
from supervisor.contract.errors import Unreachable, UserError
from supervisor.contract.observed import LINK_PROTOCOL, Beat
from supervisor.contract.pool.record import PoolRecord, server_name
from supervisor.contract.pool.requests import CertifyRequest
from supervisor.contract.views.jobs import OutputList, OutputsRequest
from supervisor.control.decide.plan import put
from supervisor.wire.rpc import Guard, Server, unary
from supervisor.wire.tfsup_pb2 import Record
from tests.api.doors import REQUESTS, Doors, ask
from tests.api.services import Place
from tests.control.world import World
from tests.support.ports import free_port

ID = "tfsup-pool:ab12"
NODE = "train.n1"


@pytest.fixture
async def doors(tmp_path: Path) -> AsyncIterator[Doors]:
    async with AsyncExitStack() as stack:
        made = Doors(tmp_path, stack, pools=Authority(tmp_path / "pools"))
        await made.open()
        yield made


async def holder(
    doors: Doors, identity: str, *uris: str, authority: Authority | None = None
) -> dict[str, grpc.aio.Channel]:
    """Connections of the holder of a certificate that the authority of pools has signed, or another."""
    signer = authority or doors.pools
    assert signer is not None
    file = "".join(each if each.isalnum() else "-" for each in f"{identity}{uris}")
    cert, key = signer.issue(file, ["127.0.0.1"], identity, *uris)
    guard = Guard(TlsFiles(doors.authority.certificate, cert, key))
    return {
        name: await doors.stack.enter_async_context(guard.channel(address))
        for name, address in doors.addresses.items()
    }


async def test_it_makes_agents_and_tokens_of_pools_and_nobody_else(doors: Doors) -> None:
    agent, token = await holder(doors, f"agent:{NODE}", ID), await holder(doors, "pool:train", ID)
    beat = Beat(LINK_PROTOCOL, NODE, "i1", 1)
    certify = REQUESTS["Control.Certify"]
    assert await ask(agent, "Link.Beats", beat) == "ok"
    assert await ask(agent, "Control.Certify", certify) == "ok"
    assert await ask(token, "Control.Certify", certify) == "ok"
    # Another node, another pool, or anything else.
    for who, method, request in (
        (agent, "Link.Beats", Beat(LINK_PROTOCOL, "train.n2", "i1", 1)),
        (agent, "Control.Certify", CertifyRequest("train.n2", "")),
        (token, "Control.Certify", CertifyRequest("other.n1", "")),
        (token, "Control.Certify", CertifyRequest("train", "")),
        (token, "Link.Beats", beat),
    ):
        assert await ask(who, method, request) == "Refused", request
    assert [each.node for each in doors.beats] == [NODE]


async def test_every_other_identity_that_it_signs_is_refused_everything(doors: Doors) -> None:
    served = [each for each in TABLE if each.startswith(("Link.", "Control."))]
    for identity in ("user:adam", "user:olga", "supervisor:s1", "pool:train", f"agent:{NODE}"):
        # The last two have no pool's id.
        uris = (ID,) if identity.startswith(("user", "supervisor")) else ()
        who = await holder(doors, identity, *uris)
        for method in served:
            assert await ask(who, method, REQUESTS[method]) == "Refused", (identity, method)
    assert doors.beats == []


async def test_no_other_authority_makes_tokens_or_renews(doors: Doors) -> None:
    token = await holder(doors, "pool:train", ID, authority=doors.authority)
    agent = await holder(doors, f"agent:{NODE}", ID, authority=doors.authority)
    assert await ask(token, "Control.Certify", REQUESTS["Control.Certify"]) == "Refused"
    assert await ask(agent, "Control.Certify", REQUESTS["Control.Certify"]) == "Refused"
    assert await ask(agent, "Link.Beats", Beat(LINK_PROTOCOL, NODE, "i1", 1)) == "ok", "as ever"


async def test_an_agent_does_not_let_it_connect(doors: Doors) -> None:
    for identity in ("supervisor:s1", f"agent:{NODE}"):
        forged = await holder(doors, identity, ID)
        assert (await ask(forged, "Node.Read", REQUESTS["Node.Read"])).startswith("StatusCode.UNAVAILABLE")


async def test_beats_that_are_under_way_end_when_their_pool_is_revoked(doors: Doors) -> None:
    channel = (await holder(doors, f"agent:{NODE}", ID))["supervisor"]
    beat = Record(json=codec.encode(Beat(LINK_PROTOCOL, NODE, "i1", 1)))
    call = open_beats(channel, Guard())
    await call.write(beat)
    await call.read()
    doors.policies[0].pools = lambda caller: f"{caller.pool_id} is over"
    await call.write(beat)
    with pytest.raises(grpc.aio.AioRpcError, match=r"agent:train\.n1 is refused: ab12 is over"):
        await call.read()
    assert len(doors.beats) == 1
    doors.policies[0].pools = lambda _caller: ""
    doors.policies[0].denied = frozenset({"pool:train"})
    token = await holder(doors, "pool:train", ID)
    assert await ask(token, "Control.Certify", REQUESTS["Control.Certify"]) == "Refused"


async def test_the_gate_knows_a_token_by_its_certificate(doors: Doors) -> None:
    heard: list[Caller] = []

    def hear(caller: Caller) -> str:
        heard.append(caller)
        return ""

    doors.policies[0].pools = hear
    await ask(await holder(doors, "pool:train", ID), "Control.Certify", REQUESTS["Control.Certify"])
    await ask(await holder(doors, f"agent:{NODE}", ID), "Control.Certify", REQUESTS["Control.Certify"])
    token, agent = heard[0], heard[-1]
    assert (token.kind, token.name, token.pool_id, len(token.token)) == (Kind.POOL, "train", "ab12", 64)
    assert (agent.kind, agent.name, agent.pool_id, agent.token) == (Kind.AGENT, NODE, "ab12", "")


async def test_supervisors_know_the_agent_of_a_pool_by_a_name_that_no_other_has(tmp_path: Path) -> None:
    machines, pools = Authority(tmp_path / "tls"), Authority(tmp_path / "pools")
    caller = machines.issue("s0", ["127.0.0.1"], "supervisor:s0")
    guard = Guard(TlsFiles(machines.certificate, *caller, pool_ca=pools.certificate))
    world = World(nodes=0)
    world.register(NODE, "i1")
    record = PoolRecord(name="train", id="ab12", owner="", token="", token_ends_wall_ms=0)
    world.write(put(keys.pool_record("train"), record))
    name = address_of(world.snapshot(), NODE).server
    assert name == server_name(NODE, "ab12")

    async def outputs(_: OutputsRequest) -> OutputList:
        return OutputList(())

    async def reached(server: str, certificate: tuple[Path, Path]) -> bool:
        at = f"127.0.0.1:{free_port()}"
        methods = {"Outputs": unary(OutputsRequest, outputs)}
        served = Server(at, Guard(TlsFiles(machines.certificate, *certificate)), {"tfsup.v1.Node": methods})
        await served.start()
        try:
            async with Agents(guard) as agents:
                asked = OutputsRequest("uuid", "digits/worker:0")
                await agents.ask(AgentAddress(at, server), "Outputs", asked, OutputList, 5.0)
        except Unreachable:
            return False
        finally:
            await served.close(0)
        return True

    def of(name: str, authority: Authority) -> tuple[Path, Path]:
        return authority.issue(name, ["127.0.0.1"], f"agent:{NODE}", ID)

    assert await reached(name, of(name, pools))
    assert not await reached(name, of(server_name("train.n2", "ab12"), pools)), "another node's"
    assert not await reached(name, of(server_name(NODE, "cd34"), pools)), "of an earlier pool"
    assert not await reached(name, of(name, machines)), "of another authority"
    assert not await reached("", of(name, pools)), "where a node of no pool is expected"


def test_a_supervisor_takes_an_authority_of_pools_alone(tmp_path: Path) -> None:
    machines, users, pools = (Authority(tmp_path / each) for each in ("tls", "users", "pools"))
    cert, key = machines.issue("s0", ["127.0.0.1"], "supervisor:s0")
    tls = {"ca": str(machines.certificate), "cert": str(cert), "key": str(key)}
    place = Place(tmp_path, AsyncExitStack())

    def load(authority: Authority, **more: object) -> str:
        issuer = {"cert": str(authority.certificate), "key": str(authority.key())}
        given = {"listen": "127.0.0.1:7600", "tls": tls, "user_ca": str(users.certificate), **more}
        try:
            place.config("s0", **{"pools": {"issuer": issuer}, **given})
        except UserError as error:
            return str(error)
        return ""

    assert load(pools) == ""
    assert "ca.pem: holds the authority of pools" in load(machines)
    assert "ca.pem: holds the authority of pools" in load(users)
    unix = {"listen": f"unix:{tmp_path}/s", "tls": None, "user_ca": None}
    assert "pools.issuer: needs `tls: {ca, cert, key}`" in load(pools, **unix)
    wrong = {"issuer": {"cert": "pools/ca.pem", "key": "none.key"}}
    assert "none.key: No such file or directory" in load(pools, pools=wrong)
    pools.key().chmod(0o644)
    assert "others on this machine can read" in load(pools)
