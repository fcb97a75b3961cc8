"""An embedded cluster as its users have it: `supervisorctl`, and SIGKILL.

Nothing here looks inside the daemons. The command line runs in this process, but for `local`: starting Python
for each word takes longer on a busy machine than some jobs live. A wait has a deadline that a busy machine
keeps, and fails early, with what `supervisorctl explain` and the tasks' output say, when the job has ended
before it got there.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import click
from ruamel.yaml import YAML

from chaos.container_image import IMAGE, USER_ID, site_packages
from chaos.dockerd import Dockerd
from supervisor.cli.main import cli
from supervisor.contract import codec
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.incident import Cause, Outcome
from supervisor.contract.views.jobs import ClusterStatus, Explanation, IncidentView, JobView

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
WAIT_S = 800.0
_POLL_S = 0.1
_LAYOUT = "from supervisor.cli.local import layout; layout"
_NOT_FAILURES = (Cause.SUBMITTED.value, Cause.OPERATOR.value)


class CtlError(TfSupervisorError):
    """`supervisorctl` ended with another exit code than expected."""

    def __init__(self, words: Sequence[str], code: int, said: str) -> None:
        super().__init__(f"supervisorctl {' '.join(words)}: exit code {code}: {said}")
        self.code = code


class NotAsPromised(TfSupervisorError):
    """A condition did not come about in time; the message tells the job's story."""


