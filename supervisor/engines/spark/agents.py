"""The agents of a pool in a Spark application: a Spark job of one task for each, and a thread that runs it.

So the failure of one agent aborts nothing else. A thread submits its job again when the job ends, whatever
the reason: an executor that is lost, a Python worker, a keeper. Its agent is then a new node.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from supervisor.adapters.neutral import one_line
from supervisor.contract.errors import Refused, Unreachable
from supervisor.engines.engine import PoolAgent, State
from supervisor.engines.keeper import WRONG_CONFIGURATION
from supervisor.engines.spark.command import AgentTask, Ended
from supervisor.engines.spark.options import Wanted

AGAIN_S, AGAIN_MOST_S = 1.0, 30.0
STEADY_S = 60.0
"""The failures before one of an agent that ran for so long count no longer."""
MOST_FAILURES = 6
"""So many failures of an agent in a row end the attempts to have it."""
CANCEL_AGAIN_S = 1.0


class Application(Protocol):
    """A Spark application. A `group` is a name of the one job that runs one agent once."""

    id: str

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """A thread that may run jobs."""

    def run(self, group: str, text: str, task: AgentTask) -> Ended:
        """Run an agent's job to its end.

        Raises Refused with Spark's reason, Unreachable when the application has ended.
        """

    def cancel(self, group: str) -> None:
        """Have Spark end the job of a group, if there is one. Raises Unreachable."""

    def runs(self, group: str) -> bool:
        """Whether the task of a group runs; else it waits for room."""

    def is_decommissioned(self, group: str) -> bool:
        """Whether the executor of a group's task is to end."""


@dataclass(slots=True)
class _Agent:
    """One agent, as its thread and its driver know it.

    Attributes:
        group: Spark's name of its job, which is another one for each start; empty before the first.
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

    def __init__(self, application: Application, wanted: Wanted, tell: Callable[[str], None]) -> None:
        self._application = application
        self._wanted = wanted
        self._tell = tell
        self._closing = threading.Event()
        self._agents = [_Agent(number) for number in range(1, wanted.agents + 1)]

    def start(self) -> None:
        """Start all agents, each as soon as the application has room for it."""
        for agent in self._agents:
            name = f"tfsup-agent-{agent.number}"
            agent.thread = self._application.thread(partial(self._keep, agent), name)
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
        return [
            self._id(agent)
            for agent in self._agents
            if agent.group and not agent.over and self._application.is_decommissioned(agent.group)
        ]

    def move(self, ident: str) -> None:
        """End an agent, and start it again where Spark has room."""
        for agent in self._agents:
            if self._id(agent) == ident:
                agent.moving = True
                self._cancel(agent)

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
        with contextlib.suppress(Unreachable):
            if agent.group and not agent.over:
                self._application.cancel(agent.group)

    def _keep(self, agent: _Agent) -> None:
        """Run one agent's job, again and again."""
        failures = start = 0
        while not self._closing.is_set() and failures < MOST_FAILURES:
            start += 1
            began = time.monotonic()
            may_be_over = self._run(agent, start)
            if self._closing.is_set() or not may_be_over:
                break
            if agent.moving:
                agent.moving = False
                continue
            failures = 1 if time.monotonic() - began >= STEADY_S else failures + 1
            wait_s = min(AGAIN_S * 2 ** (failures - 1), AGAIN_MOST_S)
            if failures < MOST_FAILURES:
                self._tell(f"agent {agent.number} is started again in {wait_s:g} s: {agent.why}")
                self._closing.wait(wait_s)
        agent.over = True
        if not self._closing.is_set():
            self._tell(f"agent {agent.number} is not started again: {agent.why}")

    def _run(self, agent: _Agent, start: int) -> bool:
        """Run one job to its end; False if another one would end in the same way."""
        wanted = self._wanted
        task = AgentTask(
            pool=wanted.pool,
            id=f"{self._id(agent)}{start}",
            file=wanted.file,
            cpus=wanted.cpus,
            memory=wanted.memory,
            token=wanted.token,
        )
        agent.group = f"tfsup:{wanted.pool}:{agent.number}:{start}"
        try:
            ended = self._application.run(agent.group, f"agent {agent.number} of pool {wanted.pool}", task)
        except Refused as error:
            agent.why = str(error)
            return True
        except Unreachable as error:
            agent.why = str(error)
            return False
        last = one_line(ended.said.rpartition("\n")[2])
        agent.why = f"its keeper on {ended.place} has ended with code {ended.code}: {last}"
        return ended.code != WRONG_CONFIGURATION

    def _seen(self, agent: _Agent) -> PoolAgent:
        runs = bool(agent.group) and not agent.over and self._application.runs(agent.group)
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
        return f"{self._application.id}_{agent.number}_"
