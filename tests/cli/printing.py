"""A job whose program counts and prints, and `supervisorctl` on the cluster that runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from supervisor.cli.local.cluster import LocalCluster
from tests.cli.shell import Shell
from tests.support.waiting import wait_until

# Counts on from the attempt before, so that a gap in what `tail -f` shows is seen.
PROGRAM = """
import os, pathlib, signal, sys, time
here = pathlib.Path("count")
n = int(here.read_text()) if here.exists() else 0
print("secret is", len(os.environ["SECRET"]), flush=True)
while True:
    n += 1
    print("line", n, flush=True)
    pathlib.Path("new").write_text(str(n))
    os.replace("new", here)
    time.sleep(0.02)
"""
JOB = """
name: count
strategy: plain
command: [{python}, count.py]
preload: []
env: {{SECRET: "no-one-may-see-this"}}
restart: {{max: 50, backoff: 10ms, backoff_max: 20ms}}
roles: {{worker: {{count: 1}}}}
"""
TASK = "count/worker:0"


class PrintingShell(Shell):
    """The shell of an operator whose cluster runs the job that prints."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(cluster)
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
        self.started.append(subprocess.Popen([*self.argv, *arguments], env=self.env, stdout=out, stderr=err))
        return self.started[-1]

    def leader(self) -> str:
        supervisors = self.json("status")["supervisors"]
        assert isinstance(supervisors, list)
        return str(supervisors[0]["supervisor"])

    def job(self) -> dict[str, object]:
        jobs = self.json("status", "count")["jobs"]
        assert isinstance(jobs, list)
        assert isinstance(jobs[0], dict)
        return jobs[0]

    def task(self) -> dict[str, object]:
        tasks = self.job()["tasks"]
        assert isinstance(tasks, list)
        found = tasks[0]
        assert isinstance(found, dict)
        return found

    def answers(self) -> bool:
        """Whether the agent of the task is there, which it is not for a moment after its death."""
        return self.works("exec", TASK, "--", "true")

    def attempt_pid(self) -> int:
        task = self.task()
        return int(str(task["pid"])) if task["state"] == "running" else 0

    def running_pid(self) -> int:
        """That of the task's process, once it runs."""
        found: list[int] = []

        def runs() -> bool:
            found.append(self.attempt_pid())
            return found[-1] > 0

        wait_until(runs, "the task runs")
        return found[-1]

    def killed(self) -> None:
        """Kill the task's process, and wait for the next one."""
        before = self.running_pid()
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: self.attempt_pid() not in (0, before), "it runs again")


@contextmanager
def printing(directory: Path, *, nodes: int, supervisors: int = 1) -> Iterator[PrintingShell]:
    """An embedded cluster on which the job prints."""
    with LocalCluster(directory / "state", nodes=nodes, supervisors=supervisors) as cluster:
        shell = PrintingShell(cluster)
        (directory / "count.py").write_text(PROGRAM)
        (directory / "job.yaml").write_text(JOB.format(python=sys.executable))
        shell("submit", str(directory / "job.yaml"))
        shell.running_pid()
        yield shell
        for process in shell.started:
            process.kill()
            process.wait()
