"""A cluster with certificates, users of etcd and an authority of pools, as its administrator makes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.cli.main import cli
from tests.support.etcd_server import EtcdServer
from tests.support.ports import free_port

LIFE_S = 30
"""The least life of a certificate that a supervisor's configuration takes."""
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
    profile: str = "fast"
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ports: list[int] = field(default_factory=lambda: [free_port() for _ in range(2)])

    @property
    def tls(self) -> Path:
        """The directory of `supervisorctl certs`."""
        return self.root / "tls"

    def files(self, holder: str) -> dict[str, str]:
        """A holder's certificate, as `tls` of a configuration names it."""
        own = self.tls / holder
        return {"ca": str(self.tls / "ca.pem"), "cert": f"{own}.pem", "key": f"{own}.key"}

    def ctl(self, *words: str) -> Result:
        """Run `supervisorctl` as olga, in this process."""
        return CliRunner().invoke(cli, ["--config", str(self.root / "client.yaml"), *words])

    def json(self, *words: str) -> dict[str, list[dict[str, Any]]]:
        """What a verb tells programs."""
        done = self.ctl(*words, "-o", "json")
        assert done.exception is None, done.exception
        found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
        return found

    def states(self) -> dict[str, str]:
        """The state of each node; nothing while no supervisor answers."""
        done = self.ctl("nodes", "-o", "json")
        return (
            {} if done.exception else {one["node"]: one["state"] for one in json.loads(done.stdout)["nodes"]}
        )

    def make(self, binary: Path | None = None) -> EtcdServer:
        """Make the authorities and certificates, and an etcd that trusts them."""
        names = ("supervisor:s0,127.0.0.1", "supervisor:s1,127.0.0.1", "etcd:e,127.0.0.1")
        run("certs", "issue", str(self.tls), *names, "user:olga", "user:otto", "etcdctl:admin")
        run("certs", "pool-authority", str(self.tls))
        trusted = self.tls / "of-etcd.pem"
        trusted.write_bytes(
            b"".join((self.tls / f"{each}.pem").read_bytes() for each in ("ca", "pool-ca-etcd"))
        )
        return EtcdServer(binary, tls=TlsFiles(trusted, self.tls / "etcd-e.pem", self.tls / "etcd-e.key"))

    def start(self, etcd: EtcdServer) -> None:
        """Give etcd its users, and start two supervisors."""
        supervisors = [f"127.0.0.1:{port}" for port in self.ports]
        for index, listen in enumerate(supervisors):
            config = {
                "cluster": "c",
                "id": f"s{index}",
                "listen": listen,
                "profile": self.profile,
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
            "profile": self.profile,
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
        """Start a pool."""
        given = ("--agent-config", str(self.root / "pool.yaml"), "--logs", str(self.root))
        return self.ctl("pool", "up", name, *given, *more)

    def logs(self) -> str:
        """The output of all agents that have a log here."""
        return "".join(each.read_text(errors="replace") for each in self.root.glob("*_*.log"))

    def audited(self, method: str) -> list[dict[str, object]]:
        """The lines about a method in the audit log of both supervisors."""
        lines = [json.loads(each) for each in (self.root / "audit.jsonl").read_text().splitlines()]
        return [each for each in lines if each["method"] == method]

    def close(self) -> None:
        """End the supervisors."""
        for each in self.processes:
            each.kill()
            each.wait()


ENDS = (("cert", "pem"), ("key", "key"))


def run(*words: str) -> None:
    """Run `supervisorctl` without a cluster."""
    done = CliRunner().invoke(cli, list(words))
    assert done.exception is None, (done.output, done.exception)
