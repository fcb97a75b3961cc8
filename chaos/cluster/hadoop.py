"""HDFS on nodes of its own: a NameNode and three DataNodes; with HA two, and three JournalNodes."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from chaos.cluster.program import REPOSITORY, Program
from chaos.cluster.shape import Place
from chaos.machine import kernel

NAMENODE, DATANODE, JOURNALNODE = "namenode", "datanode", "journalnode"
RPC, HTTP, JOURNAL_RPC, JOURNAL_HTTP = 8020, 9870, 8485, 8480
UP_S = 180.0
BLOCK_BYTES = 16 << 20
_COMMAND_S = 60.0
_DEPLOY = REPOSITORY / "deploy" / "hdfs"
_CLASSES = {
    NAMENODE: ("hdfs.server.namenode.NameNode", "256m"),
    DATANODE: ("hdfs.server.datanode.DataNode", "192m"),
    JOURNALNODE: ("hdfs.qjournal.server.JournalNode", "96m"),
}
_SCRATCH = "tmp"
_TOOLS = {"dfs": "fs.FsShell", "dfsadmin": "hdfs.tools.DFSAdmin", "haadmin": "hdfs.tools.DFSHAAdmin"}


@dataclass(frozen=True, slots=True)
class Hadoop:
    """One HDFS. Daemons are `namenode`, `datanode`, `journalnode` of the nodes hdfs-0, hdfs-1, ...

    Attributes:
        root: of the cluster.
        places: its nodes.
        disks: where each has its own disk, as its programs see it.
        ha: two NameNodes; hdfs-0 has the active one at first, hdfs-1 the other.
        at_operator: puts a command where it runs on the operator's machine.
    """

    root: Path
    places: tuple[Place, ...]
    disks: Mapping[str, Path]
    ha: bool
    network: Callable[[], int | None]
    at_operator: Callable[..., list[str]]

    @property
    def uri(self) -> str:
        """`hdfs://ADDRESS:PORT`, or `hdfs://ns1` with HA; no slash at its end."""
        return "hdfs://ns1" if self.ha else f"hdfs://{self.places[0].address}:{RPC}"

    @property
    def client(self) -> Path:
        """HADOOP_CONF_DIR of its clients."""
        return self.root / "conf" / "hadoop-client"

    def roles(self, place: Place) -> tuple[str, ...]:
        """The daemons of a node."""
        index = self.places.index(place)
        if not self.ha:
            return (NAMENODE,) if index == 0 else (DATANODE,)
        return (JOURNALNODE, DATANODE, *((NAMENODE,) if index < 2 else ()))

    def namenodes(self) -> list[str]:
        """Their nodes."""
        return [place.name for place in self.places if NAMENODE in self.roles(place)]

    def write(self) -> None:
        """Configuration of every node, and of clients."""
        common = {**self._common(), "dfs.blocksize": str(BLOCK_BYTES)}
        server = _properties("server.properties")
        for place in self.places:
            own = {
                "hadoop.tmp.dir": str(self.disks[place.name] / _SCRATCH),
                "dfs.namenode.name.dir": f"file://{self._data(place, NAMENODE)}",
                "dfs.datanode.data.dir": f"file://{self._data(place, DATANODE)}",
                "dfs.datanode.hostname": place.address,
                "dfs.datanode.address": f"{place.address}:9866",
                "dfs.datanode.http.address": f"{place.address}:9864",
                "dfs.datanode.ipc.address": f"{place.address}:9867",
            }
            _write(self._conf(place), server | common | own | self._of_ha(place), common)
        _write(self.client, _properties("client.properties") | common, common)

    def programs(self, place: Place, env: Mapping[str, str]) -> list[Program]:
        """The programs of a node."""
        return [Program(role, self._daemon(place, role), dict(env)) for role in self.roles(place)]

    def _daemon(self, place: Place, role: str) -> tuple[str, ...]:
        name, heap = _CLASSES[role]
        return (*self._java(self._conf(place), heap), _class(name))

    def format(self, inside: Callable[..., list[str]]) -> None:
        """Make the first NameNode's directory; `inside` puts a command on its node. JournalNodes must run."""
        place = self.places[0]
        _run(inside(*self._daemon(place, NAMENODE), "-format", "-force", "-nonInteractive"))

    def copy_name(self, disks: Mapping[str, Path]) -> None:
        """The second NameNode begins with what the first one has; `disks` as this process sees them."""
        first, second = (disks[name] / "state" / NAMENODE for name in self.namenodes())
        shutil.copytree(first, second)

    def tool(self, name: str, *words: str, said: str = "") -> str:
        """Run `hdfs NAME WORDS` (dfs, dfsadmin, haadmin) on the operator's machine; what it printed.

        Raises:
            AssertionError: it failed; the text is what it said.
        """
        command = [*self._java(self.client, "256m"), _class(_TOOLS[name]), *words]
        return _run(self.at_operator(*command), said)

    def active(self) -> str | None:
        """The node whose NameNode says that it is active; None when none does."""
        for name in self.namenodes():
            if self._bean(name, "NameNode", "NameNodeStatus").get("State") == "active":
                return name
        return None

    def activate(self, node: str, within_s: float = UP_S) -> None:
        """Make this NameNode the active one, also when the other is dead or frozen."""
        words = ("-transitionToActive", "--forceactive", f"nn{self.namenodes().index(node)}")
        deadline = time.monotonic() + within_s
        while True:
            try:
                self.tool("haadmin", *words, said="Y\n")
            except AssertionError:
                # One that is not up yet refuses.
                if time.monotonic() > deadline:
                    raise
                continue
            return

    def takes_writes(self, datanodes: int) -> bool:
        """Whether the active NameNode is out of safe mode and knows so many DataNodes."""
        active = self.active()
        if active is None:
            return False
        known = self._bean(active, "NameNode", "FSNamesystemState")
        live = known.get("NumLiveDataNodes")
        return known.get("FSState") == "Operational" and isinstance(live, int) and live >= datanodes

    def wait_ready(self, datanodes: int = 3, within_s: float = UP_S) -> None:
        """Return when it takes writes."""
        deadline = time.monotonic() + within_s
        while not self.takes_writes(datanodes):
            assert time.monotonic() < deadline, f"HDFS does not take writes after {within_s:g} s"
            time.sleep(0.1)

    def _bean(self, node: str, service: str, name: str) -> Mapping[str, object]:
        address = next(place.address for place in self.places if place.name == node)
        url = f"http://{address}:{HTTP}/jmx?qry=Hadoop:service={service},name={name}"
        try:
            with kernel.network_of(self.network()), urllib.request.urlopen(url, timeout=2) as answer:
                beans: list[dict[str, object]] = json.load(answer)["beans"]
        except (OSError, ValueError):
            return {}
        return beans[0] if beans else {}

    def _common(self) -> dict[str, str]:
        if not self.ha:
            address = self.places[0].address
            return {"fs.defaultFS": self.uri, "dfs.namenode.http-address": f"{address}:{HTTP}"}
        found = {
            "fs.defaultFS": self.uri,
            "dfs.nameservices": "ns1",
            "dfs.ha.namenodes.ns1": "nn0,nn1",
            "dfs.client.failover.proxy.provider.ns1": (
                "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
            ),
            "dfs.ha.fencing.methods": "shell(/bin/true)",
        }
        for index, place in enumerate(self.places[:2]):
            found[f"dfs.namenode.rpc-address.ns1.nn{index}"] = f"{place.address}:{RPC}"
            found[f"dfs.namenode.http-address.ns1.nn{index}"] = f"{place.address}:{HTTP}"
        return found

    def _of_ha(self, place: Place) -> dict[str, str]:
        if not self.ha:
            return {}
        journals = ";".join(f"{each.address}:{JOURNAL_RPC}" for each in self.places)
        own = {
            "dfs.namenode.shared.edits.dir": f"qjournal://{journals}/ns1",
            "dfs.journalnode.edits.dir": str(self._data(place, JOURNALNODE)),
            "dfs.journalnode.rpc-address": f"{place.address}:{JOURNAL_RPC}",
            "dfs.journalnode.http-address": f"{place.address}:{JOURNAL_HTTP}",
            "dfs.ha.tail-edits.period": "1s",
            "dfs.ha.log-roll.period": "5s",
        }
        if NAMENODE in self.roles(place):
            own["dfs.ha.namenode.id"] = f"nn{self.places.index(place)}"
        return own

    def _data(self, place: Place, role: str) -> Path:
        return self.disks[place.name] / "state" / role

    def _conf(self, place: Place) -> Path:
        return self.root / "conf" / f"hadoop-{place.name}"

    def _java(self, conf: Path, heap: str) -> tuple[str, ...]:
        java, jars = _said(_DEPLOY.parent / "get-java.sh"), _said(_DEPLOY / "get-jars.sh")
        # The last one as in deploy/hdfs: without it a NameNode on Java 17 has no WebHDFS.
        opens = "--add-opens=java.base/java.lang=ALL-UNNAMED"
        options = ("-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1", opens)
        log = f"-Dlog4j.configuration=file:{_DEPLOY}/conf/log4j.properties"
        place = ("-cp", f"{conf}:{jars}/web:{jars}/lib/*")
        return java, f"-Xmx{heap}", *options, "-Djava.net.preferIPv4Stack=true", log, *place


def _class(name: str) -> str:
    return f"org.apache.hadoop.{name}"


def _said(script: Path) -> str:
    return _run([str(script)]).strip()


def _run(argv: list[str], said: str = "") -> str:
    done = subprocess.run(
        argv, input=said, capture_output=True, text=True, timeout=_COMMAND_S, check=False, cwd="/"
    )
    assert done.returncode == 0, f"{' '.join(argv[-6:])}: {done.stdout[-500:]}{done.stderr[-1500:]}"
    return done.stdout


def _properties(name: str) -> dict[str, str]:
    """The properties in deploy/hdfs that do not depend on the cluster's addresses or directories."""
    lines = (_DEPLOY / "conf" / name).read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {key: value for key, value in found.items() if "@" not in value and "${" not in value}


def _write(directory: Path, site: Mapping[str, str], common: Mapping[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    core = {key: value for key, value in common.items() if key.startswith("fs.")}
    for name, body in (("hdfs-site.xml", site), ("core-site.xml", core)):
        lines = (
            f"<property><name>{key}</name><value>{value}</value></property>" for key, value in body.items()
        )
        (directory / name).write_text("\n".join(["<configuration>", *lines, "</configuration>", ""]))
