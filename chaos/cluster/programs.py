"""The start of each daemon of a cluster: its command, its configuration, the directories that it needs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from chaos.cluster import docker
from chaos.cluster.enter import SYSTEM_PATH
from chaos.cluster.hadoop import Hadoop
from chaos.cluster.program import REPOSITORY, Program
from chaos.cluster.shape import AGENT_PORT, CLIENT_PORT, OPERATOR, PEER_PORT, SUPERVISOR_PORT, Place, Shape
from chaos.machine import power_switch
from chaos.nvml import LIBRARY
from supervisor.adapters import failpoints

CLUSTER = "chaos"
HDFS_USER = "root"
AUDIT = "audit.jsonl"
"""On the disk of each node with a daemon: its audit log."""
_ETCD_BEATS = {"fast": (50, 500), "default": (100, 1000)}


@dataclass(frozen=True, slots=True)
class Programs:
    """Writes configuration below `root`/conf and says what each node runs.

    Attributes:
        disk: where a node of this kind of cluster has its own disk, as its programs see it; by its name.
    """

    root: Path
    shape: Shape
    places: tuple[Place, ...]
    disks: dict[str, Path]
    hadoop: Hadoop | None
    cgroup: str

    @property
    def store(self) -> Path:
        """Checkpoints of jobs without a URI of their own; all nodes share it, as a server of files."""
        return self.root / "store"

    @property
    def client(self) -> Path:
        """Configuration of `supervisorctl`."""
        return self.root / "conf" / "client.yaml"

    @property
    def checkpoint_base(self) -> str:
        """Jobs without a URI of their own keep their checkpoints below it."""
        return f"{self.hadoop.uri}/jobs" if self.hadoop is not None else self.store.as_uri()

    def client_of(self, tenant: str) -> Path:
        """The same for one of `Shape.tenants`."""
        return self.root / "conf" / f"client-{tenant}.yaml"

    def of(self, place: Place) -> list[Program]:
        """The programs of a node."""
        if place.kind == "etcd":
            return [self._etcd(place)]
        if place.kind == "sup":
            return [self._supervisor(place)]
        if place.kind == "hdfs":
            assert self.hadoop is not None
            return self.hadoop.programs(place, self._env(place))
        if place.docker:
            cgroup = f"/{self.cgroup}/{place.name}/docker"
            gpus = self.nvml(place.name) if self.shape.gpus else None
            dockerd = docker.program(self.disks[place.name], cgroup, self._env(place), gpus)
            return [dockerd, self._agent(place)]
        return [self._agent(place)]

    def endpoints(self) -> list[str]:
        """Client addresses of etcd, for the daemons and for whoever looks."""
        return [f"{place.address}:{CLIENT_PORT}" for place in self._kind("etcd")]

    def supervisors(self) -> list[str]:
        """Addresses of supervisors."""
        return [f"{place.address}:{SUPERVISOR_PORT}" for place in self._kind("sup")]

    def write_clients(self) -> None:
        """Write the client configurations of the operator's machine."""
        common: dict[str, object] = {"cluster": CLUSTER, "supervisors": self.supervisors()}
        own = {"tls": self.tls(OPERATOR), "checkpoint_base": self.checkpoint_base}
        self._write(self.client, common | own)
        for each in self.shape.tenants:
            own = {"tls": self.tls(each), "checkpoint_base": f"{self.checkpoint_base}/{each}"}
            self._write(self.client_of(each), common | own)

    @property
    def clock_library(self) -> Path:
        """The library that daemons preload, so that their wall clock follows the file `clock`."""
        return self.root / "conf" / "wall_clock.so"

    def clock(self, node: str) -> Path:
        """The file with the offset of a node's wall clock."""
        return self.root / "nodes" / node / "clock"

    def nvml(self, node: str) -> Path:
        """The directory of a node's NVML and what that answers from."""
        return self.root / "nodes" / node / "nvml"

    def write_names(self) -> None:
        """Write the hosts file of every node, with the names of all nodes."""
        lines = ("127.0.0.1 localhost", *(f"{place.address} {place.name}" for place in self.places))
        (self.root / "conf" / "hosts").write_text("\n".join(lines) + "\n")
        (self.root / "conf" / "resolv.conf").write_text("options attempts:1 timeout:1\n")

    def tls(self, name: str) -> dict[str, str]:
        """A node's certificate, as configuration files have it."""
        directory = self.root / "tls"
        return {
            "ca": str(directory / "ca.pem"),
            "cert": str(directory / f"{name}.pem"),
            "key": str(directory / f"{name}.key"),
        }

    def _kind(self, kind: str) -> list[Place]:
        return [place for place in self.places if place.kind == kind]

    def _etcd(self, place: Place) -> Program:
        binary = self.shape.etcd_binary or shutil.which("etcd")
        assert binary is not None, "etcd is not in PATH; run `make setup`"
        tls = self.tls(place.name)
        beat, election = _ETCD_BEATS[self.shape.profile]
        peers = ",".join(f"{peer.name}=https://{peer.address}:{PEER_PORT}" for peer in self._kind("etcd"))
        client, peer = f"https://{place.address}:{CLIENT_PORT}", f"https://{place.address}:{PEER_PORT}"
        flags = {
            "name": place.name,
            "data-dir": str(self.disks[place.name] / "state"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": peers,
            "initial-cluster-token": CLUSTER,
            "heartbeat-interval": str(beat),
            "election-timeout": str(election),
            "pre-vote": "true",
            "logger": "zap",
            "log-level": "warn",
            "cert-file": tls["cert"],
            "key-file": tls["key"],
            "trusted-ca-file": tls["ca"],
            "client-cert-auth": "true",
            "peer-cert-file": tls["cert"],
            "peer-key-file": tls["key"],
            "peer-trusted-ca-file": tls["ca"],
            "peer-client-cert-auth": "true",
        }
        argv = (str(binary), *(f"--{name}={value}" for name, value in flags.items()))
        return Program("etcd", argv, self._env(place))

    def _supervisor(self, place: Place) -> Program:
        users = {OPERATOR: {"role": "admin"}} | {each: {"role": "submitter"} for each in self.shape.tenants}
        own: dict[str, object] = {"id": place.name, "users": users}
        if self.shape.promise_s:
            own["promise_for"] = f"{self.shape.promise_s}s"
            own["supervisors"] = [each.name for each in self._kind("sup")]
        if self.shape.fence:
            own["fence"] = {"devices": [self._power_switch()]}
        config = self._write_daemon(place, SUPERVISOR_PORT, own)
        return Program("supervisor", self._python("supervisor.main", config), self._env(place))

    def _power_switch(self) -> dict[str, object]:
        program = self.root / "conf" / power_switch.PROGRAM
        program.write_text(power_switch.script())
        program.chmod(0o755)
        options = {"machine": str(self.root / "machine.sock"), "plug": "{node}"}
        nodes = [place.name for place in self._kind("node")]
        return {"command": [str(program)], "options": options, "nodes": nodes}

    def _agent(self, place: Place) -> Program:
        disk = self.disks[place.name]
        own: dict[str, object] = {
            "node": place.name,
            "supervisors": self.supervisors(),
            "host": place.address,
            "checkpoint_parent": str(disk / "tasks"),
            "lock_dir": str(disk / "locks"),
            "spare_launchers": 1,
            "cpus": 4,
            "memory": "8GiB",
            "log_budget": self.shape.log_budget,
        }
        if self.shape.gpus:
            own["gpus"] = {"library": str(self.nvml(place.name) / LIBRARY)}
        if "-" in self.shape.task_user:
            own["firewall"] = True
        if place.docker:
            store = () if self.shape.task_user else (self.store,)
            mounts = (*self.shape.docker_mounts, *store)
            user = self.shape.task_user or "0:0"
            own |= {"runtime": "docker", "docker": docker.settings(disk, mounts, user)}
        else:
            own["task_user"] = self.shape.task_user or f"{os.geteuid()}:{os.getegid()}"
        config = self._write_daemon(place, AGENT_PORT, own)
        return Program("agent", self._python("agent.main", config), self._env(place))

    def _write_daemon(self, place: Place, port: int, own: dict[str, object]) -> Path:
        disk = self.disks[place.name]
        common: dict[str, object] = {
            "cluster": CLUSTER,
            "etcd": {"endpoints": self.endpoints(), "tls": self.tls(place.name)},
            "listen": f"{place.address}:{port}",
            "tls": self.tls(place.name),
            "profile": self.shape.profile,
            "stores": [f"{self.checkpoint_base}/{{owner}}"] if self.shape.tenants else ["file:", "hdfs:"],
            "audit": {"file": str(disk / AUDIT)},
            "state_dir": str(disk / "state"),
            "run_dir": str(disk / "run"),
        }
        if self.hadoop is not None:
            common["hadoop"] = {"conf_dir": str(self.hadoop.client), "user": HDFS_USER}
        path = self.root / "conf" / f"{place.name}.yaml"
        self._write(path, common | own)
        return path

    def _python(self, module: str, config: Path) -> tuple[str, ...]:
        return sys.executable, "-m", module, "--config", str(config)

    def _env(self, place: Place) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "JAVA_HOME") if name in os.environ}
        if self.shape.clocks:
            kept |= {"LD_PRELOAD": str(self.clock_library), "CHAOS_CLOCK": str(self.clock(place.name))}
        if not self.shape.task_user:
            # Nothing is armed in it until a fault or a test does so. Launchers of another user cannot look.
            kept[failpoints.VARIABLE] = str(self.root / "nodes" / place.name / "failpoints")
        return kept | {
            "PATH": SYSTEM_PATH,
            "HOME": "/root" if os.geteuid() == 0 else os.environ.get("HOME", "/"),
            "TMPDIR": str(self.disks[place.name] / "tmp"),
            "PYTHONPATH": str(REPOSITORY),
        }

    @staticmethod
    def _write(path: Path, body: dict[str, object]) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text(json.dumps(body, indent=2) + "\n")
