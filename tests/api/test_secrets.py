"""The way of a task's secrets, over real TLS: from the leader to the agent of the task's node."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agent.link import GrpcLinks
from chaos.cluster.certificates import Authority
from supervisor.adapters.audit import AuditLog, open_audit
from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.adapters.files.config.daemon import AuditConfig
from supervisor.adapters.secret_sources import SecretSources
from supervisor.api.server import serve_api, sources_of
from supervisor.contract import keys
from supervisor.contract.desired import LeaderRecord
from supervisor.contract.errors import NotFound, Refused, Unreachable
from supervisor.contract.observed import LINK_PROTOCOL
from supervisor.contract.secret import SecretsAnswer, SecretsRequest
from supervisor.control.decide.plan import put
from supervisor.wire.rpc import Guard
from tests.api.services import FakeJobService, Place
from tests.control.world import World
from tests.support.builders import job_spec, role
from tests.support.ports import free_port
from tests.support.sinks import ListSink

TOKEN = "hf_Abcdef012345"
SPEC = replace(
    job_spec((role("ps"), replace(role("worker"), secrets={"TOKEN": "hf"}))), secrets={"KEY": "key"}
)


@dataclass
class Cluster:
    """A follower and a leader, in whose snapshot a job of alice's runs."""

    root: Path
    stack: AsyncExitStack
    authority: Authority = field(init=False)
    addresses: list[str] = field(init=False)
    world: World = field(init=False)
    secrets: SecretSources = field(init=False)
    log: AuditLog | None = None

    def __post_init__(self) -> None:
        self.authority = Authority(self.root / "tls")
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.world = World(SPEC).start()
        self.own("user:alice", "vision")
        for name, value in (("hf", TOKEN), ("key", "Key-of-alice")):
            (self.root / name).touch(mode=0o600)
            (self.root / name).write_text(value)

    def own(self, owner: str, group: str) -> None:
        record = self.world.job().record.value
        self.world.write(put(keys.job_record(SPEC.name), replace(record, owner=owner, group=group)))

    def files(self, identity: str) -> TlsFiles:
        cert, key = self.authority.issue(identity.replace(":", "-"), ["127.0.0.1"], identity)
        return TlsFiles(self.authority.certificate, cert, key)

    async def open(self) -> None:
        tls = self.files("supervisor:s0")
        shown = {name: str(getattr(tls, name)) for name in ("ca", "cert", "key")}
        secrets = {
            "hf": {"file": str(self.root / "hf"), "allow": ["user:alice"]},
            "key": {"file": str(self.root / "key"), "allow": ["group:vision"]},
        }
        self.log = open_audit(AuditConfig(file=str(self.root / "audit.jsonl"), required=True), ListSink())
        place = Place(self.root, self.stack)
        leader = LeaderRecord("s1", self.addresses[1], 1)
        for address, picture in zip(self.addresses, (None, self.world.snapshot()), strict=True):
            config = place.config("s0", listen=address, tls=shown, secrets=secrets)
            self.secrets = SecretSources(sources_of(config))
            service = FakeJobService(picture, leader)
            server = await serve_api(service, lambda _: None, config, log=self.log, secrets=self.secrets)
            self.stack.push_async_callback(server.close, 0)

    def links(self, identity: str) -> GrpcLinks:
        return GrpcLinks(self.addresses, Guard(self.files(identity)), ListSink())

    async def ask(
        self, identity: str, *, node: str = "", task: str = f"{SPEC.name}/worker:0", plan_id: str = ""
    ) -> SecretsAnswer:
        node = node or self.world.node_of("worker.0")
        request = SecretsRequest(LINK_PROTOCOL, node, task, plan_id or self.world.switch().plan_id)
        return await self.links(identity).secrets(request)

    def agent(self, member: str = "worker.0") -> str:
        return f"agent:{self.world.node_of(member)}"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        made = Cluster(tmp_path, stack)
        await made.open()
        yield made
        assert made.log is not None
        made.log.close()


async def test_the_agent_of_a_tasks_node_gets_the_values_and_the_audit_log_no_value(cluster: Cluster) -> None:
    agent = cluster.agent()
    assert (await cluster.ask(agent)).values == {"hf": TOKEN, "key": "Key-of-alice"}
    ps = await cluster.ask(
        cluster.agent("ps.0"), task=f"{SPEC.name}/ps:0", node=cluster.world.node_of("ps.0")
    )
    assert ps.values == {"key": "Key-of-alice"}, "those of its role alone"
    (cluster.root / "hf").write_text("hf_changed_value")
    assert (await cluster.ask(agent)).values["hf"] == "hf_changed_value"
    assert cluster.log is not None
    cluster.log.close()
    text = (cluster.root / "audit.jsonl").read_text()
    cluster.log = open_audit(AuditConfig(file=str(cluster.root / "audit.jsonl")), ListSink())
    assert not any(value in text for value in (TOKEN, "hf_changed", "Key-of-alice"))
    lines = [json.loads(line) for line in text.splitlines()]
    first = next(line for line in lines if line["stage"] == "received" and line["by"] == agent)
    assert first["method"] == "Link.Secrets"
    assert first["on"] == {"task": f"{SPEC.name}/worker:0", "node": agent.removeprefix("agent:")}
    assert any(line["stage"] == "completed" and line["result"] == "ok" for line in lines)


async def test_nobody_else_gets_them(cluster: Cluster) -> None:
    """Not another agent, by its own name or by this one's; nor a user or another supervisor."""
    other = next(node for node in cluster.world.agents if f"agent:{node}" != cluster.agent())
    with pytest.raises(Refused, match=rf"agent:{other} may not speak for node"):
        await cluster.ask(f"agent:{other}")
    with pytest.raises(NotFound, match=rf"is not placed on {other} by plan"):
        await cluster.ask(f"agent:{other}", node=other)
    for identity in ("user:alice", "supervisor:s1"):
        with pytest.raises(Refused, match=r"may not call Link\.Secrets"):
            await cluster.ask(identity)


async def test_a_task_of_another_plan_or_job_is_not_the_one_that_runs(cluster: Cluster) -> None:
    with pytest.raises(NotFound):
        await cluster.ask(cluster.agent(), plan_id="an-earlier-plan")
    for task in (f"{SPEC.name}/worker:7", "another/worker:0"):
        with pytest.raises(NotFound):
            await cluster.ask(cluster.agent(), task=task)


async def test_what_the_owner_may_not_use_is_refused_with_the_reason(cluster: Cluster) -> None:
    cluster.secrets.sources = {name: each for name, each in cluster.secrets.sources.items() if name != "key"}
    with pytest.raises(Refused, match="there is no secret 'key'; an operator adds it to `secrets` in the"):
        await cluster.ask(cluster.agent())


async def test_a_value_that_cannot_be_had_is_waited_for(cluster: Cluster) -> None:
    (cluster.root / "hf").write_text("")
    with pytest.raises(Unreachable, match="the secret 'hf' cannot be read now: its value has fewer than 8"):
        await cluster.ask(cluster.agent())


async def test_without_a_leader_nobody_answers(cluster: Cluster) -> None:
    cluster.addresses.pop()
    with pytest.raises(Unreachable, match="no supervisor that leads answers"):
        await cluster.ask(cluster.agent())
