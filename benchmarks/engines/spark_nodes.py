"""A standalone Spark of three machines, each a network of its own with an address of its own.

TensorFlowOnSpark names a task by the address of its machine, so that workers which share one address hide
what the loss of a machine means.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos.processes import DIES_WITH_US, free_ports
from examples.demo import kernel

NODES = ("w1", "w2", "w3")
CORES = 2
MEMORY = "4g"
START_S = 90.0


class SparkNodes:
    """A context manager. It needs root. `packages` is what deploy/get-spark.sh has fetched; `environment`
    is what all processes get besides.

    `kill(NODE)` ends a worker with all that it has started; `start(NODE)` brings it back.
    """

    def __init__(self, packages: Path, directory: Path, environment: Mapping[str, str]) -> None:
        self.packages = packages
        self.home = packages / "pyspark"
        self.directory = directory
        number = os.getpid() % 250
        self.host = f"10.213.{number}.1"
        self._addresses = {node: f"10.213.{number}.{10 + index}" for index, node in enumerate(NODES)}
        self._bridge = f"tfcmp{number}"
        self._network = ExitStack()
        self._port = 0
        self._environment = {
            **os.environ,
            **environment,
            "SPARK_HOME": str(self.home),
            "SPARK_SCALA_VERSION": "2.12",
        }
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """For `--master`."""
        return f"spark://{self.host}:{self._port}"

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.callback(self.close)
            self._connect()
            self._port, web = free_ports(2, self.host)
            page = ("--webui-port", str(web))
            self._start("master", (), "master.Master", self.host, "--port", str(self._port), *page)
            self._wait("master", "I have been elected leader")
            for node in NODES:
                self.start(node)
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, node: str) -> None:
        """Start a worker, and wait until the master knows it."""
        sizes = ("--cores", str(CORES), "--memory", MEMORY, "--webui-port", "0")
        work = ("--work-dir", str(self.directory / f"{node}.work"))
        inside = ("ip", "netns", "exec", self._name(node))
        self._start(node, inside, "worker.Worker", self._addresses[node], *sizes, *work, self.url)
        self._wait(node, "Successfully registered with master")

    def kill(self, node: str) -> None:
        """SIGKILL a worker, its executors and their Python processes, as when a machine fails."""
        daemon = self._daemons.pop(node)
        kill_family(daemon.pid)
        daemon.wait()

    def node_of(self, pid: int) -> str:
        """The worker that has started this process."""
        for node in NODES:
            daemon = self._daemons.get(node)
            if daemon is not None and any(ref.pid == pid for ref in kernel.family(daemon.pid)):
                return node
        raise LookupError(f"no worker has started process {pid}")

    def close(self) -> None:
        """End all of it."""
        for name in [*self._daemons]:
            self.kill(name)
        self._network.close()

    def _connect(self) -> None:
        self._network.callback(_ip, "link", "delete", self._bridge)
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("address", "add", f"{self.host}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for index, node in enumerate(NODES):
            name, link = self._name(node), f"{self._bridge}.{index}"
            _ip("netns", "add", name)
            self._network.callback(_ip, "netns", "delete", name)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", link, "master", self._bridge, "up")
            _ip("-n", name, "address", "add", f"{self._addresses[node]}/24", "dev", "eth0")
            for each in ("eth0", "lo"):
                _ip("-n", name, "link", "set", each, "up")
            _ip("-n", name, "route", "add", "default", "via", self.host)

    def _name(self, node: str) -> str:
        return f"{self._bridge}-{node}"

    def _start(self, name: str, inside: tuple[str, ...], of: str, host: str, *arguments: str) -> None:
        self._log(name).unlink(missing_ok=True)
        with self._log(name).open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [
                    *(*DIES_WITH_US, *inside),
                    *("java", "-Xmx256m", "-cp", f"{self.home}/jars/*", f"org.apache.spark.deploy.{of}"),
                    *("--host", host, *arguments),
                ],
                env={**self._environment, "SPARK_LOCAL_IP": host},
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait(self, name: str, line: str) -> None:
        deadline = time.monotonic() + START_S
        while line not in self._log(name).read_text(errors="replace"):
            if self._daemons[name].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Spark's {name} has not started; see {self._log(name)}")
            time.sleep(0.1)

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"


def kill_family(root: int) -> None:
    """SIGKILL a process and all its descendants."""
    for ref in kernel.family(root):
        with suppress(ProcessLookupError):
            os.kill(ref.pid, signal.SIGKILL)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
