"""`Cluster`: started in seconds, broken at will, gone without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos.cluster import docker
from chaos.cluster.certificates import Authority
from chaos.cluster.control import wait_for
from chaos.cluster.enter import SYSTEM_PATH, entering
from chaos.cluster.etcd_reader import EtcdReader
from chaos.cluster.hadoop import NAMENODE, Hadoop
from chaos.cluster.network import Network
from chaos.cluster.node import BOOT_S, Daemon, Node
from chaos.cluster.program import REPOSITORY
from chaos.cluster.programs import CLUSTER, Programs
from chaos.cluster.shape import IDENTITIES, OPERATOR, Place, Shape, operator_address, places
from chaos.machine import kernel
from chaos.machine.main import DISK
from chaos.nvml import FakeNvml, build, compile_library

UP_S = 120.0
DOWN_S = 90.0
PREFIX = f"/tfsup/{CLUSTER}/"
_NAME = "tfchaos"
_WALL_CLOCK = REPOSITORY / "chaos" / "wall_clock.c"


class CommandFailed(Exception):
    """`supervisorctl` said no.

    Attributes:
        code: its exit code.
        said: its standard error.
    """

    def __init__(self, words: tuple[str, ...], code: int, said: str) -> None:
        super().__init__(f"supervisorctl {' '.join(words)}: exit code {code}: {said}")
        self.code = code
        self.said = said


class Cluster:
    """A cluster of nodes; up inside a `with` block. Use it from one thread.

    Attributes:
        root: its files: configuration, certificates, logs (`nodes/NAME/DAEMON.log`), `store`.
        nodes: by name, etcd-0 first.
        hadoop: its HDFS; None without one.
        gpus: of each node with agents, as scripted; empty when `Shape.gpus` is 0.
        network: who reaches whom.
        missing: what cannot be injected here, with the reason; empty as root. Keys: network (cut, loss,
            delay, bandwidth), boot (a new boot id), disk (a full or read-only disk), clock.
    """

    def __init__(self, root: Path, shape: Shape | None = None, *, isolated: bool | None = None) -> None:
        self.root = Path(os.path.realpath(root))
        self.shape = shape or Shape()
        why_not = cannot_isolate()
        assert not (isolated and why_not), why_not
        self.isolated = not why_not if isolated is None else isolated
        self.missing = {} if self.isolated else _missing(why_not or "it was not asked for")
        if not self.shape.clocks:
            self.missing["clock"] = "this cluster was started without `Shape.clocks`"
        self.nodes: dict[str, Node] = {}
        self.hadoop: Hadoop | None = None
        self.gpus: dict[str, FakeNvml] = {}
        self._guard: subprocess.Popen[str] | None = None
        self._machine = 0
        self._name = f"{_NAME}-{os.getpid()}-{secrets.token_hex(3)}"
        self._cgroup: Path | None = None

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def store(self) -> Path:
        """The store of jobs without a checkpoint URI."""
        return self.programs.store

    @property
    def agents(self) -> list[Node]:
        """The nodes that run tasks."""
        return [node for node in self.nodes.values() if node.kind == "node"]

    @property
    def docker_agents(self) -> list[Node]:
        """The nodes whose tasks are containers."""
        return [node for node in self.agents if docker.DAEMON in node.daemons]

    def docker(self, node: str, *words: str) -> str:
        """Run `docker WORDS` on the dockerd of a node; what it printed. AssertionError: it failed."""
        return docker.docker(self.nodes[node], self.programs.disks[node], *words)

    def up(self, deadline_s: float = UP_S) -> None:
        """Start everything; returns when a supervisor leads and every agent has registered."""
        self._make()
        self.network.open()
        for node in self.nodes.values():
            if node.kind == "hdfs":
                node.switch_on()
            else:
                node.power_on()
        if self.hadoop is not None:
            self._start_hadoop(self.hadoop)
        for node in self.docker_agents:
            docker.begin(node, self.programs.disks[node.name])
        deadline = time.monotonic() + deadline_s
        while missing := self._not_ready():
            assert time.monotonic() < deadline, f"{missing} after {deadline_s:g} s\n{self._last_words()}"
            time.sleep(0.02)

    def down(self) -> None:
        """End everything and remove it, but for the files in `root`."""
        guard, self._guard = self._guard, None
        if guard is not None:
            _, said = guard.communicate(timeout=DOWN_S)
            assert guard.returncode == 0, said

    def renew_certificates(self) -> None:
        """New keys and certificates for all nodes and the operator, in place of those that are there."""
        for name, addresses, identity in self._holders:
            self._authority.issue(name, addresses, identity)

    def ctl(self, *words: str, timeout_s: float = 60.0) -> object:
        """Run `supervisorctl WORDS --output json` on the operator's machine; what it printed, as JSON.

        Raises:
            CommandFailed: its exit code is not 0.
        """
        done = subprocess.run(
            self.supervisorctl(*words, "--output", "json"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise CommandFailed(words, done.returncode, done.stderr.strip())
        try:
            return json.loads(done.stdout)
        except ValueError:
            return [json.loads(line) for line in done.stdout.splitlines() if line]

    def supervisorctl(self, *words: str) -> list[str]:
        """The command that does this on the operator's machine."""
        program = ("-m", "supervisor.cli.main", "--config", str(self.programs.client))
        return self.at_operator(sys.executable, *program, *words)

    def at_operator(self, *argv: str) -> list[str]:
        """A command that runs `argv` on the operator's machine."""
        if not self.isolated:
            return list(argv)
        return [*entering(self._machine, "net"), *argv]

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Sockets that this thread makes meanwhile are on the operator's machine."""
        with kernel.network_of(self._network):
            yield

    @property
    def _network(self) -> int | None:
        """A process that is in the network of the operator's machine; None when we are."""
        return self._machine if self.isolated else None

    def etcd(self, *, timeout_s: float = 1.0) -> EtcdReader:
        """A reader of etcd from the operator's machine."""
        tls = self.programs.tls(OPERATOR)
        ca, cert, key = (Path(tls[name]) for name in ("ca", "cert", "key"))
        return EtcdReader(tuple(self.programs.endpoints()), ca, cert, key, self._network, timeout_s)

    def leader(self) -> str:
        """The node whose supervisor leads, as etcd has it; empty when none does.

        Raises:
            OSError: etcd does not answer.
        """
        record = self.etcd().read(f"{PREFIX}leader").get(f"{PREFIX}leader")
        return str(json.loads(record)["supervisor"]) if record else ""

    def _make(self) -> None:
        assert self._guard is None
        sweep()
        shape, isolated = self.shape, self.isolated
        where = places(shape, isolated=isolated)
        for name in ("nodes", "store", "conf"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        homes = {place.name: self.root / "nodes" / place.name for place in where}
        disks = {name: Path(DISK) if isolated else home / "disk" for name, home in homes.items()}
        self.hadoop = self._hadoop(where, disks)
        self.programs = Programs(self.root, shape, where, disks, self.hadoop, self._name)
        self._authority = Authority(self.root / "tls")
        addresses = {place.name: place.address for place in where}
        addresses[OPERATOR] = operator_address(isolated=isolated)
        callers = [place for place in where if place.kind in IDENTITIES]
        identities = {place.name: f"{IDENTITIES[place.kind]}:{place.name}" for place in callers}
        identities[OPERATOR] = f"user:{OPERATOR}"
        # On the loopback whoever connects is 127.0.0.1, whose certificate it then has to be.
        also = [] if isolated else ["127.0.0.1"]
        self._holders = [
            (name, [address, *also], identities.get(name, "")) for name, address in addresses.items()
        ]
        self._holders += [(each, [addresses[OPERATOR]], f"user:{each}") for each in shape.tenants]
        self.renew_certificates()
        self.gpus = self._gpus(where)
        if shape.clocks:
            compile_library(_WALL_CLOCK, self.programs.clock_library)
        self.programs.write_clients()
        self.programs.write_names()
        self._start_machine()
        self.nodes = {}
        seen = Path(f"/proc/{self._machine}/root") if isolated else Path("/")
        self.network = Network(self.root, addresses, self.nodes, self._network)
        for place in where:
            home = homes[place.name]
            cgroup = self._cgroup / place.name if self._cgroup is not None else None
            root = seen / (home / "disk").relative_to("/")
            node = Node(place, home, root, cgroup, shape)
            node.daemons = {program.name: Daemon(node, program) for program in self.programs.of(place)}
            node.attach, node.detach = self.network.attach, self.network.detach
            self.nodes[place.name] = node

    def _gpus(self, where: tuple[Place, ...]) -> dict[str, FakeNvml]:
        count = self.shape.gpus
        nodes = [place.name for place in where if place.kind == "node" and count]
        if not nodes:
            return {}
        built = build(self.root / "conf")
        for name in nodes:
            self.programs.nvml(name).mkdir(parents=True)
        return {
            name: FakeNvml(self.programs.nvml(name), count, first=index * count, built=built)
            for index, name in enumerate(nodes)
        }

    def _hadoop(self, where: tuple[Place, ...], disks: Mapping[str, Path]) -> Hadoop | None:
        nodes = tuple(place for place in where if place.kind == "hdfs")
        if not nodes:
            return None
        ha = self.shape.hdfs_ha
        found = Hadoop(self.root, nodes, disks, ha, lambda: self._network, self.at_operator)
        found.write()
        return found

    def _start_hadoop(self, hadoop: Hadoop) -> None:
        """A NameNode starts on a directory that is there, and the second on a copy of the first one's."""
        nodes = [self.nodes[place.name] for place in hadoop.places]
        others = [daemon for node in nodes for daemon in node.daemons.values() if daemon.name != NAMENODE]
        for daemon in others:
            daemon.start()
        hadoop.format(nodes[0].inside)
        if hadoop.ha:
            hadoop.copy_name({node.name: node.root for node in nodes})
        for name in hadoop.namenodes():
            self.nodes[name].daemons[NAMENODE].start()
        if hadoop.ha:
            hadoop.activate(hadoop.namenodes()[0])
        hadoop.wait_ready()

    def _start_machine(self) -> None:
        top = kernel.cgroup_root()
        if self.isolated:
            assert top is not None
            self._cgroup = top / self._name
            self._cgroup.mkdir()
        module = ("-S", "-m", "chaos.machine.main", str(self.root), str(self._cgroup or "-"))
        self._guard = subprocess.Popen(
            [sys.executable, *module],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            start_new_session=True,
        )
        self._machine = wait_for(self.root / "machine.sock", BOOT_S, self._guard.poll)

    def _not_ready(self) -> str:
        """The keys that etcd does not have yet, or its failure to answer; empty when all are there."""
        try:
            known = self.etcd(timeout_s=0.5).read(PREFIX)
        except OSError as error:
            return f"etcd does not answer: {error}"
        wanted = {f"{PREFIX}nodes/{node.name}" for node in self.agents}
        if self.shape.supervisors:
            wanted.add(f"{PREFIX}leader")
        late = ", ".join(sorted(key.removeprefix(PREFIX) for key in wanted - known.keys()))
        return f"etcd does not have {late}" if late else ""

    def _last_words(self) -> str:
        logs = sorted((self.root / "nodes").glob("*/*.log"))
        return "\n".join(f"{log}:\n{log.read_text(errors='replace')[-800:]}" for log in logs)


@contextlib.contextmanager
def temporary(shape: Shape | None = None, *, isolated: bool | None = None) -> Iterator[Cluster]:
    """A cluster in a directory of its own, which is removed at the end."""
    root = Path(tempfile.mkdtemp(prefix=f"{_NAME}-{os.getpid()}-"))
    try:
        with Cluster(root, shape, isolated=isolated) as cluster:
            yield cluster
    finally:
        shutil.rmtree(root, ignore_errors=True)


def sweep() -> None:
    """Remove what clusters have left whose owner, and whose guard, were killed at once."""
    for top in (kernel.cgroup_root(), Path(tempfile.gettempdir())):
        for entry in top.glob(f"{_NAME}-*-*") if top is not None else ():
            owner = entry.name.split("-")[1]
            if not owner.isdigit() or Path(f"/proc/{owner}").exists():
                continue
            if entry.is_relative_to(Path(tempfile.gettempdir())):
                shutil.rmtree(entry, ignore_errors=True)
                continue
            for directory, _, _ in os.walk(entry, topdown=False):
                with contextlib.suppress(OSError):
                    Path(directory).rmdir()


def cannot_isolate() -> str:
    """Why nodes cannot have namespaces of their own here; empty when they can."""
    if os.geteuid() != 0:
        return "only root may make namespaces"
    if kernel.cgroup_root() is None:
        return "there is no version 2 of cgroups"
    for program in ("ip", "iptables", "nsenter"):
        if shutil.which(program, path=SYSTEM_PATH) is None:
            return f"{program} is missing; run deploy/get-chaos.sh"
    return ""


def _missing(reason: str) -> dict[str, str]:
    return dict.fromkeys(("network", "boot", "disk"), reason)
