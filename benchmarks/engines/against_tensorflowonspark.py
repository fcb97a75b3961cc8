"""`python -m benchmarks.engines.against_tensorflowonspark`: recovery under TensorFlowOnSpark 2.2.5, and ours.

The same program with the same flags and data on a Spark of three machines, under both. A worker and the
parameter server are killed, and a machine is lost with all that it runs. JSON on standard output, progress on
standard error. It needs root: each machine of the Spark has a network of its own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from benchmarks.engines import ours
from benchmarks.engines.comparison import (
    ENDLESS,
    SAVE_STEPS,
    Application,
    Flags,
    compare,
    fetched,
    parse,
    watcher,
)
from benchmarks.engines.losses import Losses
from benchmarks.engines.spark_nodes import SparkNodes
from chaos.spark import SparkCluster
from examples.demo.job import PROGRAM, Training
from examples.demo.watch import TRAINERS, beside
from supervisor.cli.local.cluster import LocalCluster

STATE = Path("var/bench/tensorflowonspark")
DRIVER = Path(__file__).with_name("tfos_driver.py")
VERSION = "2.2.5"
PATIENCE_S = 25.0


class TensorFlowOnSpark(Application):
    """A Tool: an application that `spark-submit` has started."""

    def __init__(self, spark: SparkNodes, directory: Path, training: Training, home: Path) -> None:
        self._spark = spark
        self._home = home
        self._node = ""
        super().__init__(directory, training)

    def pid_of(self, task: str) -> int:
        """As the task itself has written it."""
        return int((self._directory / "pids" / task.replace(":", "-")).read_text())

    def tasks_with(self, task: str) -> Sequence[str]:
        """The tasks whose executors the same worker of Spark has started."""
        node = self._spark.node_of(self.pid_of(task))
        return [each for each in (*TRAINERS, "ps:0") if self._spark.node_of(self.pid_of(each)) == node]

    async def lose_node(self, task: str) -> int:
        """A worker of Spark with its executors."""
        self._node = self._spark.node_of(self.pid_of(task))
        killed_ns = time.monotonic_ns()
        self._spark.kill(self._node)
        return killed_ns

    async def node_back(self) -> None:
        """Start the worker of Spark again."""
        await asyncio.to_thread(self._spark.start, self._node)

    def _submit(self) -> subprocess.Popen[bytes]:
        pids, checkpoints = self._directory / "pids", self._directory / "checkpoints"
        shutil.rmtree(pids, ignore_errors=True)
        pids.mkdir(parents=True)
        checkpoints.mkdir(exist_ok=True)
        program = {
            "STEP_LOG": str(self._training.step_log),
            "CHECKPOINT_DIR": str(checkpoints),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_ENABLE_ONEDNN_OPTS": "0",
            "PYTHONPATH": f"{self._home}:{self._spark.packages}",
        }
        settings = {
            "spark.executor.cores": "1",
            "spark.cores.max": "4",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.driver.host": self._spark.host,
            "spark.driver.bindAddress": self._spark.host,
            # A task may fail any number of times: only then does the application never end by itself.
            "spark.task.maxFailures": "1000",
            "spark.ui.enabled": "false",
            **{f"spark.executorEnv.{name}": value for name, value in program.items()},
        }
        options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        with (self._directory / "application.log").open("ab") as log:
            return subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", str(self._spark.home / "bin" / "spark-submit")),
                    *("--master", self._spark.url, *options),
                    *(str(DRIVER), str(pids), str(PROGRAM), *self._training.flags()),
                ],
                env={
                    **os.environ,
                    **program,
                    "SPARK_LOCAL_IP": self._spark.host,
                    "TFOS_SERVER_HOST": self._spark.host,
                    "PYSPARK_PYTHON": sys.executable,
                    "PYSPARK_DRIVER_PYTHON": sys.executable,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; the exit code is that of `compare`."""
    flags = parse(arguments, "against_tensorflowonspark", STATE, PATIENCE_S)
    sides = (
        ("TensorFlowOnSpark", lambda losses: _theirs(flags, losses)),
        ("supervised", lambda losses: _ours(flags, losses)),
    )
    return compare(flags, f"TensorFlowOnSpark {VERSION}", nullcontext(sides))


def _theirs(flags: Flags, losses: Losses) -> None:
    home, packages = (
        fetched("benchmarks/engines/fetch.sh", "tensorflowonspark"),
        fetched("deploy/get-spark.sh"),
    )
    directory = flags.state / "theirs"
    training = Training(ENDLESS, flags.step_delay_ms, SAVE_STEPS, directory / "steps")
    environment = {"PYTHONPATH": f"{home}:{packages}"}
    with SparkNodes(packages, directory / "spark", environment) as spark:
        tool = TensorFlowOnSpark(spark, directory, training, home)
        try:
            asyncio.run(watcher(tool, "TensorFlowOnSpark", losses, flags, flags.most_s).lose(flags.plan))
        finally:
            tool.close()


def _ours(flags: Flags, losses: Losses) -> None:
    directory = flags.state / "ours"
    training = Training(ENDLESS, flags.step_delay_ms, SAVE_STEPS, directory / "steps")
    with (
        SparkCluster(flags.state / "spark") as spark,
        LocalCluster(directory / "cluster", nodes=1) as cluster,
    ):
        asyncio.run(_supervised(spark, cluster, training, flags, losses))


async def _supervised(
    spark: SparkCluster, cluster: LocalCluster, training: Training, flags: Flags, losses: Losses
) -> None:
    async with (
        ours.pool_on_spark(cluster, spark, flags.state),
        ours.training(cluster, training) as watch,
    ):
        tool = ours.OnSpark(watch, cluster, spark)
        work = watcher(tool, "supervised", losses, flags, flags.most_s / 2).lose(flags.plan)
        await beside(work, *watch.looks())


if __name__ == "__main__":
    sys.exit(main())
