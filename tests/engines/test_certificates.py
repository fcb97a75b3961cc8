"""A pool whose agents get their certificates from real supervisors, with a real etcd that has users."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from supervisor.cli.main import cli
from supervisor.cli.pool import commands, tokens
from supervisor.contract.errors import Conflict, Refused
from supervisor.engines import pools
from tests.engines.certified import Site
from tests.engines.fake_engine import FakeEngine
from tests.engines.pool_shell import wait_long
from tests.support.etcd_server import etcd_binaries
from tests.support.ports import free_port
from tests.support.waiting import wait_until


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    made = FakeEngine()
    yield made
    made.close()


@pytest.fixture(params=etcd_binaries())
def site(
    request: pytest.FixtureRequest, tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    made = Site(tmp_path)
    monkeypatch.setattr(commands, "_engine", lambda _on: engine)
    with ExitStack() as stack:
        etcd = stack.enter_context(made.make(etcd_binaries()[request.param]))
        stack.callback(made.close)
        made.start(etcd)
        wait_until(lambda: made.ctl("nodes").exception is None, "a supervisor leads")
        yield made


@pytest.mark.slow
def test_agents_of_a_pool_are_certified_and_revoked(site: Site) -> None:
    done = site.up("train", "--agents", "2")
    assert done.exception is None, (done.output, done.exception)
    token = site.root / "train.token"
    assert token.stat().st_mode & 0o777 == 0o600
    secret = token.read_text().splitlines()[1]
    wait_until(lambda: site.states() == {"train.n1": "ready", "train.n2": "ready"}, "both join")

    # Supervisors reach the agents by the name in their certificates.
    assert site.ctl("submit", str(site.root / "job.yaml")).exception is None
    wait_until(lambda: "step 3" in site.ctl("tail", "count/worker:0").output, "its output is read")

    # The key has never left the machine, and the token is nowhere.
    for path in (*site.root.glob("*.log"), *site.root.glob("*.jsonl"), site.root / "pool.yaml"):
        assert secret not in path.read_text(errors="replace"), path
    (line, *_) = site.audited("Control.OpenPool")
    assert (line["by"], line["on"]) == ("user:olga", {"pool": "train"})
    issued = [each for each in site.audited("Control.Certify") if each.get("result") == "ok"]
    assert {json.dumps(each["on"]) for each in issued} == {'{"node": "train.n1"}', '{"node": "train.n2"}'}
    assert "its token is valid until" in site.ctl("pool", "status", "train").output

    # They are renewed, and nothing is lost by it.
    first = (site.root / "agents" / "train.n1" / "certificate.pem").read_bytes()
    renewed = site.root / "agents" / "train.n1" / "certificate.pem"
    wait_until(lambda: renewed.read_bytes() != first, "a certificate is renewed")
    assert site.states() == {"train.n1": "ready", "train.n2": "ready"}

    # Another operator takes no pool over. A node that is revoked is refused at once.
    done = site.ctl("pool", "revoke", "train", "train.n2")
    assert done.exception is None, done.exception
    wait_until(lambda: site.states().get("train.n2") != "ready", "the node is silent to supervisors")
    assert site.states()["train.n1"] == "ready"
    wait_until(lambda: "train.n2 was revoked" in site.logs(), "it gets no other certificate")

    # The end of the pool is the end of its token.
    assert site.ctl("pool", "down", "train", "--now").exception is None
    assert site.json("pool", "list")["certificates"] == []


@pytest.mark.slow
def test_a_node_is_revoked_and_a_token_expires_while_a_job_runs(site: Site, engine: FakeEngine) -> None:
    token = str(site.root / "train.token")
    assert site.up("train", "--agents", "3").exception is None
    wait_until(lambda: len(ready(site)) == 3, "all join")
    assert site.ctl("submit", str(site.root / "job.yaml")).exception is None
    wait_until(lambda: "step 3" in site.ctl("tail", "count/worker:0").output, "it runs")

    # Its tasks go on elsewhere, although etcd lets its agent in still. Meanwhile a token expires.
    revoked = where(site)
    assert site.ctl("pool", "token", "train", token, "--token-for", "1m").exception is None
    assert site.ctl("pool", "revoke", "train", revoked).exception is None
    wait_until(lambda: where(site) not in ("", revoked), "its task is replaced")
    assert revoked not in ready(site)
    wait_until(lambda: f"{revoked} was revoked" in site.logs(), "its log says why")
    wait_long(lambda: "its token expired at" in status(site), "the token expires")

    # It ends no agent that runs, and keeps the next one out.
    gone = next(each for each in sorted(ready(site)) if each != where(site))
    ident = next(each.id for each in engine.agents() if f"train.{each.place}" == gone)
    engine.cancel([ident])
    wait_until(lambda: ident not in {each.id for each in pools.live(engine)}, "an agent has ended")
    (site.root / "agents" / gone / "certificate.pem").unlink()
    assert "its token expired at" in site.ctl("pool", "scale", "train", "3").output
    told = f"{gone} gets no certificate: {token} expired at "
    wait_until(lambda: told in site.logs(), "its log says so")
    assert site.ctl("pool", "token", "train", token).exception is None
    wait_long(lambda: gone in ready(site), "it has asked again")
    assert site.ctl("pool", "down", "train", "--now").output.rstrip().endswith(tokens.REVOKED)
    assert site.json("pool", "list")["certificates"] == []


def ready(site: Site) -> set[str]:
    """The nodes that take tasks."""
    return {node for node, state in site.states().items() if state == "ready"}


def where(site: Site) -> str:
    """The node of the job's task; empty while it has none."""
    (job,) = site.json("status", "count")["jobs"]
    return "".join(str(each["node"]) for each in job["tasks"])


