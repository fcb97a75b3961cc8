"""A standalone Spark of the tests' own on this machine: a master, and a few workers with one executor each.

    with SparkCluster(directory) as spark:
        spark.master                     # spark://127.0.0.1:PORT
        spark.environment                # for a driver
        spark.kill("w1")                 # SIGKILL of a worker's daemon; start("w1") brings it back

Spark is what deploy/get-spark.sh has fetched. Executors run the Python that runs this.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[1]
WORKERS = ("w1", "w2", "w3")
START_S = 120.0


def home() -> Path:
    """The directory of the Spark that deploy/get-spark.sh fetches, which need not be there."""
    lock = (ROOT / "deploy/spark/requirements.lock").read_text()
    found = re.search(r"^pyspark==(\S+)", lock, re.MULTILINE)
    assert found is not None
    return ROOT / "var" / f"spark-{found[1]}"


class SparkCluster:
    """A small Spark; a context manager. `directory` need not exist."""

    def __init__(self, directory: Path, workers: tuple[str, ...] = WORKERS, *, cores: int = 1) -> None:
        self.directory = directory
        self.workers = workers
        self._cores = cores
        self._port, self._page = _free_ports(2)
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def master(self) -> str:
        """The address for drivers."""
        return f"spark://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of daemons and drivers. Executors may be decommissioned."""
        return {
            **os.environ,
            "PYTHONPATH": f"{home()}:{ROOT}",
            "SPARK_HOME": str(home() / "pyspark"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -Dspark.decommission.enabled=true",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_NO_DAEMONIZE": "1",
        }

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True)
        try:
            self.start("master")
            for worker in self.workers:
                self.start(worker)
            self._wait(lambda: self.alive() == len(self.workers), "all workers are there")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, name: str) -> None:
        """Start the master, or a worker."""
        with (self.directory / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self._argv(name)],
                env=self.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """SIGKILL a daemon."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def pid(self, name: str) -> int:
        """The process of a daemon."""
        return self._daemons[name].pid

    def alive(self) -> int:
        """How many workers the master knows; 0 while it does not answer."""
        return sum(each["state"] == "ALIVE" for each in self.told().get("workers", ()))

    def told(self) -> dict[str, list[dict[str, str]]]:
        """The master's page as data; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=10) as answer:
                found = json.load(answer)
        except OSError:
            return {}
        assert isinstance(found, dict)
        return found

    def close(self) -> None:
        """End all daemons, the workers first. They end their executors."""
        names = sorted(self._daemons, key=lambda each: each == "master")
        for each in names:
            self._daemons[each].terminate()
        for each in names:
            daemon = self._daemons.pop(each)
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _argv(self, name: str) -> list[str]:
        run = [str(home() / "pyspark" / "bin" / "spark-class")]
        here = ["--host", "127.0.0.1"]
        if name == "master":
            ports = ["--port", str(self._port), "--webui-port", str(self._page)]
            return [*run, "org.apache.spark.deploy.master.Master", *here, *ports]
        holds = ["--cores", str(self._cores), "--memory", "1g", "--work-dir", str(self.directory / name)]
        return [
            *run,
            "org.apache.spark.deploy.worker.Worker",
            *here,
            "--webui-port",
            "0",
            *holds,
            self.master,
        ]

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            ended = [name for name, each in self._daemons.items() if each.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "".join((self.directory / f"{name}.log").read_text()[-800:] for name in ended)
                raise RuntimeError(f"Spark: not so far: {what}; ended: {ended}; {logs}")
            time.sleep(0.2)


def _free_ports(many: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(many)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
