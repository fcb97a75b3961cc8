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
import sys
import urllib.request
from pathlib import Path

from chaos.processes import Daemons, free_ports

ROOT = Path(__file__).resolve().parents[1]
WORKERS = ("w1", "w2", "w3")


def home() -> Path:
    """The directory of the Spark that deploy/get-spark.sh fetches, which need not be there."""
    lock = (ROOT / "deploy/spark/requirements.lock").read_text()
    found = re.search(r"^pyspark==(\S+)", lock, re.MULTILINE)
    assert found is not None
    return ROOT / "var" / f"spark-{found[1]}"


class SparkCluster(Daemons):
    """A small Spark. Its workers end their executors."""

    def __init__(self, directory: Path, workers: tuple[str, ...] = WORKERS, *, cores: int = 1) -> None:
        super().__init__(directory)
        self.workers = workers
        self._cores = cores
        self._port, self._page = free_ports(2)

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

    def _begin(self) -> None:
        self.start("master")
        for worker in self.workers:
            self.start(worker)
        self._wait(lambda: self.alive() == len(self.workers), "all workers are there")

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