def status(site: Site) -> str:
    return site.ctl("pool", "status", "train").output


@pytest.mark.slow
def test_what_goes_wrong_is_told_on_both_sides(site: Site) -> None:
    # A pool that the engine does not take leaves no token.
    done = site.up("train", "--queue", "nowhere")
    assert isinstance(done.exception, Refused)
    assert not (site.root / "train.token").exists()
    assert site.json("pool", "list")["certificates"] == []

    # An agent whose machine reaches no supervisor, and one that etcd does not know.
    shared = json.loads((site.root / "pool.yaml").read_text())
    lost = shared | {"supervisors": [f"127.0.0.1:{free_port()}"]}
    (site.root / "lost.yaml").write_text(json.dumps(lost))
    assert site.up("train", "--agent-config", str(site.root / "lost.yaml")).exception is None
    assert site.up("unknown").exception is None
    nowhere = lost["supervisors"][0]
    wait_until(lambda: f"({nowhere}: no connection)" in site.logs(), "the keeper names the address")
    told = site.ctl("pool", "status", "train").output
    assert "has given it no certificate: its machine may reach none" in told
    wait_until(lambda: "unknown.n2 has a certificate until" in site.logs(), "it has a certificate")
    wait_until(lambda: "`supervisorctl etcd setup` makes pool:unknown" in site.logs(), "etcd refuses it")
    assert "it may not reach etcd" in site.ctl("pool", "status", "unknown").output

    # Another operator takes no pool over; the owner replaces the token, which is told where it is used.
    as_otto = {"cluster": "c", "supervisors": shared["supervisors"], "tls": site.files("user-otto")}
    (site.root / "otto.yaml").write_text(json.dumps(as_otto))
    file = str(site.root / "train.token")
    otto = CliRunner().invoke(cli, ["--config", str(site.root / "otto.yaml"), "pool", "token", "train", file])
    assert isinstance(otto.exception, Conflict)
    assert "pool train is of user:olga" in str(otto.exception)
    assert "expired" not in site.ctl("pool", "scale", "train", "2").output
    assert site.ctl("pool", "token", "train", file, "--token-for", "1m").exception is None
    for each in ("train", "unknown"):
        assert site.ctl("pool", "down", each, "--now").exception is None
    assert site.json("pool", "list")["certificates"] == []
    assert "cannot read this TLS file" not in site.logs(), "no agent has run there"
