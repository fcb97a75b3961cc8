"""A supervised job on machines of this machine, or of a resource manager's: the side that is compared."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from benchmarks.engines.yarn_nodes import bring_back, lose
from benchmarks.support.nodes import lose_node, node_back
from chaos.spark import SparkCluster
from chaos.yarn import AGENT_MIB, YarnCluster
from examples.demo import kernel
from examples.demo.job import Training, digits_job
from examples.demo.steplog import StepLog
from examples.demo.watch import PromiseBroken, Watch
from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.views.jobs import SubmitRequest

STATUS_EVERY_S = 0.3
AGENTS = 3
POOL = "p"
OPTIONS = {"yarn": ("--memory", f"{AGENT_MIB}MiB")}
JOINED_S = 240.0
BACK_S = 120.0
SPARES_S = 12.0
"""Launchers that stand by on a node have TensorFlow imported by then, on a quiet machine."""
DRIVER = Path(__file__).with_name("spark_driver.py")
Ctl = Callable[..., str]


class Ours:
    """A supervised job on nodes of an embedded cluster, as a Tool."""

    def __init__(self, watch: Watch, cluster: LocalCluster) -> None:
        self.step_log = watch.step_log
        self.watch = watch
        self._cluster = cluster
        self._lost = ""

    def settled(self) -> bool:
        """All tasks run and no incident is open."""
        return self.watch.healthy_since(0)

    def ended(self) -> bool:
        """Whether the job has ended."""
        view = self.watch.view
        return view is not None and view.phase.ended

    def pid_of(self, task: str) -> int:
        """As the supervisor says."""
        return self.watch.pids[task]

    def tasks_with(self, task: str) -> Sequence[str]:
        """As the supervisor says."""
        tasks = self.watch.tasks
        return [name for name, view in tasks.items() if view.node == tasks[task].node]

    async def lose_node(self, task: str) -> int:
        """Its agent, launchers and tasks."""
        self._lost = self.watch.tasks[task].node
        return await self._end(self._lost)

    async def node_back(self) -> None:
        """Bring the lost node back, and let its spare launchers get warm."""
        await self._bring_back(self._lost)
        self._lost = ""
        await asyncio.sleep(SPARES_S)

    def resubmit(self) -> bool:
        """There is nothing to be done that the supervisor would not do."""
        return False

    async def _end(self, node: str) -> int:
        return await lose_node(self._cluster, node)

    async def _bring_back(self, node: str) -> None:
        await node_back(self._cluster, self.watch, node, BACK_S)


@asynccontextmanager
async def training(cluster: LocalCluster, flags: Training) -> AsyncIterator[Watch]:
    """The job, submitted to this cluster; `looks` of the watch keep it fresh (`beside`)."""
    async with cluster.client() as client:
        spec = digits_job(flags, cluster.layout.checkpoint_base)
        await client.submit(SubmitRequest(spec))
        watch = Watch(client, spec.name, StepLog(flags.step_log), status_every_s=STATUS_EVERY_S)
        yield watch


def ctl(cluster: LocalCluster, environment: Mapping[str, str]) -> Ctl:
    """`supervisorctl` on this cluster, where an engine's commands are. Raises PromiseBroken when it fails."""

    def run(*words: str) -> str:
        argv = (sys.executable, "-m", "supervisor.cli.main", "--state", str(cluster.layout.state))
        done = subprocess.run(
            [*argv, *words],
            env={**environment, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode != 0:
            raise PromiseBroken(f"supervisorctl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    return run


async def joined(cluster: LocalCluster, many: int) -> None:
    """Wait until so many agents of the pool are ready. Raises PromiseBroken."""
    deadline = time.monotonic() + JOINED_S
    async with cluster.client() as client:
        while True:
            nodes = (await client.nodes()).nodes
            ready = [each for each in nodes if each.node.startswith(f"{POOL}.") and each.state == "ready"]
            if len(ready) >= many:
                return
            if time.monotonic() > deadline:
                raise PromiseBroken(f"{len(ready)} of {many} agents of the pool have joined")
            await asyncio.sleep(0.5)


class OnYarn(Ours):
    """The same on a pool of a YARN, whose agents' places are NodeManagers."""

    def __init__(self, watch: Watch, cluster: LocalCluster, yarn: YarnCluster) -> None:
        super().__init__(watch, cluster)
        self._yarn = yarn
        self._ctl = ctl(cluster, yarn.environment)

    async def _end(self, node: str) -> int:
        agent = self._cluster.layout.state / POOL / node
        return await asyncio.to_thread(lose, self._yarn, node.removeprefix(f"{POOL}."), agent)

    async def _bring_back(self, node: str) -> None:
        await asyncio.to_thread(bring_back, self._yarn, node.removeprefix(f"{POOL}."))
        await asyncio.to_thread(self._ctl, "pool", "scale", POOL, str(AGENTS), "--on", "yarn")
        await joined(self._cluster, AGENTS)


class OnSpark(Ours):
    """The same in an application of Spark, whose workers are the nodes' machines."""

    def __init__(self, watch: Watch, cluster: LocalCluster, spark: SparkCluster) -> None:
        super().__init__(watch, cluster)
        self._spark = spark
        self._worker = ""

    async def _end(self, node: str) -> int:
        agent, spark = self.watch.nodes[node].pid, self._spark
        families = {worker: kernel.family(spark.pid(worker)) for worker in spark.workers}
        self._worker = next(
            worker for worker, family in families.items() if any(ref.pid == agent for ref in family)
        )
        doomed = [*families[self._worker], *kernel.using(self._cluster.layout.state / POOL / node)]
        killed_ns = time.monotonic_ns()
        spark.kill(self._worker)
        for ref in doomed:
            with suppress(ProcessLookupError):
                os.kill(ref.pid, signal.SIGKILL)
        return killed_ns

    async def _bring_back(self, node: str) -> None:
        del node
        await asyncio.to_thread(self._spark.start, self._worker)
        await joined(self._cluster, AGENTS)


@asynccontextmanager
async def pool(
    cluster: LocalCluster, engine: str, environment: Mapping[str, str], logs: Path
) -> AsyncIterator[None]:
    """A pool of three agents that have joined; the cluster's own nodes take no tasks."""
    run = ctl(cluster, environment)
    await _cordon_own(cluster)
    up = ("pool", "up", POOL, "--on", engine, "--agents", str(AGENTS), "--logs", str(logs))
    await asyncio.to_thread(run, *up, *OPTIONS.get(engine, ()))
    try:
        await joined(cluster, AGENTS)
        yield
    finally:
        await asyncio.to_thread(run, "pool", "down", POOL, "--on", engine, "--now")


@asynccontextmanager
async def pool_on_spark(cluster: LocalCluster, spark: SparkCluster, logs: Path) -> AsyncIterator[None]:
    """The same on the executors of a Spark application."""
    await _cordon_own(cluster)
    driver = _driver(cluster, spark, logs)
    try:
        await joined(cluster, AGENTS)
        yield
    finally:
        await asyncio.to_thread(driver.communicate)


def _driver(cluster: LocalCluster, spark: SparkCluster, logs: Path) -> subprocess.Popen[bytes]:
    """It ends its pool when its standard input ends."""
    with (logs / "driver.log").open("ab") as log:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", sys.executable, DRIVER, spark.master, cluster.layout.state],
            env=spark.environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


async def _cordon_own(cluster: LocalCluster) -> None:
    async with cluster.client() as client:
        for view in (await client.nodes()).nodes:
            await client.cordon(view.node, "training is for the pool")
