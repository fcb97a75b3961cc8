"""A client of an attacked cluster, as a process on the operator's machine (`client.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from chaos.cluster import Cluster
from chaos.cluster.program import REPOSITORY
from supervisor.contract import codec
from supervisor.contract.views.jobs import ClusterStatus, JobView


class AttackFailed(AssertionError):
    """The harness cannot make or judge an attack; the text says why."""


class Shell:
    """A client on the operator's machine (`client.py`)."""

    def __init__(self, cluster: Cluster, config: Path) -> None:
        command = cluster.at_operator(sys.executable, "-m", "tests.attacks.client", str(config))
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
        )

    def ask(self, **request: object) -> tuple[int, str]:
        """Exit code and output of `words`, or of `calls` with a `site`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise AttackFailed(f"the client has ended with {self._process.wait()} at {str(request)[:200]}")
        answer = json.loads(line)
        return int(answer["code"]), str(answer["said"])

    def ctl(self, *words: str) -> str:
        """The output of `supervisorctl WORDS`. Raises AttackFailed unless it exits with 0."""
        code, said = self.ask(words=words)
        if code:
            raise AttackFailed(f"supervisorctl {' '.join(words)}: exit code {code}: {said}")
        return said

    def view(self, job: str) -> JobView:
        """A job, as `status` has it."""
        return codec.from_plain(ClusterStatus, json.loads(self.ctl("status", job, "--output", "json"))).jobs[
            0
        ]

    def close(self) -> None:
        """End it."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait()
