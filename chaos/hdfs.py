"""A real HDFS, by deploy/hdfs/hdfs.sh: daemons are killed, frozen and restarted one by one.

    def test_x(hdfs, monkeypatch) -> None:             # shared by the whole run: leave it as you found it
        monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf_dir))
        store = open_store(hdfs.fresh_uri(), ...)      # hdfs://127.0.0.1:PORT/test-1-ab12; does not exist yet

    def test_y(hdfs_of_my_own: HdfsCluster) -> None:   # a cluster of this test's own, to break
        hdfs_of_my_own.namenode(0).kill()              # also freeze() thaw() frozen() restart(); datanode(i)
        hdfs_of_my_own.namenode(0).restart()
        hdfs_of_my_own.wait_ready()                    # it takes writes again
        hdfs_of_my_own.safemode("enter")               # two seconds each: set_quota(path, bytes), failover()
        hdfs_of_my_own.flip_byte("/a/file")            # damages every replica on disk

Both fixtures are in tests/conftest.py. Starting takes about five seconds on a calm machine: tests with them
get `pytest.mark.timeout(180)`. `HdfsCluster(ha=True)`, a context manager too, has two NameNodes, of which
namenode(0) is active at first, and three JournalNodes. All calls block: async tests use `asyncio.to_thread`.
When this process ends, however it ends, the cluster ends too and its directory is removed.
"""

from __future__ import annotations

import getpass
import itertools
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from chaos.processes import Freezable, Guard

START_TIMEOUT_S = 150.0
READY_TIMEOUT_S = 60.0
_SCRIPT = Path(__file__).resolve().parents[1] / "deploy" / "hdfs" / "hdfs.sh"
_DATANODES = 3


