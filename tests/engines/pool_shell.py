"""`supervisorctl` about the pool `p` of an engine, and the job that trains there."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Self

import psutil
import pytest
from click.testing import CliRunner

from supervisor.cli.local.cluster import LocalCluster
from supervisor.cli.main import cli
from supervisor.cli.pool import commands
from supervisor.contract.codec import from_plain
from supervisor.contract.views.jobs import ClusterStatus, JobView
from supervisor.engines.engine import Engine
from supervisor.engines.slurm import Slurm
from supervisor.engines.yarn.yarn import Yarn
from tests.cli.shell import ROOT, Shell

LONG_S = 360
JOB = f"""
name: digits
command: [{sys.executable}, train.py, --steps, "1000000", --step-delay-ms, "5"]
strategy: async
code: {{dir: {ROOT}/examples/digits_async}}
roles:
  chief: {{count: 1}}
  ps: {{count: 1}}
  worker: {{count: 2}}
preload: [tensorflow.compat.v1, sklearn.datasets, sklearn.model_selection]
env: {{TF_CPP_MIN_LOG_LEVEL: "2", TF_ENABLE_ONEDNN_OPTS: "0"}}
"""


class PoolShell(Shell):
    """`supervisorctl` where an engine's commands are.

    A command that changes something is a program of its own. One that only asks runs in this process, with
    one client of the engine: a Python and a JVM for each look would take the processors from the training.

    Attributes:
        patience_s: `pool up` on YARN compiles its client and starts several JVMs.
        on: the engine.
        environment: the variables by which its commands find it.
    """

    patience_s = LONG_S

    def __init__(self, cluster: LocalCluster, on: str, environment: Mapping[str, str]) -> None:
        super().__init__(cluster)
        self.on = on
        self.env = {**self.env, **environment}

    @contextmanager
    def alone(self) -> Iterator[Self]:
        """All tasks are for the pool, which ends with the block: the cluster's own node takes none."""
        self("cordon", "node-0", "--reason", "training is for the pool")
        try:
            yield self
        finally:
            self.works("pool", "down", "p", "--now")

    def json(self, *arguments: str, code: int = 0) -> dict[str, object]:
        words = [*self.argv[3:], *self._named(("--output", "json", *arguments))]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(commands, "_engine", lambda _on: self._engine)
            done = CliRunner().invoke(cli, words, env=self.env)
        assert done.exit_code == code, (done.exit_code, done.output, done.exception)
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def agents(self) -> dict[str, dict[str, object]]:
        """The live agents of the pool by their places; waiting ones by their ids."""
        rows = self.json("pool", "status", "p")["agents"]
        assert isinstance(rows, list)
        live = [row for row in rows if row["agent"]["state"] in ("running", "waiting", "leaving")]
        return {row["agent"]["place"] or row["agent"]["id"]: row for row in live}

    def ready(self) -> set[str]:
        return {
            place
            for place, row in self.agents().items()
            if isinstance(row["node"], dict) and row["node"]["state"] == "ready"
        }

    def view(self, job: str) -> JobView:
        """A job as the cluster sees it."""
        return from_plain(ClusterStatus, self.json("status", job)).jobs[0]

    def runs(self, job: str) -> bool:
        """Whether there is such a job, and all of its tasks run."""
        if not self.works("status", job):
            return False
        tasks = self.view(job).tasks
        return bool(tasks) and all(each.state == "running" for each in tasks)

    def job(self) -> dict[str, object]:
        jobs = self.json("status", "digits")["jobs"]
        assert isinstance(jobs, list)
        return dict(jobs[0])

    def tasks(self) -> dict[str, dict[str, object]]:
        found = self.job()["tasks"]
        assert isinstance(found, list)
        return {str(each["task"]).partition("/")[2]: each for each in found}

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """As `wait_long`."""
        wait_long(condition, what)

    def trains_on(self, what: str) -> None:
        """Wait until every task runs and new steps are made."""
        self.wait(
            lambda: all(each["state"] == "running" for each in self.tasks().values()), f"{what}: all run"
        )
        step = int(str(self.job()["step"]))
        self.wait(lambda: int(str(self.job()["step"])) > step + 20, f"{what}: new steps")

    def recoveries(self) -> int:
        """How many times the job has recovered."""
        job = self.job()
        return int(str(job["restarts_infrastructure"])) + int(str(job["restarts_program"]))

    def survives(self, what: str, harm: Callable[[], object]) -> None:
        """Do harm, and wait until the job has recovered and makes new steps."""
        before = self.recoveries()
        harm()
        self.wait(lambda: self.recoveries() > before, f"{what}: it is seen")
        self.trains_on(what)

    def moved(self, job: str) -> dict[str, object]:
        """The newest move of a job from a node that was drained."""
        found = self.json("explain", job)["incidents"]
        assert isinstance(found, list)
        return dict(
            max((each for each in found if each["cause"] == "drained"), key=lambda each: each["wall_ms"])
        )

    @staticmethod
    def base_of(incident: dict[str, object]) -> int:
        """The step that a restart went back to."""
        base = incident["base"]
        assert isinstance(base, dict)
        return int(base["step"])

    def ident(self, place: str) -> str:
        """The engine's name of the agent at a place."""
        agent = self.agents()[place]["agent"]
        assert isinstance(agent, dict)
        return str(agent["id"])

    @cached_property
    def _engine(self) -> Engine:
        if self.on == "slurm":
            return Slurm(self.env)
        found = Yarn(self.env)
        weakref.finalize(self, found.close)
        return found

    def _named(self, arguments: Sequence[str]) -> list[str]:
        """The words of a command, which names the engine if it is about pools."""
        words = list(arguments)
        if "pool" in words:
            after_verb = words.index("pool") + 2
            words[after_verb:after_verb] = ["--on", self.on]
        return words

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return super()._run(*self._named(arguments))


def ours(directory: Path) -> list[str]:
    """The keepers and agents of the pool that are there, and what they have started."""
    marks = (f"{directory}/state/pool/", "supervisor.engines.keeper")
    lines = (" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))
    return [line for line in lines if str(directory) in line and any(mark in line for mark in marks)]


def wait_long(condition: Callable[[], bool], what: str) -> None:
    """Wait for what may take minutes: Slurm looks at time limits once a minute, and machines are busy.

    Looks are soon seldom: each asks an engine, which has to start agents meanwhile.
    """
    deadline, pause_s = time.monotonic() + LONG_S, 0.02
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.5)
