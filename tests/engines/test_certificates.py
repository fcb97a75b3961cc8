"""A pool whose agents get their certificates from real supervisors, with a real etcd that has users."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.cli.main import cli
from supervisor.cli.pool import commands
from supervisor.contract.errors import Conflict, Refused
from tests.engines.fake_engine import FakeEngine
from tests.support.etcd_server import EtcdServer, free_port
from tests.support.waiting import wait_until

LIFE_S = 30
JOB = """
name: count
command: [{python}, -u, -c, "import time\\nfor i in range(9999):\\n  print('step', i); time.sleep(0.2)"]
strategy: plain
preload: []
roles: {{worker: {{count: 1}}}}
checkpoint: {{uri: "file://{store}"}}
"""


@dataclass
class Site:
    """A cluster with certificates of `supervisorctl certs`, as an operator makes it."""

    root: Path
    engine: FakeEngine = field(default_factory=FakeEngine)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ports: list[int] = field(default_factory=lambda: [free_port() for _ in range(2)])

    @property
    def tls(self) -> Path:
        return self.root / "tls"

    def files(self, holder: str) -> dict[str, str]:
        own = self.tls / holder
        return {"ca": str(self.tls / "ca.pem"), "cert": f"{own}.pem", "key": f"{own}.key"}

    def ctl(self, *words: str) -> Result:
        return CliRunner().invoke(cli, ["--config", str(self.root / "client.yaml"), *words])

    def json(self, *words: str) -> dict[str, list[dict[str, object]]]:
        done = self.ctl(*words, "-o", "json")
        assert done.exception is None, done.exception
        found: dict[str, list[dict[str, object]]] = json.loads(done.stdout)
        return found

    def states(self) -> dict[object, object]:
        done = self.ctl("nodes", "-o", "json")
        return (
            {} if done.exception else {one["node"]: one["state"] for one in json.loads(done.stdout)["nodes"]}
        )

    def make(self) -> EtcdServer:
        names = ("supervisor:s0,127.0.0.1", "supervisor:s1,127.0.0.1", "etcd:e,127.0.0.1")
        run("certs", "issue", str(self.tls), *names, "user:olga", "user:otto", "etcdctl:admin")
        run("certs", "pool-authority", str(self.tls))
        trusted = self.tls / "of-etcd.pem"
        trusted.write_bytes(b"".join((self.tls / f"{each}.pem").read_bytes() for each in ("ca", "pool-ca")))
        return EtcdServer(tls=TlsFiles(trusted, self.tls / "etcd-e.pem", self.tls / "etcd-e.key"))

    def start(self, etcd: EtcdServer) -> None:
        supervisors = [f"127.0.0.1:{port}" for port in self.ports]
        for index, listen in enumerate(supervisors):
            config = {
                "cluster": "c",
                "id": f"s{index}",
                "listen": listen,
                "profile": "fast",
                "state_dir": str(self.root / f"s{index}"),
                "stores": [f"file://{self.root}"],
                "tls": self.files(f"supervisor-s{index}"),
                "user_ca": str(self.tls / "user-ca.pem"),
                "users": {"olga": {"role": "operator"}, "otto": {"role": "operator"}},
                "etcd": {"endpoints": [etcd.endpoint], "tls": self.files(f"supervisor-s{index}")},
                "audit": {"file": str(self.root / "audit.jsonl")},
                "pools": {
                    "issuer": {each: str(self.tls / f"pool-ca.{end}") for each, end in ENDS},
                    "life": f"{LIFE_S}s",
                },
            }
            (self.root / f"s{index}.yaml").write_text(json.dumps(config))
        client = {"cluster": "c", "supervisors": supervisors, "tls": self.files("user-olga")}
        (self.root / "client.yaml").write_text(json.dumps(client))
        shared = {
            "cluster": "c",
            "node": "any",
            "profile": "fast",
            "supervisors": supervisors,
            "etcd": {"endpoints": [etcd.endpoint], "tls": {"ca": str(self.tls / "ca.pem")}},
            "listen": f"127.0.0.1:{free_port()}",
            "host": "127.0.0.1",
            "tls": {"ca": str(self.tls / "ca.pem")},
            "state_dir": str(self.root / "agents"),
            "run_dir": str(self.root / "r"),
            "lock_dir": str(self.root / "locks"),
            "checkpoint_parent": str(self.root / "tasks"),
            "stores": [f"file://{self.root}"],
            **({"task_user": "0:0"} if os.geteuid() == 0 else {}),
        }
        (self.root / "pool.yaml").write_text(json.dumps(shared))
        (self.root / "job.yaml").write_text(JOB.format(python=sys.executable, store=self.root / "store"))
        setup = ("etcd", "setup", "--enable", "--supervisor-config", str(self.root / "s0.yaml"))
        admin = ("--cert", str(self.tls / "etcdctl-admin.pem"))
        run(*setup, *admin, "supervisor:s0", "supervisor:s1", "pool:train")
        for index in range(len(self.ports)):
            with (self.root / f"s{index}.log").open("wb") as log:
                command = (
                    sys.executable,
                    "-m",
                    "supervisor.main",
                    "--config",
                    str(self.root / f"s{index}.yaml"),
                )
                self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def up(self, name: str, *more: str) -> Result:
        given = ("--agent-config", str(self.root / "pool.yaml"), "--logs", str(self.root))
        return self.ctl("pool", "up", name, *given, *more)

    def logs(self) -> str:
        return "".join(each.read_text(errors="replace") for each in self.root.glob("*_*.log"))

    def audited(self, method: str) -> list[dict[str, object]]:
        lines = [json.loads(each) for each in (self.root / "audit.jsonl").read_text().splitlines()]
        return [each for each in lines if each["method"] == method]

    def close(self) -> None:
        self.engine.close()
        for each in self.processes:
            each.kill()
            each.wait()


ENDS = (("cert", "pem"), ("key", "key"))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(tmp_path)
    monkeypatch.setattr(commands, "_engine", lambda _on: made.engine)
    with ExitStack() as stack:
        etcd = stack.enter_context(made.make())
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


def run(*words: str) -> None:
    done = CliRunner().invoke(cli, list(words))
    assert done.exception is None, (done.output, done.exception)
