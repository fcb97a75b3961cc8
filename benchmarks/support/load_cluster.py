"""The processes of a run under load: three members of etcd, two supervisors, and generators of nodes.

All are children of this process. `shares` tells what each of them takes of a processor.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from supervisor.api.client import ControlClient
from supervisor.cli.local.keeper import member_environment
from supervisor.cli.local.member import ROOT
from supervisor.wire.rpc import Guard
from tests.support.etcd_server import EtcdCluster
from tests.support.ports import free_port

CLUSTER = "load"
SUPERVISORS = ("supervisor-0", "supervisor-1")
ETCD_COUNTERS = {
    "etcd_server_proposals_committed_total": "writes",
    "etcd_debugging_mvcc_events_total": "events to watchers",
    "etcd_network_client_grpc_sent_bytes_total": "bytes to clients",
    "grpc_server_msg_received_total": "messages from clients",
}
ETCD_GAUGES = {
    "etcd_mvcc_db_total_size_in_bytes": "size_mib",
    "etcd_debugging_mvcc_watcher_total": "watchers",
    "etcd_debugging_mvcc_slow_watcher_total": "slow_watchers",
}
TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20
ANSWER_S = 60.0
TOKEN = "load" * 16


@dataclass(frozen=True, slots=True)
class Look:
    """The resources that the processes have used so far, and the counters of etcd's members."""

    at_s: float
    cpu_s: Mapping[str, float]
    memory_mib: Mapping[str, int]
    etcd: Mapping[str, float]