@dataclass(frozen=True, slots=True)
class Daemon(Freezable):
    """One process of a cluster: `name` is `namenode0`, `datanode2`, `journalnode1` and so on."""

    cluster: HdfsCluster
    name: str

    @property
    def pid(self) -> int:
        """Its process id; fails when it does not run."""
        pid, started = self._recorded()
        assert _started(pid) == started, f"{self.name} does not run"
        return pid

    @property
    def alive(self) -> bool:
        """Whether it runs; also when it is frozen."""
        pid, started = self._recorded()
        return _started(pid) == started

    @property
    def log(self) -> str:
        """Its log so far, of all its lives."""
        return (self.cluster.directory / "log" / self.name).read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL, also when it is frozen; returns when it is dead. Its data stay."""
        os.kill(self.pid, signal.SIGKILL)
        _wait(lambda: not self.alive, 10, f"{self.name} does not die")

    def restart(self) -> None:
        """Kill it if it runs and start it on the same data and ports; `wait_ready` says when it serves."""
        if self.alive:
            self.kill()
        self.cluster.script("start", self.name)

    def _recorded(self) -> tuple[int, str]:
        pid, started = (self.cluster.directory / "run" / self.name).read_text().split()
        return int(pid), started


class HdfsCluster:
    """One NameNode (with `ha` two, and three JournalNodes) and three DataNodes; a context manager.

    Attributes:
        fast_start: Java compiles quickly instead of well: half the work at the start, for tests; a benchmark
            wants it off.
    """

    def __init__(self, *, ha: bool = False, fast_start: bool = True) -> None:
        self.ha = ha
        self.fast_start = fast_start
        self.directory = Path(tempfile.gettempdir()) / f"hdfs-{os.getpid()}-{secrets.token_hex(4)}"
        self._guard: Guard | None = None
        self._facts: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._last_active = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def uri(self) -> str:
        """`hdfs://127.0.0.1:PORT`, or `hdfs://ns1` with HA; no slash at its end."""
        return self._facts["uri"]

    @property
    def conf_dir(self) -> Path:
        """The value of HADOOP_CONF_DIR for clients of this cluster."""
        return self.directory / "client"

    def fresh_uri(self, name: str = "test") -> str:
        """The URI of a directory that does not exist and that nobody else asks for."""
        return f"{self.uri}/{name}-{next(self._numbers)}-{secrets.token_hex(2)}"

    def namenode(self, index: int = 0) -> Daemon:
        """With HA, `namenode(0)` is the active one until `failover`."""
        return Daemon(self, f"namenode{index}")

    def datanode(self, index: int) -> Daemon:
        """One of three."""
        return Daemon(self, f"datanode{index}")

    def journalnode(self, index: int) -> Daemon:
        """A JournalNode, by its index: three, only with HA."""
        return Daemon(self, f"journalnode{index}")

    @property
    def daemons(self) -> tuple[Daemon, ...]:
        """All daemons of the cluster."""
        return tuple(Daemon(self, path.name) for path in sorted((self.directory / "run").iterdir()))

    def start(self) -> None:
        """Start all of it and wait until it takes writes."""
        assert self._guard is None
        ha = ["--ha"] if self.ha else []
        self._guard = Guard(_SCRIPT, "run", self.directory, *ha, environment=self._env())
        lines = (self.directory / "cluster").read_text().splitlines()
        self._facts = dict(line.split("=", 1) for line in lines)

    def stop(self) -> None:
        """Kill everything and remove its directory; fails if that fails."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.end()
            assert not self.directory.exists()
        shutil.rmtree(self.directory, ignore_errors=True)

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when a NameNode is active, out of safe mode, and every DataNode that runs has joined it."""
        _wait(self._takes_writes, timeout_s, "HDFS does not take writes", self._last_words)

    def active(self) -> int | None:
        """The index of the NameNode that says it is active; None when none does."""
        for index in range(2 if self.ha else 1):
            if self._bean(self._http_port(index), "NameNode", "NameNodeStatus").get("State") == "active":
                return index
        return None

    def failover(self) -> int:
        """Make the other NameNode the active one, also when that one is dead or frozen; returns its index."""
        was = self.active()
        now = 1 - (was if was is not None else self._last_active)
        if was is not None:
            self.script("haadmin", "-failover", f"nn{was}", f"nn{now}")
        else:
            # Asks for a yes on standard input.
            self.script("haadmin", "-transitionToActive", "--forceactive", f"nn{now}", said="Y\n")
        self._last_active = now
        return now

    def safemode(self, what: Literal["enter", "leave"]) -> None:
        """Make every NameNode refuse writes, or take them again."""
        self.script("dfsadmin", "-safemode", what)

    def set_quota(self, path: str, limit: int | None) -> None:
        """Bound the bytes below the directory `path`, all replicas counted; None lifts the bound.

        HDFS counts a block that is being written as a whole one (128 MiB by default) times the replication.
        """
        if limit is None:
            self.script("dfsadmin", "-clrSpaceQuota", path)
        else:
            self.script("dfsadmin", "-setSpaceQuota", str(limit), path)

    def flip_byte(self, path: str, *, offset: int = 0, replicas: int | None = None) -> int:
        """Flip a byte of a closed file in its replicas on disk; returns how many were damaged.

        `offset` is inside the file's first block; `replicas` is how many at most, all when None.
        """
        block = self._first_block(path)
        found = sorted((self.directory / "data").glob(f"datanode*/current/*/current/finalized/**/{block}"))
        assert found, f"no DataNode holds {block} of {path}"
        for replica in found[:replicas]:
            with replica.open("r+b") as stream:
                stream.seek(offset)
                byte = stream.read(1)
                stream.seek(offset)
                stream.write(bytes([byte[0] ^ 0x01]))
        return len(found[:replicas])

    def holders(self, path: str) -> list[int]:
        """The DataNodes that hold a replica of a closed file's first block on disk."""
        block = self._first_block(path)
        found = (self.directory / "data").glob(f"datanode*/current/*/current/finalized/**/{block}")
        return sorted(
            int(replica.relative_to(self.directory / "data").parts[0].removeprefix("datanode"))
            for replica in found
        )

    def block_sizes(self, path: str) -> list[int]:
        """The sizes of a closed file's blocks, in bytes and in order."""
        return [int(size) for size in re.findall(r"blk_\d+_\d+ len=(\d+)", self._fsck(path))]

    def wait_replicated(self, path: str, replicas: int, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when the NameNode knows so many replicas of a closed file's first block."""
        deadline = time.monotonic() + timeout_s
        while f"Live_repl={replicas}" not in self._fsck(path):
            assert time.monotonic() < deadline, self._fsck(path)
            time.sleep(0.05)

    def script(self, verb: str, *arguments: str, said: str = "") -> str:
        """Run hdfs.sh on this cluster; what it printed. Its failure is the test's."""
        done = subprocess.run(
            [str(_SCRIPT), verb, str(self.directory), *arguments],
            input=said,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self._env(),
        )
        assert done.returncode == 0, f"hdfs.sh {verb} {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def _env(self) -> dict[str, str]:
        options = "-XX:TieredStopAtLevel=1" if self.fast_start else ""
        return os.environ | {
            "HDFS_START_TIMEOUT_S": str(round(START_TIMEOUT_S)),
            "HDFS_JAVA_OPTIONS": options,
        }

    def _http_port(self, namenode: int) -> int:
        return int(self._facts["base"]) + 2 * namenode + 1

    def _takes_writes(self) -> bool:
        index = self.active()
        if index is None:
            return False
        known = self._bean(self._http_port(index), "NameNode", "FSNamesystemState")
        joined = [self._joined(node) for node in range(_DATANODES) if self.datanode(node).alive]
        live = known.get("NumLiveDataNodes")
        return (
            known.get("FSState") == "Operational"
            and isinstance(live, int)
            and live >= len(joined)
            and all(joined)
        )

    def _joined(self, datanode: int) -> bool:
        """Whether the DataNode itself says that it is connected to every NameNode that runs."""
        port = int(self._facts["base"]) + 10 + 3 * datanode + 1
        said = self._bean(port, "DataNode", "DataNodeInfo").get("BPServiceActorInfo")
        if not isinstance(said, str):
            return False
        return any(actor.get("ActorState") == "RUNNING" for actor in json.loads(said))

    def _bean(self, port: int, service: str, name: str) -> dict[str, object]:
        url = f"http://127.0.0.1:{port}/jmx?qry=Hadoop:service={service},name={name}"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                beans: list[dict[str, object]] = json.load(answer)["beans"]
        except (OSError, ValueError):
            return {}
        return beans[0] if beans else {}

    def _first_block(self, path: str) -> str:
        said = self._fsck(path)
        match = re.search(r"blk_\d+", said)
        assert match, said
        return match.group()

    def _fsck(self, path: str) -> str:
        index = self.active()
        assert index is not None
        query = urllib.parse.urlencode({"ugi": getpass.getuser(), "path": path, "files": 1, "blocks": 1})
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self._http_port(index)}/fsck?{query}", timeout=10
        ) as answer:
            said: str = answer.read().decode()
        return said

    def _last_words(self) -> str:
        return "\n".join(
            f"{log.name}: {log.read_text(errors='replace')[-1500:]}"
            for log in sorted((self.directory / "log").iterdir())
        )


def _started(pid: int) -> str | None:
    """The start time of a live process; None for one that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def _wait(done: Callable[[], bool], timeout_s: float, what: str, detail: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, f"{what} after {timeout_s:.0f} s\n{detail()}"
        time.sleep(0.05)
