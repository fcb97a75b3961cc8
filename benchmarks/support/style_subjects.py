"""Every style of training with its program from `examples/`, supervised and in plain shell loops."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from benchmarks.support.outputs import Outputs
from benchmarks.support.subjects import free_addresses
from examples.demo import kernel
from examples.demo.watch import PromiseBroken
from recovery.policy.scope import scope_of
from supervisor.adapters.files.jobfile import load_job_file
from supervisor.api.client import ControlClient
from supervisor.cli.local.layout import Layout
from supervisor.contract.desired import ClusterSpec, JobPhase, RoleAddresses
from supervisor.contract.ids import TaskId
from supervisor.contract.incident import Cause, Outcome
from supervisor.contract.job.placeholders import fill
from supervisor.contract.job.spec import JobSpec, Scope
from supervisor.contract.job.tf_config import placeholder_values, tf_config
from supervisor.contract.views.jobs import IncidentView, JobView, SubmitRequest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ENDLESS = "100000000"
SHORT_PAUSE = ("--steps", ENDLESS, "--pause-ms", "10")
STOPPED_S = 60.0
_BETWEEN_LOOKS_S = 0.1


@dataclass(frozen=True, slots=True)
class Style:
    """One style.

    Attributes:
        job: the job file, below `examples/`.
        victims: the tasks that are killed, as `ROLE:INDEX`.
        trainers: the tasks that print steps.
        flags: appended to the command of a role (`""`: of every role), so that it trains for ever.
        env: added to the job's.
        advance: lines with a step of each trainer before a kill; enough for a save.
    """

    job: str
    victims: tuple[str, ...]
    trainers: tuple[str, ...]
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    advance: int = 60

    def spec(self, name: str, checkpoint_base: str) -> JobSpec:
        """The job with these flags."""
        spec = load_job_file(EXAMPLES / self.job, checkpoint_base=checkpoint_base, name=name).spec
        roles = tuple(
            replace(role, command=(*role.command, *self.flags.get("", ()), *self.flags.get(role.name, ())))
            for role in spec.roles
        )
        return replace(spec, roles=roles, env={**spec.env, **self.env})


REPLICAS = ("chief:0", "worker:0", "worker:1")

STYLES: dict[str, Style] = {
    "zcalc": Style("zcalc/job.yaml", ("server:0", "client:0"), ("client:0",), {"client": SHORT_PAUSE}),
    "mapreduce": Style(
        "mapreduce/job.yaml",
        ("mapper:1", "client:0"),
        ("client:0",),
        # The images are cut into so many batches: enough for ten minutes, few enough to cut at once.
        {"client": ("--steps", "20000", "--pause-ms", "30")},
    ),
    "digits_async": Style(
        "digits_async/job.yaml",
        ("worker:1", "ps:0"),
        REPLICAS,
        {"": ("--steps", ENDLESS, "--step-delay-ms", "10", "--save-steps", "100", "--print-every", "1")},
    ),
    "digits_flags": Style(
        "digits_flags/job.yaml", ("worker:1", "ps:0"), ("worker:0", "worker:1"), {"": SHORT_PAUSE}
    ),
    "digits_sync": Style("digits_sync/job.yaml", ("worker:1", "ps:0"), REPLICAS, {"": SHORT_PAUSE}),
    "digits_coordinator": Style(
        "digits_coordinator/job.yaml",
        ("worker:1", "ps:0", "chief:0"),
        ("chief:0",),
        {"": SHORT_PAUSE},
        advance=10,
    ),
    "digits_coordinator_fit": Style(
        "digits_coordinator/fit.yaml",
        ("worker:1", "ps:0", "chief:0"),
        ("chief:0",),
        {"": SHORT_PAUSE},
        advance=10,
    ),
    "digits_multiworker": Style(
        "digits_multiworker/job.yaml", ("worker:1",), ("worker:0", "worker:1"), {"": SHORT_PAUSE}
    ),
    "digits_multiworker_fit": Style(
        "digits_multiworker/fit.yaml", ("worker:1",), ("worker:0", "worker:1"), {"": SHORT_PAUSE}
    ),
    "digits_keras": Style("digits_keras/job.yaml", ("worker:0",), ("worker:0",), {"": SHORT_PAUSE}),
    "data_service": Style("data_service/job.yaml", ("worker:0",), ("worker:0",), {"worker": SHORT_PAUSE}),
    "plain": Style("plain/job.yaml", ("worker:0",), ("worker:0",), env={"STEPS": ENDLESS, "PAUSE": "0.01"}),
}


class Subject(Protocol):
    """A job of a style whose tasks can be killed."""

    outputs: Outputs

    async def pid_of(self, task: str) -> int:
        """Its process; 0 while there is none, or something is known to be recovering."""

    def renewed(self, victim: str) -> frozenset[str]:
        """The tasks that certainly get new processes when this one is killed."""

    async def incident(self) -> IncidentView | None:
        """The system's incident of the last kill, if it is over."""

    async def close(self) -> None:
        """End the job; nothing of it runs any more."""


