"""Agents on a Spark application that the tests play: which jobs they run, and when they give up."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from supervisor.contract.errors import Refused, Unreachable
from supervisor.engines.engine import State
from supervisor.engines.spark import agents
from supervisor.engines.spark.agents import SparkAgents
from supervisor.engines.spark.command import AgentTask, Ended
from supervisor.engines.spark.options import Wanted
from tests.support.waiting import wait_until

WANTED = Wanted(pool="p", agents=2, file="/f", cpus=2, memory=1, gpus=0)


class Played:
    """An application whose jobs end as the test says."""

    id = "app-1"

    def __init__(self) -> None:
        self.jobs: dict[str, queue.Queue[Ended | Exception]] = {}
        self.tasks: list[AgentTask] = []
        self.leaving: set[str] = set()

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        return threading.Thread(target=target, name=name, daemon=True)

    def run(self, group: str, text: str, task: AgentTask) -> Ended:
        self.tasks.append(task)
        ends: queue.Queue[Ended | Exception] = queue.Queue()
        self.jobs[group] = ends
        end = ends.get(timeout=30)
        del self.jobs[group]
        if isinstance(end, Exception):
            raise end
        return end

    def ends(self, group: str, end: Ended | Exception) -> None:
        """End a job once it runs."""
        wait_until(lambda: group in self.jobs, f"{group} runs")
        self.jobs[group].put(end)

    def cancel(self, group: str) -> None:
        if group in self.jobs:
            self.jobs[group].put(Refused("Job 1 cancelled"))

    def runs(self, group: str) -> bool:
        return group in self.jobs

    def is_decommissioned(self, group: str) -> bool:
        return group in self.leaving


@pytest.fixture
def played() -> Played:
    return Played()


@pytest.fixture
def pool(played: Played, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkAgents]:
    monkeypatch.setattr(agents, "AGAIN_S", 0.01)
    told.clear()
    found = SparkAgents(played, WANTED, told.append)
    found.start()
    wait_until(lambda: len(played.jobs) == 2, "both jobs run")
    yield found
    assert found.end(20)


told: list[str] = []


def test_a_lost_agent_is_started_again_and_the_other_runs_on(pool: SparkAgents, played: Played) -> None:
    played.jobs["tfsup:p:1:1"].put(Refused("ExecutorLostFailure"))
    wait_until(lambda: {"tfsup:p:1:2", "tfsup:p:2:1"} == set(played.jobs), "it is there again")
    assert told == ["agent 1 is started again in 0.01 s: ExecutorLostFailure"]
    assert [each.id for each in played.tasks if each.id.startswith("app-1_1_")] == ["app-1_1_1", "app-1_1_2"]
    assert [each.state for each in pool.look()] == [State.RUNNING, State.RUNNING]
    assert pool.ids == ["app-1_1_", "app-1_2_"]


def test_an_agent_that_always_fails_is_given_up(pool: SparkAgents, played: Played) -> None:
    for start in range(1, agents.MOST_FAILURES + 1):
        played.ends(f"tfsup:p:1:{start}", Ended("host", 1, "first\nModuleNotFoundError: no module"))
    wait_until(lambda: pool.look()[0].state is State.ENDED, "it is given up")
    why = "its keeper on host has ended with code 1: ModuleNotFoundError: no module"
    assert (pool.look()[0].reason, told[-1]) == (why, f"agent 1 is not started again: {why}")
    assert len(told) == agents.MOST_FAILURES
    assert pool.look()[1].state is State.RUNNING


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (Ended("host", 2, "pool.yaml:1: wrong"), "with code 2: pool.yaml:1: wrong"),
        (Unreachable("the Spark application has ended"), "the Spark application has ended"),
    ],
)
def test_what_would_fail_again_is_not_tried(
    pool: SparkAgents, played: Played, end: Ended | Exception, why: str
) -> None:
    played.jobs["tfsup:p:1:1"].put(end)
    wait_until(lambda: pool.look()[0].state is State.ENDED, "it is given up")
    assert len(played.tasks) == 2
    assert pool.look()[0].reason.endswith(why)


def test_an_agent_moves_from_an_executor_that_is_decommissioned(pool: SparkAgents, played: Played) -> None:
    assert pool.leaving() == []
    played.leaving.add("tfsup:p:2:1")
    assert pool.leaving() == ["app-1_2_"]
    pool.move("app-1_2_")
    wait_until(lambda: "tfsup:p:2:2" in played.jobs, "it is started elsewhere")
    assert told == []
    assert pool.leaving() == []


def test_the_end_of_a_pool_cancels_each_job_once(played: Played) -> None:
    lines: list[str] = []
    pool = SparkAgents(played, WANTED, lines.append)
    assert pool.began is False
    assert [each.state for each in pool.look()] == [State.WAITING, State.WAITING]
    assert pool.look()[0].reason == "the Spark application has no free executor for it"
    pool.start()
    assert pool.end(20)
    assert (played.jobs, lines) == ({}, [])
    assert [each.state for each in pool.look()] == [State.ENDED, State.ENDED]
