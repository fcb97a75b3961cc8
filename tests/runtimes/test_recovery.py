"""Recovery under both runtimes, in embedded clusters: the same kills, the same end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos.dockerd import Dockerd
from supervisor.contract.incident import Cause, Outcome
from supervisor.contract.job.spec import Scope
from tests.runtimes.trial import TASKS, Trial, trial_of

pytestmark = pytest.mark.timeout(600)
RUNTIMES = ["process", "docker"]


@pytest.fixture(params=RUNTIMES)
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trial]:
    """One node, and a dockerd to break."""
    dockerd = request.getfixturevalue("dockerd_of_my_own") if request.param == "docker" else None
    with trial_of(tmp_path, 1, dockerd) as found:
        yield found


@pytest.fixture(params=RUNTIMES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trial]:
    """Two nodes."""
    dockerd: Dockerd | None = request.getfixturevalue("dockerd") if request.param == "docker" else None
    with trial_of(tmp_path, 2, dockerd) as found:
        yield found


@contextmanager
def left_alone(trial: Trial, *tasks: str) -> Iterator[None]:
    """Assert that the block under it ends no process of these tasks."""
    trial.log.read()
    before = {task: trial.log.processes(task) for task in tasks}
    yield
    trial.log.read()
    assert {task: trial.log.processes(task) for task in tasks} == before


def test_a_worker_its_agent_and_dockerd_are_killed(trial: Trial) -> None:
    trial.submit()
    with left_alone(trial, "worker:0"):
        trial.kill("worker:1")

    # The agent: its successor adopts the same processes in the same containers, and nothing is restarted.
    pids, containers = trial.pids(), trial.containers()
    agent = trial.cluster.member("agent-0").pid
    with left_alone(trial, *(task for task in TASKS if task != "worker:0")):
        trial.cluster.kill_member("agent-0")
        trial.until(lambda: trial.cluster.member("agent-0").pid not in (0, agent), "the agent's successor")
        with left_alone(trial, "worker:0"):
            trial.all_step("steps after the agent's death")
        trial.kill("worker:0")
    assert trial.pids()["worker:1"] == pids["worker:1"]
    assert trial.containers() == containers

    if trial.dockerd is None:
        return
    # dockerd: no task notices, and those that die meanwhile are restarted without it, also all of them.
    with left_alone(trial, *TASKS):
        trial.dockerd.kill()
        trial.all_step("steps without dockerd")
    trial.kill("worker:1")
    trial.kill("ps:0")
    with left_alone(trial, *TASKS):
        trial.dockerd.restart()
        trial.all_step("steps after dockerd's restart")
    assert trial.containers() == containers
    assert [each.cause for each in trial.incidents()] == [Cause.KILLED.value] * 4


def test_each_role_of_a_job_is_killed_in_turn(trial: Trial) -> None:
    """The role alone decides which tasks die with it, and its container lives on."""
    trial.submit()
    containers = trial.containers()
    scopes = {"worker:1": Scope.TASK, "evaluator:0": Scope.TASK, "ps:0": Scope.ALL, "chief:0": Scope.ALL}
    for task, scope in scopes.items():
        others = [each for each in TASKS if each != task and scope is Scope.TASK]
        with left_alone(trial, *others):
            incident = trial.kill(task)
        assert (incident.task, incident.scope) == (f"steps/{task}", scope.value)
        assert (incident.cause, incident.outcome) == (Cause.KILLED.value, Outcome.RECOVERED)
    assert trial.view().generation == 3
    assert set(containers) <= set(trial.containers())


@pytest.mark.slow
def test_a_node_is_drained(pair: Trial) -> None:
    pair.submit()
    node = pair.places()["worker:1"]
    pair.keep_away(node, drain=True)
    pair.until(lambda: pair.nodes()[node].state == "drained", "the drain's end")
    pair.all_step("steps elsewhere")
    assert node not in pair.places().values()
    # One of the launchers stays there, in reserve.
    pair.until(lambda: len(pair.containers(node)) <= 1, "the end of its containers")
    pair.keep_away(node, drain=False)
    pair.until(lambda: pair.nodes()[node].state == "ready", "its return")
    with left_alone(pair, *TASKS):
        pair.all_step("steps where they are")


@pytest.mark.slow
def test_an_agent_is_lost_for_good(pair: Trial) -> None:
    """Nothing takes the places of its tasks before they are dead, by what the programs have written."""
    pair.submit()
    node = pair.places()["worker:1"]
    agent = node.replace("node", "agent")
    lost = [task for task, where in pair.places().items() if where == node]
    pair.log.read()
    before = pair.log.processes()
    pair.cluster.stop_member(agent, signal.SIGKILL)
    pair.until(lambda: node not in pair.places().values(), "other places for its tasks")
    pair.all_step("steps elsewhere")
    for task in lost:
        steps = pair.log.steps[task]
        assert max(each.ns for each in steps if each.file in before) < min(pair.log.processes(task) - before)
    # What it has left does not outlive its return, and nothing that runs is touched by that.
    with left_alone(pair, *TASKS):
        pair.cluster.start_member(agent)
        pair.until(lambda: pair.nodes()[node].state == "ready", "the agent's return")
        pair.all_step("steps where they are")
    assert {each.outcome for each in pair.incidents()} == {Outcome.RECOVERED}
