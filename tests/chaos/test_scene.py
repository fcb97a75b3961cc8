"""The view of a job under a fault, where another fault is in force: tasks come back, nobody answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from chaos.cluster import Cluster
from chaos.faults import scene as faults_scene
from chaos.faults.operator import Operator
from chaos.faults.scene import DidNotBite, Job, Scene
from supervisor.contract.desired import JobPhase
from supervisor.contract.views.jobs import JobView, TaskView


def view(*states: str) -> JobView:
    """Workers in these states, each on a node of its own, and an evaluator beside the first."""
    workers = [("worker", index, state) for index, state in enumerate(states)]
    tasks = tuple(
        TaskView(f"a/{role}:{index}", role, index, f"node-{index}", state, 1, 1, "", 0, 0.0)
        for role, index, state in [("evaluator", 0, "running"), *workers]
    )
    return JobView("a", "u", "async", JobPhase.RUNNING, 1, 0, 0.0, None, None, 0, 0, 0, 3, "", "", 0, tasks)


class Told(Job):
    """A job whose supervisor gives these answers, and then the last one again and again."""

    def __init__(self, answers: Sequence[JobView | None]) -> None:
        super().__init__(Operator.__new__(Operator), "a", Path("unused"), Path("unused"))
        self.answers = list(answers)

    def view(self) -> JobView | None:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def scene(*answers: JobView | None) -> Scene:
    return Scene(Cluster.__new__(Cluster), Told(answers), random.Random(1))


def test_where_nobody_answers_what_was_known_last_holds() -> None:
    seen = scene(view("running", "exited"), None)
    assert seen.members("worker") == ["worker.0"]
    assert seen.members("worker") == ["worker.0"]
    assert scene(None).members("worker") == []


def test_a_task_that_comes_back_is_waited_for() -> None:
    seen = scene(view("running", "exited"), None, view("running", "preparing"), view("running", "running"))
    assert seen.task("worker.1").node == "node-1"
    seen = scene(view("exited", "running"), view("exited", "running"), view("running", "running"))
    assert seen.task_on("node-0").role == "worker"


def test_one_that_does_not_is_an_error_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults_scene, "TASK_S", 0.1)
    with pytest.raises(DidNotBite, match=r"worker\.1 runs"):
        scene(view("running", "exited")).task("worker.1")
    with pytest.raises(DidNotBite, match="a task of node-1 runs"):
        scene(view("running", "exited")).task_on("node-1")
