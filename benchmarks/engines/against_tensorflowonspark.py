"""`python -m benchmarks.engines.against_tensorflowonspark`: recovery under TensorFlowOnSpark 2.2.5, and ours.

The same program with the same flags and data on a Spark of three machines, under both. A worker and the
parameter server are killed, and a machine is lost with all that it runs. JSON on standard output, progress on
standard error. It needs root: each machine of the Spark has a network of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engines import ours
from benchmarks.engines.losses import (
    INTERRUPTED,
    LOST,
    NODE,
    Losses,
    Tool,
    Watcher,
    rows,
    say,
    times_faster,
)
from benchmarks.engines.spark_nodes import SparkNodes, kill_family
from benchmarks.support.figures import machine
from benchmarks.support.quiet import Quiet
from chaos.spark import SparkCluster
from examples.demo.job import PROGRAM, Training
from examples.demo.steplog import StepLog
from examples.demo.watch import TRAINERS, PromiseBroken, beside
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.errors import TfSupervisorError

ROOT = Path(__file__).resolve().parents[2]
STATE = Path("var/bench/tensorflowonspark")
DRIVER = Path(__file__).with_name("tfos_driver.py")
ENDLESS = 100_000_000
SAVE_STEPS = 100
VERSION = "2.2.5"
PATIENCE_S = 25.0


class TensorFlowOnSpark:
    """A Tool: an application that `spark-submit` has started."""

    def __init__(self, spark: SparkNodes, directory: Path, training: Training, home: Path) -> None:
        self.step_log = StepLog(training.step_log)
        self._spark = spark
        self._directory = directory
        self._training = training
        self._home = home
        self._node = ""
        self._application = self._submit()

    def settled(self) -> bool:
        """TensorFlowOnSpark does not say."""
        return True

    def ended(self) -> bool:
        """Whether the application has ended."""
        return self._application.poll() is not None

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

    def resubmit(self) -> bool:
        """End the application, and submit it again, at once."""
        self.close()
        self._application = self._submit()
        return True

    def close(self) -> None:
        """End the application; its executors end with it."""
        kill_family(self._application.pid)
        self._application.wait()

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


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line."""

    kills: int
    node_kills: int
    patience_s: float
    most_s: float
    step_delay_ms: float
    state: Path
    quiet: Quiet

    @property
    def plan(self) -> dict[str, int]:
        """How often each thing is lost."""
        return {what: self.node_kills if what == NODE else self.kills for what in LOST}


def main(arguments: Sequence[str] | None = None) -> int:
    """Lose everything under both, and print the figures; exit code 1: one failed, 130: interrupted."""
    flags = parse(arguments, "against_tensorflowonspark", STATE, PATIENCE_S)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    info, theirs, own, code = machine(), Losses(), Losses(), 0
    shutil.rmtree(flags.state, ignore_errors=True)
    try:
        for name, run, losses in (("TensorFlowOnSpark", _theirs, theirs), ("supervised", _ours, own)):
            try:
                run(flags, losses)
            except TfSupervisorError as error:
                say(f"{name}: {error}")
                code = 1
    except KeyboardInterrupt:
        say(INTERRUPTED)
        code = 130
    print(json.dumps(report(info, flags, f"TensorFlowOnSpark {VERSION}", theirs, own), indent=2))
    return code


def parse(arguments: Sequence[str] | None, name: str, state: Path, patience_s: float) -> Flags:
    """The flags that comparisons have in common."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.engines.{name}")
    parser.add_argument("--kills", type=int, default=3, help="of a worker and of the ps (%(default)s)")
    parser.add_argument("--node-kills", type=int, default=3, help="losses of a node (%(default)s)")
    parser.add_argument(
        "--patience-s",
        type=float,
        default=patience_s,
        help="wait so long for a tool to do something itself, then submit the job again (%(default)s)",
    )
    parser.add_argument(
        "--most-s",
        type=float,
        default=150.0,
        help="begin no loss of the other tool's job later than this, and of ours half as late (%(default)s)",
    )
    parser.add_argument("--step-delay-ms", type=float, default=10.0, help="pause of each replica")
    parser.add_argument("--quiet-s", type=float, default=0.0, help="wait this long for an idle moment")
    parser.add_argument("--state", type=Path, default=state, help="scratch directory (%(default)s)")
    given = parser.parse_args(arguments)
    return Flags(
        kills=given.kills,
        node_kills=given.node_kills,
        patience_s=given.patience_s,
        most_s=given.most_s,
        step_delay_ms=given.step_delay_ms,
        state=given.state.resolve(),
        quiet=Quiet(given.quiet_s),
    )


def watcher(tool: Tool, name: str, losses: Losses, flags: Flags, most_s: float) -> Watcher:
    """It ends in time."""
    return Watcher(tool, name, losses, flags.quiet, flags.patience_s, time.monotonic() + most_s)


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


def fetched(script: str, *words: str) -> Path:
    """The directory that a script of ours fetches something into. Raises PromiseBroken."""
    done = subprocess.run([ROOT / script, *words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise PromiseBroken(f"{script} has failed; its words are above")
    return Path(done.stdout.split()[0])


def report(
    info: dict[str, object], flags: Flags, tool: str, theirs: Losses, own: Losses
) -> dict[str, object]:
    """The document."""
    return {
        "benchmark": f"against {tool}",
        "machine": info,
        "settings": {
            "step_delay_ms": flags.step_delay_ms,
            "save_steps": SAVE_STEPS,
            "patience_s": flags.patience_s,
            "quiet_s": flags.quiet.patience_s,
        },
        tool: theirs.report(),
        "supervised": own.report(),
        "times_faster": times_faster(own, theirs),
        "losses": {tool: rows(theirs), "supervised": rows(own)},
    }


if __name__ == "__main__":
    sys.exit(main())
