"""The scene of a fault: the cluster, the job that runs on it, and chance that a seed sets."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from chaos.cluster import Cluster, CommandFailed, Node
from chaos.faults.kernel import Life
from chaos.faults.operator import Operator
from supervisor.contract import codec
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.views.jobs import ClusterStatus, Explanation, JobView, TaskView

T = TypeVar("T")
TRAINERS = ("chief", "worker")
LOOK_S = 0.02
TASK_S = 5.0


class DidNotBite(TfSupervisorError):
    """The fault was not in force, by the kernel's word: what came of it proves nothing."""


@dataclass(slots=True)
class Job:
    """The job under attack.

    Attributes:
        operator: who asks for it, and about it.
        step_log: where its processes tell what they did.
        control: where they look for faults of their own (`chaos/programs/steps.py`).
    """

    operator: Operator
    name: str
    step_log: Path
    control: Path

    def view(self) -> JobView | None:
        """The job in `supervisorctl status`; None if no supervisor answers."""
        try:
            body = self.operator.ctl("status", self.name)
        except CommandFailed:
            return None
        return codec.from_plain(ClusterStatus, body).jobs[0]

    def story(self) -> Explanation | None:
        """The output of `supervisorctl explain`; None if no supervisor answers."""
        try:
            return codec.from_plain(Explanation, self.operator.ctl("explain", self.name))
        except CommandFailed:
            return None

    def order(self, member: str, **what: object) -> None:
        """Tell a task (`worker-0`) to have a fault of its own, until `clear`."""
        self.control.mkdir(parents=True, exist_ok=True)
        fresh = self.control / f".{member}"
        fresh.write_text(json.dumps(what))
        fresh.replace(self.control / member)

    def clear(self) -> None:
        """No more orders."""
        for path in self.control.glob("*"):
            path.unlink(missing_ok=True)


@dataclass(slots=True)
class Scene:
    """The scene of a fault: its cluster, its job, and its random choices.

    `damages`: paths in the job's store, or prefixes of them, that faults have damaged. `known`: the job's
    tasks, as a supervisor last listed them.
    """

    cluster: Cluster
    job: Job
    random: random.Random
    damages: list[str] = field(default_factory=list)
    known: tuple[TaskView, ...] = ()

    def wait(self, what: str, look: Callable[[], T | None], within_s: float = 20.0) -> T:
        """The first answer of `look` that is not None; raises DidNotBite when there is none in time."""
        deadline = time.monotonic() + within_s
        while True:
            found = look()
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise DidNotBite(f"{what}: not within {within_s:g} s")
            time.sleep(LOOK_S)

    def nodes(self, prefix: str) -> list[Node]:
        """All nodes of a kind (`etcd-`, `sup-`, `node-`) that are up, by name."""
        found = [node for name, node in sorted(self.cluster.nodes.items()) if name.startswith(prefix)]
        return [node for node in found if node.on]

    def tasks(self, role: str = "") -> list[TaskView]:
        """The running tasks of the job, of one role or of all; as known last where no supervisor answers."""
        view = self.job.view()
        if view is not None:
            self.known = view.tasks
        return [each for each in self.known if each.state == "running" and role in ("", each.role)]

    def generation(self) -> int:
        """The job's, -1 where no supervisor answers."""
        view = self.job.view()
        return view.generation if view is not None else -1

    def task(self, member: str) -> TaskView:
        """A running task by its member name (`worker.0`); raises DidNotBite.

        Another fault, or the one before, may have ended it, and its next attempt is on its way.
        """

        def look() -> TaskView | None:
            return next((each for each in self.tasks() if f"{each.role}.{each.index}" == member), None)

        return self.wait(f"{member} runs", look, TASK_S)

    def task_on(self, node: str) -> TaskView:
        """A running task of a node, the evaluator excepted; raises DidNotBite."""

        def look() -> TaskView | None:
            return next(
                (each for each in self.tasks() if each.node == node and each.role != "evaluator"), None
            )

        return self.wait(f"a task of {node} runs", look, TASK_S)

    def successor(self, before: TaskView, within_s: float) -> TaskView:
        """The task's next attempt, once it runs; raises DidNotBite."""

        def look() -> TaskView | None:
            mine = (each for each in self.tasks(before.role) if each.task == before.task)
            return next((each for each in mine if each.pid != before.pid), None)

        return self.wait(f"a new attempt of {before.task}", look, within_s)

    def process(self, task: TaskView) -> Life:
        """The task's main process, by this machine's pid; raises DidNotBite."""
        pid = self.cluster.nodes[task.node].host_pid(task.pid)
        life = Life.of(pid) if pid is not None else None
        if life is None:
            raise DidNotBite(f"{task.task} has no process {task.pid} on {task.node}")
        return life

    def daemon(self, node: str, name: str) -> Life:
        """The process of a node's daemon; raises DidNotBite."""
        pid = self.cluster.nodes[node].daemons[name].pid
        life = Life.of(pid) if pid is not None else None
        if life is None:
            raise DidNotBite(f"{name} of {node} does not run")
        return life

    def gone(self, life: Life, within_s: float = 20.0) -> str:
        """Wait until the kernel has no such process any more; the evidence."""
        self.wait(f"the end of process {life.pid}", lambda: None if life.alive else True, within_s)
        return f"process {life.pid} is gone"

    def frozen(self, life: Life, within_s: float = 20.0) -> str:
        """Wait until the kernel says that a signal has stopped all of it; the evidence."""
        return self.wait(
            "a frozen process", lambda: f"process {life.pid}: T" if life.frozen else None, within_s
        )

    def members(self, *roles: str) -> list[str]:
        """Member names of the running tasks of these roles."""
        return [f"{each.role}.{each.index}" for each in self.tasks() if each.role in roles]


def send(life: Life, number: int) -> None:
    """A signal to exactly this process; raises DidNotBite when it is gone."""
    if not life.alive:
        raise DidNotBite(f"process {life.pid} is gone already")
    os.kill(life.pid, number)
