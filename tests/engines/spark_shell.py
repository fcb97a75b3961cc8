"""Drivers of Spark whose pool is `p`, on a cluster that `supervisorctl` looks at."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from chaos.spark import SparkCluster
from supervisor.cli.local.cluster import LocalCluster
from tests.engines.pool_shell import PoolShell, ours, wait_long

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
                    *(sys.executable, str(DRIVER), master or self.spark.master, str(state)),
                    *(*map(str, paths), *options),
                ],
                env=self.spark.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def told(self) -> str:
        """The driver's output."""
        return (self.directory / "driver.log").read_text(errors="replace")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """As wait_long; a failure shows the driver's output."""
        try:
            wait_long(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{what}; the driver's output ends with:\n{self.told()[-3000:]}") from error

    def there(self) -> dict[str, dict[str, object]]:
        """The live nodes of the pool by name."""
        found = self.json("nodes")["nodes"]
        assert isinstance(found, list)
        return {each["node"]: each for each in found if each["labels"].get("pool") == "p" and each["pid"]}

    def all_ready(self) -> bool:
        """Whether three agents take tasks."""
        return [each["state"] for each in self.there().values()] == ["ready"] * 3

    def recovers(self, what: str, fail: Callable[[], None]) -> None:
        """See training go on after a failure, and print how long that took."""
        before, began = self.recoveries(), time.monotonic()
        fail()
        self.wait(lambda: self.recoveries() > before, f"{what} is noticed")
        self.trains_on(what)
        say(f"{what}: {time.monotonic() - began:.1f} s to 20 new steps")

    def moved(self, job: str) -> dict[str, object]:
        """The newest move of a job from a node that was drained."""
        found = self.json("explain", job)["incidents"]
        assert isinstance(found, list)
        return dict(
            max((each for each in found if each["cause"] == "drained"), key=lambda each: each["wall_ms"])
        )

    @staticmethod
    def base_of(incident: dict[str, object]) -> int:
        """The step that a restart went back to."""
        base = incident["base"]
        assert isinstance(base, dict)
        return int(base["step"])

    def executor_of(self, node: str) -> psutil.Process:
        """The executor in whose Python worker the keeper of a node was started."""
        above = psutil.Process(int(str(self.there()[node]["pid"]))).parents()
        return next(each for each in above if "CoarseGrainedExecutorBackend" in " ".join(each.cmdline()))

    def all_given_back(self) -> None:
        """Wait until nothing of the pool is left: no process, no node, no application."""
        self.wait(lambda: ours(self.directory) == [], "no process of the pool is left")
        self.wait(lambda: self.there() == {}, "the cluster knows it")
        self.wait(lambda: self.spark.told()["activeapps"] == [], "Spark has everything back")


def say(line: str) -> None:
    """Tell a duration to those who look for it with `pytest -s`."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