class Supervised:
    """A job of an embedded cluster."""

    def __init__(self, client: ControlClient, layout: Layout, spec: JobSpec, uuid: str) -> None:
        self.outputs = Outputs(layout.state, f"agent-*/attempts/{uuid}/*/output.log")
        self._client = client
        self._spec = spec
        self._told: set[str] = set()

    @classmethod
    async def start(cls, client: ControlClient, layout: Layout, style: Style, name: str) -> Supervised:
        """Submit it; raises TfSupervisorError."""
        spec = style.spec(name, layout.checkpoint_base)
        await client.submit(SubmitRequest(spec))
        return cls(client, layout, spec, (await _view(client, name)).uuid)

    async def pid_of(self, task: str) -> int:
        """As the supervisor says, once all tasks run and no incident is open."""
        explained = await self._client.explain(self._spec.name)
        view = await _view(self._client, self._spec.name)
        if view.phase.ended:
            raise PromiseBroken(f"{view.name} has {view.phase.value}: {view.reason}")
        healthy = view.phase is JobPhase.RUNNING and all(
            entry.state == "running" and entry.pid > 0 for entry in view.tasks
        )
        if not healthy or any(incident.outcome is Outcome.OPEN for incident in explained.incidents):
            return 0
        return next(entry.pid for entry in view.tasks if f"{entry.role}:{entry.index}" == task)

    def renewed(self, victim: str) -> frozenset[str]:
        """By the table of docs/strategies.md."""
        scope, _ = scope_of(self._spec, TaskId.parse(f"{self._spec.name}/{victim}"))
        if scope is Scope.TASK:
            return frozenset({victim})
        return frozenset(f"{task.role}:{task.index}" for task in self._spec.tasks())

    async def incident(self) -> IncidentView | None:
        """The newest one that has not been told yet."""
        fresh = [
            entry
            for entry in (await self._client.explain(self._spec.name)).incidents
            if entry.id not in self._told
            and entry.outcome is Outcome.RECOVERED
            and entry.cause != Cause.SUBMITTED.value
        ]
        self._told |= {entry.id for entry in fresh}
        return max(fresh, key=lambda entry: entry.wall_ms, default=None)

    async def close(self) -> None:
        """Stop it and wait until it has stopped; raises PromiseBroken when it does not."""
        self.outputs.close()
        view = await _view(self._client, self._spec.name)
        if not view.phase.ended:
            await self._client.stop(self._spec.name)
        deadline = time.monotonic() + STOPPED_S
        while not (await _view(self._client, self._spec.name)).phase.ended:
            if time.monotonic() > deadline:
                raise PromiseBroken(f"{self._spec.name} did not stop within {STOPPED_S:g} s")
            await asyncio.sleep(_BETWEEN_LOOKS_S)


async def _view(client: ControlClient, name: str) -> JobView:
    return next(job for job in (await client.status(name)).jobs if job.name == name)


class ShellLoops:
    """`while true; do PROGRAM; done` around each task: fixed loopback ports, one checkpoint directory."""

    def __init__(self, directory: Path, style: Style, name: str) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        (directory / "runs").mkdir(parents=True)
        (directory / "checkpoints").mkdir()
        self.outputs = Outputs(directory / "runs", "*.log")
        self._checkpoints = str(directory / "checkpoints")
        self._spec = style.spec(name, self._checkpoints)
        self._loops: dict[str, subprocess.Popen[bytes]] = {}
        cluster = _addresses(self._spec)
        try:
            for task in self._spec.tasks():
                self._loops[f"{task.role}:{task.index}"] = self._loop(task, cluster)
        except BaseException:
            self._kill()
            raise

    async def pid_of(self, task: str) -> int:
        """The child that the loop runs now."""
        root = self._loops[task].pid
        return next((ref.pid for ref in kernel.family(root) if ref.pid != root), 0)

    def renewed(self, victim: str) -> frozenset[str]:
        """The killed one; whether others end by themselves is seen."""
        return frozenset({victim})

    async def incident(self) -> None:
        """A loop knows nothing."""

    async def close(self) -> None:
        """Kill loops and tasks."""
        self._kill()

    def _kill(self) -> None:
        self.outputs.close()
        for loop in self._loops.values():
            os.killpg(loop.pid, signal.SIGKILL)
        for loop in self._loops.values():
            loop.wait()

    def _loop(self, task: TaskId, cluster: ClusterSpec) -> subprocess.Popen[bytes]:
        role = self._spec.role(task.role)
        values = placeholder_values(cluster, task, self._checkpoints, self._spec.protocol)
        command = tuple(fill(word, values) for word in role.command)
        command = (sys.executable, *command[1:]) if command[0] == "python" else command
        script = 'log=$1; shift; n=0; while true; do n=$((n+1)); "$@" >"$log-$n.log" 2>&1; done'
        return subprocess.Popen(
            ["/bin/sh", "-c", script, "loop", str(self.outputs.directory / task.member), *command],
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("TFSUP_")},
                **self._spec.env,
                **role.env,
                "CHECKPOINT_DIR": self._checkpoints,
                "TF_CONFIG": tf_config(cluster, task),
            },
            cwd=self._spec.workdir,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _addresses(spec: JobSpec) -> ClusterSpec:
    free = iter(free_addresses(len(spec.tasks())))
    roles = {
        role.name: RoleAddresses(role.name, tuple(next(free) for _ in range(role.count)))
        for role in spec.roles
    }
    return ClusterSpec(
        job=spec.name,
        generation=1,
        plan_id="",
        roles=tuple(roles[role.name] for role in spec.roles if not role.outside),
        outside=tuple(roles[role.name] for role in spec.roles if role.outside),
    )
