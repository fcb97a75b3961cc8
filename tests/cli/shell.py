"""`supervisorctl` as its users run it: in a directory, and on a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from supervisor.cli.local.cluster import LocalCluster

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """The variables of a user who has set none of the program's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TFSUP_")}
    return kept | {"PYTHONPATH": str(ROOT)}


def ctl(directory: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the real program in a directory of its own."""
    return subprocess.run(
        [sys.executable, "-m", "supervisor.cli.main", *arguments],
        cwd=directory,
        env=environment() | env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def completed(directory: Path, words: str) -> list[str]:
    """The completions of the last of these words, which begin with the name of the program."""
    asking = {
        "_SUPERVISORCTL_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = subprocess.run(
        [Path(sys.executable).with_name("supervisorctl")],
        cwd=directory,
        env=environment() | asking,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return [line.removeprefix("plain,") for line in done.stdout.splitlines() if line]


class Shell:
    """`supervisorctl` on one cluster.

    Attributes:
        patience_s: how long a command may take.
    """

    patience_s = 60

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.argv = [sys.executable, "-m", "supervisor.cli.main", "--state", str(cluster.layout.state)]
        self.env = environment()

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = self._run(*arguments)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def works(self, *arguments: str) -> bool:
        """Whether the command succeeds by now."""
        return self._run(*arguments).returncode == 0

    def json(self, *arguments: str, code: int = 0) -> dict[str, object]:
        found = json.loads(self("--output", "json", *arguments, code=code).stdout)
        assert isinstance(found, dict)
        return found

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.argv, *arguments],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=self.patience_s,
            check=False,
        )
