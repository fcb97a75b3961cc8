"""Drivers of Spark whose pool is `p`, on a cluster that `supervisorctl` looks at."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from chaos.spark import SparkCluster
from supervisor.cli.local.cluster import LocalCluster
from tests.cli.saving import SavingShell
from tests.engines.pool_shell import PoolShell, ours, wait_long

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
DRIVER = Path(__file__).with_name("spark_training.py")


class SparkShell(PoolShell):
    """`supervisorctl`, and drivers of Spark whose pool is `p`."""

    def __init__(self, cluster: LocalCluster, spark: SparkCluster, directory: Path) -> None:
        super().__init__(cluster, "spark", {})
        self.spark = spark
        self.directory = directory

    def drive(self, *jobs: str, master: str = "", options: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        """Start a driver that runs these jobs; `options` are those of `spark_training.py`."""
        paths = [self.directory / f"job-{number}.yaml" for number in range(len(jobs))]
        for path, text in zip(paths, jobs, strict=True):
            path.write_text(text)
        state = self.cluster.layout.state
        with (self.directory / "driver.log").open("wb") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, str(DRIVER), master or self.spark.master, *map(str, paths)),
                    *("--pool", "name=p", "--pool", f"state={state}", *options),
                ],
                env=self.spark.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @contextmanager
    def driver(
        self, *jobs: str, master: str = "", options: tuple[str, ...] = ()
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A driver as `drive` starts it, which is killed at the end of the block if it is there."""
        driver = self.drive(*jobs, master=master, options=options)
        try:
            yield driver
        finally:
            driver.kill()
            driver.wait()

    def told(self) -> str:
        """The driver's output."""
        return (self.directory / "driver.log").read_text(errors="replace")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """As wait_long; a failure shows the driver's output."""
        try:
            wait_long(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{what}; the driver's output ends with:\n{self.told()[-3000:]}") from error

    def ended(self, driver: subprocess.Popen[bytes]) -> None:
        """Wait until a driver has ended well."""
        self.wait(lambda: driver.poll() is not None, "the driver ends")
        assert driver.returncode == 0, self.told()

    def there(self) -> dict[str, dict[str, object]]:
        """The live nodes of the pool by name."""
        found = self.json("nodes")["nodes"]
        assert isinstance(found, list)
        return {each["node"]: each for each in found if each["labels"].get("pool") == "p" and each["pid"]}

    def all_ready(self) -> bool:
        """Whether three agents take tasks."""
        return [each["state"] for each in self.there().values()] == ["ready"] * 3

    def incarnations(self) -> set[str]:
        """The lives of the pool's nodes."""
        return {str(each["incarnation"]) for each in self.there().values()}

    def keeper_of(self, node: str) -> psutil.Process:
        """The keeper of a node."""
        return next(each for each in self._above(node) if "supervisor.engines.keeper" in each.cmdline())

    def executor_of(self, node: str) -> psutil.Process:
        """The executor in whose Python worker the keeper of a node was started."""
        return next(each for each in self._above(node) if EXECUTOR in each.cmdline())

    def counting(self) -> str:
        """A job that counts and saves, and has data that its driver writes."""
        job = SavingShell(self.cluster, self.directory).job.read_text()
        return job.replace("count.py]", 'count.py, "{data.train}"]')

    def executors(self) -> set[int]:
        """The executors that are there. Each runs in a directory of its worker."""
        return {each.pid for each in self._of_workers() if EXECUTOR in each.info["cmdline"]}

    def all_given_back(self) -> None:
        """Wait until nothing of the pool is left: no process, no node, no application."""
        self.wait(lambda: ours(self.directory) == [], "no process of the pool is left")
        self.wait(lambda: not list(self._of_workers()), "no process of its executors is left")
        self.wait(lambda: self.there() == {}, "the cluster knows it")
        self.wait(lambda: self.spark.told()["activeapps"] == [], "Spark has everything back")

    def _above(self, node: str) -> list[psutil.Process]:
        """The processes of which a node's agent is a descendant."""
        return psutil.Process(int(str(self.there()[node]["pid"]))).parents()

    def _of_workers(self) -> Iterator[psutil.Process]:
        """The processes that run in directories of Spark's workers."""
        for each in psutil.process_iter(["cmdline", "cwd"]):
            if (each.info["cwd"] or "").startswith(f"{self.spark.directory}/") and each.info["cmdline"]:
                yield each