@dataclass
class LoadCluster:
    """The cluster; `async with` starts and ends it. `nodes` nodes are spread over `generators` processes."""

    root: Path
    profile: str
    nodes: int
    generators: int
    cpus: float
    memory_bytes: int
    _etcd: EtcdCluster = field(init=False)
    _metrics: list[int] = field(init=False)
    _http: dict[str, int] = field(init=False)
    _supervisors: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _generators: list[asyncio.subprocess.Process] = field(default_factory=list)
    _asking: list[asyncio.Lock] = field(default_factory=list)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def __post_init__(self) -> None:
        self._etcd = EtcdCluster(3)
        self._metrics = [free_port() for _ in self._etcd.members]
        self._http = {name: free_port() for name in SUPERVISORS}
        for member, port in zip(self._etcd.members, self._metrics, strict=True):
            member.syncs = True
            member.flags = ("--listen-metrics-urls", f"http://127.0.0.1:{port}")

    @property
    def endpoints(self) -> list[str]:
        """The addresses of etcd's members."""
        return self._etcd.endpoints

    @property
    def client_config(self) -> Path:
        """The configuration of `supervisorctl`."""
        return self.root / "client.yaml"

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.enter_context(self._etcd)
            stack.push_async_callback(self._end)
            self._token.touch(mode=0o600)
            self._token.write_text(TOKEN)
            for name in SUPERVISORS:
                self.start_supervisor(name)
            config = {"cluster": CLUSTER, "supervisors": [self._socket(name) for name in SUPERVISORS]}
            self.client_config.write_text(json.dumps(config))
            # The processes started so far end here where the rest cannot be started.
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def client(self, deadline_s: float = 20.0) -> ControlClient:
        """A client of the leader."""
        return ControlClient([self._socket(name) for name in SUPERVISORS], Guard(), deadline_s=deadline_s)

    def start_supervisor(self, name: str) -> None:
        """Start a supervisor, as `supervisorctl local up` does."""
        config = {
            "cluster": CLUSTER,
            "id": name,
            "etcd": {"endpoints": self.endpoints},
            "profile": self.profile,
            "listen": self._socket(name),
            "state_dir": str(self.root / name),
            "run_dir": str(self.root / name),
            "stores": ["file:"],
            "http": {"listen": f"127.0.0.1:{self._http[name]}", "token_file": str(self._token)},
            "log": {"file": str(self.root / f"{name}.jsonl")},
        }
        (self.root / name).mkdir(exist_ok=True)
        file = self.root / f"{name}.yaml"
        file.write_text(json.dumps(config))
        member = f"{ROOT}/supervisor/cli/local/member.py"
        argv = (sys.executable, "-P", member, "supervisor", "--config", str(file))
        with (self.root / f"{name}.log").open("ab") as log:
            self._supervisors[name] = subprocess.Popen(
                argv,
                cwd=self.root,
                env=member_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def metrics(self, name: str) -> bytes:
        """A supervisor's metrics. It blocks."""
        asked = http.client.HTTPConnection("127.0.0.1", self._http[name], timeout=ANSWER_S)
        try:
            asked.request("GET", "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
            return asked.getresponse().read()
        finally:
            asked.close()

    @property
    def _token(self) -> Path:
        return self.root / "http.token"

    def kill_supervisor(self, name: str) -> None:
        """SIGKILL it."""
        supervisor = self._supervisors.pop(name)
        supervisor.kill()
        supervisor.wait()

    async def start_nodes(self) -> None:
        """Start the generators; their nodes come one after the other."""
        for first in range(self.generators):
            settings = {
                "endpoints": self.endpoints,
                "supervisors": [self._socket(name) for name in SUPERVISORS],
                "cluster": CLUSTER,
                "profile": self.profile,
                "cpus": self.cpus,
                "memory_bytes": self.memory_bytes,
                "first": first,
                "count": self.nodes,
                "stride": self.generators,
            }
            log = self._stack.enter_context((self.root / f"generator-{first}.log").open("ab"))
            started = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.support.generator", json.dumps(settings)),
                cwd=ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
            self._generators.append(started)
            self._asking.append(asyncio.Lock())

    async def ask(self, node: str, **request: str) -> dict[str, object]:
        """Ask the generator of a node."""
        place = int(node.removeprefix("node-")) % self.generators
        return await self._ask(place, {"node": node, **request})

    async def ask_all(self, **request: str) -> list[dict[str, object]]:
        """Ask every generator."""
        return list(await asyncio.gather(*(self._ask(place, request) for place in range(self.generators))))

    def look(self) -> Look:
        """Read the counters of all processes and of etcd."""
        pids = {name: each.pid for name, each in self._supervisors.items()}
        pids |= {f"etcd-{index}": member.pid for index, member in enumerate(self._etcd.members)}
        pids |= {f"generator-{index}": each.pid for index, each in enumerate(self._generators)}
        pids["observer"] = os.getpid()
        used = {name: _used(pid) for name, pid in pids.items()}
        return Look(
            time.monotonic(),
            {name: each[0] for name, each in used.items()},
            {name: each[1] for name, each in used.items()},
            self._counters(),
        )

    def _counters(self) -> dict[str, float]:
        """The counters of etcd, summed over the members; of its size the largest."""
        found: dict[str, float] = {}
        for port in self._metrics:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                text = answer.read().decode()
            for line in text.splitlines():
                name, _, value = line.rpartition(" ")
                known = ETCD_COUNTERS.get(name.partition("{")[0]) or ETCD_GAUGES.get(name)
                if known == "size_mib":
                    found[known] = max(found.get(known, 0.0), float(value) / MIB)
                elif known == "writes":
                    found[known] = max(found.get(known, 0.0), float(value))
                elif known is not None:
                    found[known] = found.get(known, 0.0) + float(value)
        return found

    async def _ask(self, place: int, request: dict[str, str]) -> dict[str, object]:
        process = self._generators[place]
        assert process.stdin is not None
        assert process.stdout is not None
        async with self._asking[place], asyncio.timeout(ANSWER_S):
            process.stdin.write(json.dumps(request).encode() + b"\n")
            answer = await process.stdout.readline()
        found: dict[str, object] = json.loads(answer or b'{"error": "the generator has ended"}')
        return found

    async def _end(self) -> None:
        for each in self._generators:
            if each.returncode is None:
                each.kill()
                await each.wait()
        for name in list(self._supervisors):
            self.kill_supervisor(name)

    def _socket(self, name: str) -> str:
        return f"unix:{self.root}/{name}.sock"


def between(before: Look, after: Look) -> dict[str, object]:
    """The shares of one processor that each process had between two looks, its memory, and etcd's rates."""
    seconds = after.at_s - before.at_s
    shares = {
        name: {
            "percent": round(_since(before.cpu_s[name], used) / seconds * 100, 1),
            "memory_mib": after.memory_mib[name],
        }
        for name, used in after.cpu_s.items()
        if name in before.cpu_s
    }
    rates = {
        f"{name} per s": round((after.etcd.get(name, 0) - before.etcd.get(name, 0)) / seconds, 1)
        for name in ETCD_COUNTERS.values()
    }
    gauges = {name: round(after.etcd.get(name, 0), 1) for name in ETCD_GAUGES.values()}
    return {"seconds": round(seconds, 1), "processes": shares, "etcd": {**rates, **gauges}}


def _since(before_s: float, now_s: float) -> float:
    """The use between two readings; a process that was started again has used less than the one before."""
    return now_s - before_s if now_s >= before_s else now_s


def _used(pid: int) -> tuple[float, int]:
    """Processor seconds, and MiB of memory."""
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / TICKS, int(values[21]) * os.sysconf("SC_PAGE_SIZE") // MIB
