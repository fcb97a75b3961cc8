"""The health of a job, by its own step log, the kernel, and the product's answers to an operator."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from chaos import processes
from chaos.cluster import CommandFailed
from chaos.faults.kernel import now_ms
from chaos.faults.scene import TRAINERS, Scene
from chaos.runner.steps import StepLog
from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.desired import JobPhase
from supervisor.contract.incident import Outcome
from supervisor.contract.views.jobs import JobView

ENOUGH_STEPS = 3
GONE, STOPPED, RUNS = "does not run", "stands still", "runs"
LOOK_S = 0.1


@dataclass(slots=True)
class Health:
    """Looks at one job of a cluster."""

    scene: Scene
    log: StepLog

    def ill(self, since_ms: float, commit: CheckpointRef | None) -> str:
        """Why the job is not healthy; empty when it is.

        Healthy: every daemon runs and none stands still, every node is ready, every task runs, no incident is
        open, each trainer's present attempt has stepped after `since_ms`, something newer than `commit` is
        committed.
        """
        states = [(self._state(node, daemon), f"{daemon} of {node}") for node, daemon in self._daemons()]
        for state in (GONE, STOPPED):
            if found := [name for each, name in states if each == state]:
                return f"{state}: {', '.join(found)}"
        view = self.scene.job.view()
        if view is None:
            return "no supervisor answers"
        return self._ill_job(view, since_ms, commit) or self._ill_nodes() or self._open_incident()

    def _ill_job(self, view: JobView, since_ms: float, commit: CheckpointRef | None) -> str:
        if view.phase is not JobPhase.RUNNING:
            return f"the job is {view.phase.value}: {view.reason or view.waiting_for}"
        if view.paused:
            return f"the job is held: {view.paused}"
        idle = [f"{task.task} is {task.state}" for task in view.tasks if task.state != "running"]
        if idle or not view.tasks:
            return ", ".join(idle) or "the job has no tasks"
        self.log.read()
        for task in view.tasks:
            name = f"{task.role}:{task.index}"
            attempt = f"{task.task}@{view.generation}.{task.attempt}"
            if task.role in TRAINERS and self.log.since(since_ms, name, attempt) < ENOUGH_STEPS:
                return f"{attempt} has not stepped {ENOUGH_STEPS} times"
        newest = view.newest_commit
        if newest is None or (commit is not None and newest <= commit):
            return f"nothing newer than {commit} is committed"
        return ""

    def _ill_nodes(self) -> str:
        try:
            body = self.scene.job.operator.ctl("nodes")
        except CommandFailed as error:
            return str(error)
        assert isinstance(body, dict)
        bad = [f"{each['node']} is {each['state']}" for each in body["nodes"] if each["state"] != "ready"]
        return ", ".join(bad)

    def _open_incident(self) -> str:
        story = self.scene.job.story()
        if story is None:
            return "no supervisor explains"
        open_ones = [each.id for each in story.incidents if each.outcome is Outcome.OPEN]
        return f"open incidents: {', '.join(open_ones)}" if open_ones else ""

    def _daemons(self) -> list[tuple[str, str]]:
        nodes = sorted(self.scene.cluster.nodes.items())
        return [(name, daemon) for name, node in nodes for daemon in node.daemons]

    def _state(self, node: str, daemon: str) -> str:
        try:
            pid = self.scene.cluster.nodes[node].daemons[daemon].pid
        except OSError:
            return GONE  # its node does not answer
        if pid is None:
            return GONE
        return STOPPED if processes.state(Path("/proc", str(pid))) in "Tt" else RUNS

    def wait(self, since_ms: float, commit: CheckpointRef | None, within_s: float) -> str:
        """Wait until the job is healthy; returns the reason if it is not in time, else empty."""
        deadline = time.monotonic() + within_s
        while why := self.ill(since_ms, commit):
            if time.monotonic() > deadline:
                return why
            time.sleep(LOOK_S)
        return ""

    def wait_end(self, phases: frozenset[str], within_s: float) -> str:
        """Wait until the job is in one of these phases; returns the reason if it is not, else empty."""
        deadline = time.monotonic() + within_s
        while True:
            view = self.scene.job.view()
            if view is not None and view.phase.value in phases:
                return ""
            if time.monotonic() > deadline:
                return f"the job is {view.phase.value if view is not None else 'not to be seen'}"
            time.sleep(LOOK_S)

    def mark(self) -> tuple[float, CheckpointRef | None]:
        """Now, and what is committed now: what `wait` is to be told after a heal."""
        view = self.scene.job.view()
        return now_ms(), view.newest_commit if view is not None else None
