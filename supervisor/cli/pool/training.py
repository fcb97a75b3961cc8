"""`TrainingPool`: agents in a Spark application, and jobs that run on them, for the driver of Spark.

What it does with a job `supervisorctl run` does, for people who have a notebook instead of a shell.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent import futures
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from pyspark import RDD, SparkContext
from pyspark.sql import SparkSession

from supervisor.adapters.certificates.x509 import fingerprint
from supervisor.adapters.files.jobfile import job_of
from supervisor.adapters.files.quantities import size_bytes
from supervisor.adapters.files.yaml_file import parse, read
from supervisor.cli.jobs.follow import Goal, wait_for
from supervisor.cli.jobs.look import explanation
from supervisor.cli.jobs.order import Order, order_of, show_cautions
from supervisor.cli.options import Globals
from supervisor.cli.pool import tokens
from supervisor.cli.pool.driver import (
    SAY_S,
    Progress,
    goes_on,
    is_there,
    plain_interrupts,
    print_line,
    require_free,
    stop_interrupted,
)
from supervisor.cli.pool.order import LASTING, shared_file
from supervisor.cli.pool.placed import keep_to_pool, name_data
from supervisor.cli.target import find_target
from supervisor.contract.desired import JobPhase
from supervisor.contract.errors import NotFound, TfSupervisorError, Unreachable, UserError
from supervisor.contract.pool.record import check_pool
from supervisor.contract.pool.requests import PoolView
from supervisor.contract.views.jobs import JobView, SubmitMode, SubmitRequest
from supervisor.contract.views.nodes import NodeView
from supervisor.engines.engine import PoolAgent, State
from supervisor.engines.spark import records
from supervisor.engines.spark.agents import SparkAgents
from supervisor.engines.spark.application import SparkApplication, context_of
from supervisor.engines.spark.nodes import LOOK_S, PoolNodes
from supervisor.engines.spark.options import Wanted, completed

R = TypeVar("R")
JOIN_S = 120.0
"""How long a job waits for agents after the first. Executors of dynamic allocation take a while."""
WATCH_S = 2.0
END_S, GONE_S = 60.0, 30.0
DRAINED = ("draining", "drained")
SPARK = "spark"
"""The origin of all pools on Spark: the next driver goes on with the pool of one that was killed."""


class JobNotDone(TfSupervisorError):
    """A job ended otherwise than by its own success. The message is what `supervisorctl explain` tells.

    Attributes:
        job: the job at its end.
    """

    exit_code = 10

    def __init__(self, told: str, job: JobView) -> None:
        super().__init__(told)
        self.job = job


class TrainingPool:
    """Agents in a Spark application, as a context manager.

    Args:
        spark: the application, as SparkSession or SparkContext.
        agents: how many. Each is a task of the application that runs as long as the pool does.
        name: the pool's name; its nodes are NAME.HOST. Pools that share a cluster have different names.
        cpus: processors of each agent; by default those of an executor (`spark.executor.cores`), else of a
            task.
        memory: memory that each agent gives to tasks, as "16GiB"; by default as much as an executor has.
        gpus: GPUs of each agent; by default those of a task (`spark.task.resource.gpu.amount`).
        config, state: the cluster, as by `supervisorctl`'s `--config` and `--state`.
        agent_config: the configuration that all agents share, on all machines; an embedded cluster has one.
        token: the file for the pool's token, where supervisors certify agents; by default NAME.token beside
            `agent_config`. It is on all machines, too.
        token_for: how long the token is valid.
        notice_s: how long an agent may take to move its tasks away, where its end is known before.
        tell: is given each line about progress, in any thread; by default it is printed to standard error.

    Raises UserError, NotFound.
    """

    def __init__(
        self,
        spark: SparkSession | SparkContext,
        agents: int,
        *,
        name: str = "spark",
        cpus: int = 0,
        memory: str = "",
        gpus: int = 0,
        config: str | Path | None = None,
        state: str | Path | None = None,
        agent_config: str | Path | None = None,
        token: str | Path | None = None,
        token_for: str = LASTING,
        notice_s: float = 60.0,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        context = context_of(spark)
        self.name = check_pool(name)
        for what, number, least in (("agents", agents, 1), ("cpus", cpus, 0), ("gpus", gpus, 0)):
            if number < least:
                raise UserError(f"{what}={number}: give a number from {least} on")
        self._given = Globals(Path(state) if state else None, Path(config) if config else None)
        self._target = find_target(self._given)
        file, shared = shared_file(self._given, name, Path(agent_config) if agent_config else None)
        self._token = Path(token or file.parent / f"{name}.token").absolute() if shared.certified else None
        self._token_for = token_for
        self._tokens: tuple[str, ...] = ()
        """Fingerprints that supervisors may tell of the token: of an earlier release none."""
        wanted = Wanted(
            pool=name,
            agents=agents,
            file=str(file.absolute()),
            cpus=cpus,
            memory=_size(memory),
            gpus=gpus,
            token=str(self._token or ""),
        )
        options = dict(context.getConf().getAll())
        local = context.master.startswith("local") and not context.master.startswith("local-cluster")
        self._notice_s = notice_s
        self._tell = tell or print_line
        self._wanted = completed(wanted, options, local=local)
        self._application = SparkApplication(context, self._wanted)
        self._agents = SparkAgents(self._application, self._wanted, self._tell)
        self._nodes = PoolNodes(self._target.client, name, self._agents.ids)
        self._watched = not local and options.get("spark.decommission.enabled") == "true"
        self._watching: futures.Future[None] | None = None
        self._submitted: dict[str, bool] = {}
        """By the names of jobs that may be there: whether this driver is known to have submitted them."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tfsup-pool", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all agents; their tasks are moved away first, but not after an exception."""
        try:
            if self._watching is not None:
                self._watching.cancel()
            if self._agents.began:
                self._end(drained=error is None)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def start(self) -> None:
        """Start the agents, and wait until they have joined the cluster; `run` does it if need be.

        Raises NotFound if none of them comes.
        """
        if self._agents.began:
            return
        if self._token is not None:
            asked = tokens.Token(self._token, self._token_for, SPARK)
            made = self._ask(asyncio.to_thread(tokens.obtain, self._given, self.name, asked))
            self._tokens = "", fingerprint(made.pem.encode())
        self._agents.start()
        self._ask(self._joined())
        if self._watched:
            self._watching = asyncio.run_coroutine_threadsafe(self._watch(), self._loop)

    def run(
        self,
        job: str | Path | Mapping[str, object],
        *,
        data: object = None,
        name: str | None = None,
        resume: bool = False,
        fresh: bool = False,
    ) -> JobView:
        """Run a job on the agents of this pool to its end, and return what it came to.

        An interrupt stops the job, which may save first. Its checkpoints stay: `resume` goes on from there.
        A job that another driver has submitted goes on while that driver has agents in a pool of this name.

        Args:
            job: a job file, or what is in one; then `code.dir` is relative to the working directory.
            data: a DataFrame or an RDD that is written as TFRecords of Examples into the job's store, before
                the agents start. The job finds the directory as `{data.train}` and `TFSUP_DATA_TRAIN`, and
                that of `{"test": rows}` as `{data.test}`. It replaces one of its name in the file's `data`.
            name: replaces the one in the file.
            resume: go on from the newest checkpoint of a job of this name. One that is not over, as its
                driver was killed, goes on with the data that it has; `data` is not written then.
            fresh: start from scratch although there was a job of this name.

        Raises JobNotDone, with what `supervisorctl explain` tells; UserError for a mistake in the job.
        """
        if resume and fresh:
            raise UserError("resume and fresh contradict each other; give one of them")
        mode = SubmitMode.RESUME if resume else SubmitMode.FRESH if fresh else SubmitMode.NEW
        rows = data if isinstance(data, Mapping) else {} if data is None else {"train": data}
        order = self._order(job, name, mode, tuple(rows))
        show_cautions(order.request.spec, order.document)
        there = self._ask(self._is_there(order.request))
        if there:
            self._tell(goes_on(order.request.spec, rows))
        elif rows:
            with order.located():
                self._ask(self._free(order.request))
            for each, frame in rows.items():
                self._write(order.request.spec.data[each], frame)
        self.start()
        with order.located():
            ended, told = self._followed(order, submit=not there)
        if ended.phase is JobPhase.SUCCEEDED:
            return ended
        raise JobNotDone(told, ended)

    def agents(self) -> list[PoolAgent]:
        """The agents as Spark knows them."""
        return self._agents.look()

    def _order(
        self,
        job: str | Path | Mapping[str, object],
        name: str | None,
        mode: SubmitMode,
        data: tuple[str, ...],
    ) -> Order:
        base = self._target.checkpoint_base or None
        if isinstance(job, Mapping):
            path, document = Path("job"), parse(_written(job), "job")
        else:
            path = Path(job)
            document = read(path)

        def adapt(value: dict[str, object]) -> None:
            keep_to_pool(self.name, value)
            name_data(data, base, value)

        order = order_of(job_of(document, path, checkpoint_base=base, name=name, adapt=adapt), mode)
        if order.request.hold:
            raise UserError(f"{path}: the job is suspended, so it would never end; remove suspend")
        return order

    async def _is_there(self, request: SubmitRequest) -> bool:
        async with self._target.client() as client:
            return await is_there(client, request)

    async def _free(self, request: SubmitRequest) -> None:
        async with self._target.client() as client:
            await require_free(client, request)

    def _write(self, uri: str, rows: RDD) -> None:
        """Write rows into a directory, in place of what is there."""
        running = sum(each.state is State.RUNNING for each in self.agents()) if self._agents.began else 0
        if running and not self._application.has_room_beside(running * self._wanted.cpus):
            raise UserError(
                "the pool's agents hold all processors of the Spark application, so no data can be written. "
                "The first `run` of a pool writes data before its agents start. For later ones, give the "
                "agents fewer `cpus` than their executors have"
            )
        root, _, name = uri.rpartition("/")
        began = time.monotonic()
        fresh = self._ask(records.make_room(root, name))
        write = partial(records.write_partition, root, fresh)
        counts = getattr(rows, "rdd", rows).mapPartitionsWithIndex(write).collect()
        many = sum(counts)
        if not many:
            raise UserError(f"the rows for {uri} are none")
        self._ask(records.put_in_place(root, fresh, name, counts))
        self._tell(f"{uri} has {many} records, after {time.monotonic() - began:.1f} s")

    def _followed(self, order: Order, *, submit: bool) -> tuple[JobView, str]:
        name = order.request.spec.name
        self._submitted.pop(name, None)
        try:
            with plain_interrupts():
                return self._ask(self._follow(order, submit=submit))
        except Unreachable:
            if name in self._submitted:
                self._tell(f"{name} is not stopped: see `supervisorctl status {name}`")
            raise
        except TfSupervisorError:
            raise
        except BaseException:
            if name in self._submitted:
                self._tell(f"{name} is interrupted")
                submitted = self._submitted[name]
                told = stop_interrupted(self._target.client, self._nodes, name, submitted=submitted)
                self._tell(self._ask(told))
            raise

    async def _follow(self, order: Order, *, submit: bool) -> tuple[JobView, str]:
        """Submit a job that is not there, and follow it to its end: the job, and why it failed."""
        name = order.request.spec.name
        async with self._target.client() as client:
            if submit:
                await order.upload(client)
            self._submitted[name] = False
            if submit:
                accepted = await client.submit(order.request)
                self._submitted[name] = True
                for each in (*accepted.cautions, accepted.detail):
                    self._tell(f"{accepted.job}: {each}")
            _, job = await wait_for(client, name, Goal("ended"), None, Progress(self._tell).show)
            assert job is not None
            told = "" if job.phase is JobPhase.SUCCEEDED else explanation(await client.explain(name))
            return job, told

    async def _joined(self) -> None:
        """Wait until all agents are nodes that take tasks, or those that have an executor are."""
        until = time.monotonic() + JOIN_S
        said = ""
        while True:
            agents = await asyncio.to_thread(self._agents.look)
            nodes = await self._nodes.by_agent()
            ready = [each for each, node in nodes.items() if node.state == "ready"]
            waiting = [each for each in agents if each.id not in ready]
            if not waiting:
                self._tell(f"pool {self.name}: {len(ready)} agents are there")
                return
            await self._nodes.lift([node for node in nodes.values() if node.state in DRAINED])
            over = all(each.state is State.ENDED for each in waiting)
            why = "; ".join(dict.fromkeys(each.reason or "its node is not ready yet" for each in waiting))
            if over or time.monotonic() > until:
                if not ready:
                    raise NotFound(f"pool {self.name} has no agent: {why}")
                self._tell(f"pool {self.name} begins with {len(ready)} of {len(agents)} agents: {why}")
                return
            told = f"pool {self.name}: {len(ready)} of {len(agents)} agents are there; {why}"
            if told != said and time.monotonic() > until - JOIN_S + SAY_S:
                self._tell(said := told)
            await asyncio.sleep(LOOK_S)

    async def _watch(self) -> None:
        """Move agents from executors that Spark decommissions: their tasks first, then they."""
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                if agents := await asyncio.to_thread(self._agents.leaving):
                    await self._move(agents)
            except TfSupervisorError as error:
                self._tell(f"pool {self.name}: {error}")

    async def _move(self, agents: Sequence[str]) -> None:
        """Move agents together: each would else wait for the drain of the one before."""
        nodes = [node for each, node in (await self._nodes.by_agent()).items() if each in agents]
        names = ", ".join([node.node for node in nodes] or agents)
        self._tell(f"Spark decommissions the executors of {names}: their agents move")
        try:
            await self._nodes.drain(nodes, "its executor is decommissioned", self._notice_s)
        except TfSupervisorError as error:
            self._tell(f"pool {self.name}: {names} move at once, with what tasks they have: {error}")
        for agent in agents:
            await asyncio.to_thread(self._agents.move, agent)
        await self._nodes.left(nodes, GONE_S)
        await self._nodes.lift(nodes)

    def _end(self, *, drained: bool) -> None:
        """End all agents, and wait until the cluster knows it."""
        nodes: list[NodeView] = []
        try:
            nodes = list(self._ask(self._nodes.by_agent()).values())
            if drained and any(node.tasks for node in nodes):
                # All of them: else tasks would move to one that ends, too.
                self._ask(self._nodes.drain(nodes, "it ends", self._notice_s))
        except TfSupervisorError as error:
            self._tell(f"pool {self.name}: the agents end at once, as the cluster does not answer: {error}")
        finally:
            ended = self._agents.end(END_S)
        try:
            left = self._ask(self._nodes.left(nodes, GONE_S))
            self._ask(self._nodes.lift(nodes))
            if self._token is not None:
                self._ask(asyncio.to_thread(tokens.revoke, self._given, self.name, self._kept))
        except TfSupervisorError as error:
            left = [str(error)]
        if not ended:
            self._tell(f"pool {self.name}: Spark has not ended all of its tasks within {END_S:g} s")
        if left:
            self._tell(f"pool {self.name}: it is not known that these have ended: {', '.join(left)}")
        if ended and not left:
            self._tell(f"pool {self.name} has ended; Spark has everything back")

    def _kept(self, view: PoolView) -> str:
        """Why the certificates of a token stay; empty for this pool's."""
        return "" if view.token in self._tokens else tokens.ANOTHER

    def _ask(self, asked: Coroutine[object, object, R]) -> R:
        """Run on the loop of this pool: a notebook's own thread has a loop that runs already."""
        if not self._thread.is_alive():
            asked.close()
            raise UserError("the pool is used outside of its block: `with TrainingPool(...) as pool`")
        running = asyncio.run_coroutine_threadsafe(asked, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise


def _written(job: Mapping[str, object]) -> str:
    try:
        return json.dumps(dict(job))
    except TypeError as error:
        raise UserError(f"job: {error}: use texts, numbers, lists and dictionaries") from error


def _size(memory: str) -> int:
    try:
        return size_bytes(memory) if memory else 0
    except ValueError as error:
        raise UserError(f"memory: {error}") from error