@dataclass(slots=True)
class Cluster:
    """`supervisorctl local up --state DIR`, as a context manager; `down` leaves nothing running.

    `options` are more words of `local up`; `env` is added to that of every job. `spares`: the launchers that
    each node keeps in reserve for each job, which import what the job's own do.
    """

    state: Path
    nodes: int = 3
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    spares: int = 1
    _names: set[str] = field(default_factory=set)

    def __enter__(self) -> Self:
        try:
            self.ctl("local", "up", "--nodes", str(self.nodes), *self.options)
        except BaseException:
            with suppress(CtlError):
                self.ctl("local", "down")
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ctl("local", "down")

    def ctl(self, *words: str) -> str:
        """The output of `supervisorctl WORDS`; raises CtlError unless it exits with 0."""
        words = (*words, "--state", str(self.state))
        if words[0] == "local":
            return self._local(words)
        out, said = io.StringIO(), io.StringIO()
        try:
            with redirect_stdout(out), redirect_stderr(said):
                code = cli.main(list(words), standalone_mode=False)
        except (click.ClickException, TfSupervisorError) as error:
            raise CtlError(words, error.exit_code, str(error)) from error
        if code:
            raise CtlError(words, int(code), (said.getvalue() or out.getvalue()).strip())
        return out.getvalue()

    def _local(self, words: Sequence[str]) -> str:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TFSUP_")}
        # Jobs say `python`, as in an activated venv.
        clean |= {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        program = f"{_LAYOUT}.SPARE_LAUNCHERS = {self.spares}; import tfsup; tfsup.supervisorctl()"
        command = [sys.executable, "-c", program, *words]
        done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=WAIT_S, check=False)
        if done.returncode != 0:
            raise CtlError(words, done.returncode, (done.stderr or done.stdout).strip())
        return done.stdout

    def document(self, *words: str) -> object:
        """The JSON document of `supervisorctl WORDS --output json`."""
        return json.loads(self.ctl(*words, "--output", "json"))

    def submit(
        self,
        file: Path,
        *,
        name: str | None = None,
        flags: Mapping[str, Sequence[str]] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Job:
        """Submit a job file under a name that is new to this cluster.

        Args:
            file: the job file.
            name: the job's name; by default the file's, with a number if it was used before.
            flags: words to append to the command of a role; key `""` is the job's own `command`.
            env: added to the job's `env`.
        """
        chosen = self._new_name(name or str(read_job(file)["name"]))
        # A copy of the program's directory, so that the changed file has its place beside the program.
        directory = self.state.parent / "jobs" / chosen
        shutil.copytree(file.parent, directory)
        document = read_job(file)
        for role, words in (flags or {}).items():
            _append(document, role, words)
        own_env = document.setdefault("env", {})
        assert isinstance(own_env, dict)
        own_env.update({**self.env, **(env or {})})
        changed = directory / file.name
        with changed.open("w") as out:
            YAML(typ="safe").dump(document, out)
        self.ctl("submit", str(changed), "--name", chosen)
        return Job(self, chosen)

    def stop_all(self) -> None:
        """Stop every job that has not ended, so that it takes nothing from the next."""
        jobs = codec.from_plain(ClusterStatus, self.document("status")).jobs
        for view in jobs:
            if not view.phase.ended:
                Job(self, view.name).stop()

    def _new_name(self, name: str) -> str:
        chosen, number = name, 1
        while chosen in self._names:
            number += 1
            chosen = f"{name}-{number}"
        self._names.add(chosen)
        return chosen


def in_containers(state: Path, dockerd: Dockerd, *writable: Path) -> Cluster:
    """A cluster with every task in a container: TensorFlow is there, the programs of jobs, these directories.

    `state` has a directory of its own to be in.
    """
    jobs = state.parent / "jobs"
    jobs.mkdir()
    for directory in writable:
        os.chown(directory, USER_ID, USER_ID)
    mounts = (str(site_packages()), str(jobs), *(f"{directory}:rw" for directory in writable))
    options = (
        # On a machine of two cores its containers outweigh the daemons.
        *("--profile", "default"),
        *("--runtime", "docker", "--socket", str(dockerd.socket), "--image", IMAGE),
        *(word for mount in mounts for word in ("--mount", mount)),
    )
    return Cluster(state, options=options, env={"PYTHONPATH": str(site_packages())})


@dataclass(frozen=True, slots=True)
class Kill:
    """A SIGKILL of one task: the process, the incidents known before, and when (CLOCK_MONOTONIC)."""

    role: str
    index: int
    pid: int
    known: frozenset[str]
    at_ns: int


@dataclass(frozen=True, slots=True)
class Job:
    """One job of the cluster."""

    cluster: Cluster
    name: str

    def view(self) -> JobView:
        """As `supervisorctl status JOB` has it."""
        body = self.cluster.document("status", self.name)
        return codec.from_plain(ClusterStatus, body).jobs[0]

    def explain(self) -> Explanation:
        """As `supervisorctl explain JOB` has it."""
        return codec.from_plain(Explanation, self.cluster.document("explain", self.name))

    def incidents(self) -> tuple[IncidentView, ...]:
        """Its failures, oldest first; starts that somebody asked for are none."""
        found = [entry for entry in self.explain().incidents if entry.cause not in _NOT_FAILURES]
        return tuple(sorted(found, key=lambda entry: entry.wall_ms))

    def wait(self, goal: str) -> None:
        """`supervisorctl wait --for GOAL`; raises NotAsPromised."""
        try:
            self.cluster.ctl("wait", self.name, "--for", goal, "--timeout", str(WAIT_S))
        except CtlError as error:
            raise NotAsPromised(f"{error}\n{self.story()}") from error

    def wait_step(self, step: int) -> None:
        """Until the job has reached this step and still goes on."""
        self.wait(f"step={step}")

    def kill(self, role: str, index: int = 0) -> Kill:
        """SIGKILL the process that `status` names, once every task of the job runs."""
        self.wait("running")
        known = frozenset(entry.id for entry in self.incidents())
        view = self.view()
        task = next(task for task in view.tasks if (task.role, task.index) == (role, index))
        if task.state == "running" and task.pid > 0 and not view.phase.ended:
            with suppress(ProcessLookupError):
                at_ns = time.monotonic_ns()
                os.kill(task.pid, signal.SIGKILL)
                return Kill(role, index, task.pid, known, at_ns)
        raise NotAsPromised(f"{role}:{index} does not run when it is to be killed\n{self.story()}")

    def recovered(self, kill: Kill) -> IncidentView:
        """The one incident that a kill became, when it is over; raises NotAsPromised.

        `over` is: training went on. A server that nothing can be read from is over with its first beat.
        """
        deadline = time.monotonic() + WAIT_S
        while True:
            explanation = self.explain()
            fresh = [entry for entry in explanation.incidents if entry.id not in kill.known]
            fresh = [entry for entry in fresh if entry.cause not in _NOT_FAILURES]
            if len(fresh) > 1:
                raise NotAsPromised(f"one kill became {len(fresh)} incidents\n{self.story()}")
            if fresh and fresh[0].outcome is not Outcome.OPEN:
                return fresh[0]
            if time.monotonic() > deadline or explanation.job.phase.ended:
                raise NotAsPromised(f"no recovery from the kill of {kill.role}:{kill.index}\n{self.story()}")
            time.sleep(_POLL_S)

    def result(self) -> JobView:
        """Wait for success; raises NotAsPromised when the job ends otherwise."""
        self.wait("succeeded")
        return self.view()

    def ended(self) -> JobView:
        """Wait for the job's end, however it ends."""
        self.wait("ended")
        return self.view()

    def stop(self) -> JobView:
        """`supervisorctl stop`, and wait until it has stopped."""
        self.cluster.ctl("stop", self.name)
        return self.ended()

    def output(self, role: str, index: int = 0) -> str:
        """The output of the newest attempt of a task."""
        return self.cluster.ctl("tail", f"{self.name}/{role}:{index}", "--bytes", str(1 << 20))

    def printed(self, pattern: str, role: str, index: int = 0) -> str:
        """Group 1 of the last line of a task's output that matches; raises NotAsPromised without one."""
        output = self.output(role, index)
        found = re.findall(pattern, output, re.MULTILINE)
        if not found:
            raise NotAsPromised(f"{role}:{index} did not print {pattern!r}:\n{output[-2000:]}")
        return str(found[-1])

    def story(self) -> str:
        """The output of `explain`, and the end of each task's output."""
        parts = [self.cluster.ctl("explain", self.name)]
        for task in self.view().tasks:
            try:
                output = self.output(task.role, task.index)
            except CtlError as error:
                output = str(error)
            parts.append(f"--- {task.task} ---\n{output[-1500:]}")
        return "\n".join(parts)


def read_job(file: Path) -> dict[str, object]:
    """A job file, parsed and not checked."""
    document = YAML(typ="safe").load(file.read_text())
    assert isinstance(document, dict)
    return document


def _append(document: dict[str, object], role: str, words: Sequence[str]) -> None:
    owner: object = document
    if role:
        roles = document["roles"]
        assert isinstance(roles, dict)
        owner = roles[role]
    assert isinstance(owner, dict)
    owner["command"] = [*owner["command"], *words]
