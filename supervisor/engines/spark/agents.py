"""The agents of a pool in a Spark application: a Spark job of one task for each, and a thread that runs it.

So the failure of one agent aborts nothing else. A thread submits its job again when the job ends, whatever
the reason: an executor that is lost, a Python worker, a keeper. Its agent is then a new node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from py4j.protocol import Py4JError
from pyspark import RDD, InheritableThread, SparkContext
from pyspark.errors import PySparkException
from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

from supervisor.adapters.neutral import one_line
from supervisor.engines.engine import PoolAgent, State
from supervisor.engines.keeper import WRONG_CONFIGURATION
from supervisor.engines.spark.command import GPU, AgentTask
from supervisor.engines.spark.options import Wanted
from supervisor.engines.spark.reasons import reason_of
from supervisor.engines.spark.task import Ended, keep

AGAIN_S, AGAIN_MOST_S = 1.0, 30.0
STEADY_S = 60.0
"""The failures before one of an agent that ran for so long count no longer."""
MOST_FAILURES = 6
"""So many failures of an agent in a row end the attempts to have it."""
CANCEL_AGAIN_S = 1.0
_STOPPED = (Py4JError, PySparkException, OSError, AttributeError)
"""Errors of a job, and of an application that has ended. The last is what pyspark raises of the latter."""


@dataclass(slots=True)
class _Agent:
    """One agent, as its thread and its driver know it.

    Attributes:
        group: Spark's name of its job; another one for each start.
        moving: its job is cancelled so that it starts elsewhere.
        why: how it ended before, or for good.
    """

    number: int
    group: str = ""
    moving: bool = False
    over: bool = False
    why: str = ""
    thread: threading.Thread | None = field(default=None, repr=False)


class SparkAgents:
    """All agents of a pool. `tell` gets a line for each event, in any thread."""

    def __init__(self, context: SparkContext, wanted: Wanted, tell: Callable[[str], None]) -> None:
        self._context = context
        self._wanted = wanted
        self._tell = tell
        self._closing = threading.Event()
        self._agents = [_Agent(number) for number in range(1, wanted.agents + 1)]

    def start(self) -> None:
        """Start all agents, each as soon as the application has room for it."""
        for agent in self._agents:
            # A thread of pyspark's has a thread of its own in the JVM, which knows the group of the job.
            agent.thread = InheritableThread(
                target=self._keep, args=(agent,), name=f"tfsup-agent-{agent.number}", daemon=True
            )
            agent.thread.start()

    @property
    def began(self) -> bool:
        """Whether the agents were started."""
        return self._agents[0].thread is not None

    @property
    def ids(self) -> list[str]:
        """The beginnings of the labels `agent` of the nodes, one for each agent."""
        return [self._id(agent) for agent in self._agents]

    def look(self) -> list[PoolAgent]:
        """The agents as Spark knows them."""
        return [self._seen(agent) for agent in self._agents]

    def leaving(self) -> list[str]:
        """The ids of agents that run on executors which Spark decommissions."""
        try:
            backend = self._context._jsc.sc().schedulerBackend()
            return [
                self._id(agent)
                for agent in self._agents
                if (executor := self._executor(agent)) and not backend.isExecutorActive(executor)
            ]
        except _STOPPED:
            return []

    def move(self, ident: str) -> None:
        """End an agent, and start it again where Spark has room."""
        for agent in self._agents:
            if self._id(agent) == ident:
                agent.moving = True
                self._cancel(agent)

    def has_room_beside(self) -> bool:
        """Whether another job of the application has a processor, which it would wait for otherwise."""
        if self._context.getConf().get("spark.dynamicAllocation.enabled") == "true":
            return True
        executors = self._context._jsc.sc().statusStore().executorList(True)
        cores = sum(executors.apply(each).totalCores() for each in range(executors.size()))
        held = sum(each.state is State.RUNNING for each in self.look()) * self._wanted.cpus
        return bool(cores - held >= int(self._context.getConf().get("spark.task.cpus", "1")))

    def end(self, within_s: float) -> bool:
        """End all agents. False if Spark has not ended all of their jobs in time."""
        self._closing.set()
        until = time.monotonic() + within_s
        threads = [agent.thread for agent in self._agents if agent.thread is not None]
        while any(each.is_alive() for each in threads) and time.monotonic() < until:
            # Also one whose thread has submitted it only now.
            for agent in self._agents:
                self._cancel(agent)
            for each in threads:
                each.join(CANCEL_AGAIN_S / len(threads))
        return not any(each.is_alive() for each in threads)

    def _cancel(self, agent: _Agent) -> None:
        try:
            if agent.group and not agent.over:
                self._context.cancelJobGroup(agent.group)
        except _STOPPED:
            # The application has ended, and its executors with it.
            agent.over = True

    def _keep(self, agent: _Agent) -> None:
        """Run one agent's job, again and again."""
        failures = start = 0
        while not self._closing.is_set() and failures < MOST_FAILURES:
            start += 1
            began = time.monotonic()
            code = self._run(agent, start)
            if self._closing.is_set():
                break
            if self._context._jsc is None:
                agent.why = "the Spark application has ended"
                break
            if agent.moving:
                agent.moving = False
                continue
            if code == WRONG_CONFIGURATION:
                break
            failures = 1 if time.monotonic() - began >= STEADY_S else failures + 1
            wait_s = min(AGAIN_S * 2 ** (failures - 1), AGAIN_MOST_S)
            told = f"it is started again in {wait_s:g} s" if failures < MOST_FAILURES else "it is given up"
            self._tell(f"agent {agent.number} has ended: {agent.why}; {told}")
            self._closing.wait(wait_s)
        agent.over = True
        if not self._closing.is_set():
            self._tell(f"agent {agent.number} is not started again: {agent.why}")

    def _run(self, agent: _Agent, start: int) -> int:
        """Run one job to its end; the keeper's exit code, or -1."""
        wanted = self._wanted
        task = AgentTask(
            pool=wanted.pool,
            id=f"{self._context.applicationId}_{agent.number}_{start}",
            file=wanted.file,
            cpus=wanted.cpus,
            memory=wanted.memory,
            token=wanted.token,
        )
        agent.group = f"tfsup:{wanted.pool}:{agent.number}:{start}"
        try:
            # A cancelled task goes on until Spark has killed its Python worker. With interruptOnCancel its
            # processor could be given to another task before.
            text = f"agent {agent.number} of pool {wanted.pool}"
            self._context.setJobGroup(agent.group, text, interruptOnCancel=False)
            ended: Ended
            (ended,) = self._place().mapPartitions(partial(keep, task)).collect()
        except _STOPPED as error:
            agent.why = reason_of(str(error))
            return -1
        last = one_line(ended.said.rpartition("\n")[2])
        agent.why = f"its keeper on {ended.place} ended with code {ended.code}: {last}"
        return ended.code

    def _place(self) -> RDD:
        """One partition, with what an agent needs of Spark."""
        rdd = self._context.parallelize([0], 1)
        if self._wanted.plain:
            return rdd
        needs = TaskResourceRequests().cpus(self._wanted.cpus)
        if self._wanted.gpus:
            needs = needs.resource(GPU, self._wanted.gpus)
        return rdd.withResources(ResourceProfileBuilder().require(needs).build)

    def _seen(self, agent: _Agent) -> PoolAgent:
        runs = not agent.over and self._stage(agent) is not None
        state = State.ENDED if agent.over else State.RUNNING if runs else State.WAITING
        waits = agent.why or "the Spark application has no free executor for it"
        return PoolAgent(
            id=self._id(agent),
            pool=self._wanted.pool,
            state=state,
            word=state.value.upper(),
            reason="" if runs else waits,
        )

    def _id(self, agent: _Agent) -> str:
        """The beginning of the label `agent` of its nodes, whichever start they are of."""
        return f"{self._context.applicationId}_{agent.number}_"

    def _stage(self, agent: _Agent) -> tuple[int, int] | None:
        """The stage, and its attempt, that runs an agent's task now; None while it waits."""
        tracker = self._context.statusTracker()
        for job in tracker.getJobIdsForGroup(agent.group) if agent.group else ():
            info = tracker.getJobInfo(job)
            for each in info.stageIds if info is not None else ():
                stage = tracker.getStageInfo(each)
                if stage is not None and stage.numActiveTasks:
                    return each, stage.currentAttemptId
        return None

    def _executor(self, agent: _Agent) -> str:
        """The executor of an agent's task; empty while it waits."""
        stage = self._stage(agent)
        if stage is None:
            return ""
        tasks = self._context._jsc.sc().statusStore().taskList(*stage, 100)
        running = [tasks.apply(each) for each in range(tasks.size())]
        return next((str(each.executorId()) for each in running if each.status() == "RUNNING"), "")
