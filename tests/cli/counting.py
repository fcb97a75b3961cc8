"""A program that saves, and `supervisorctl` on a cluster that runs it: for tests of what operators do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.codec import from_plain
from supervisor.contract.views.jobs import CheckpointList, CheckpointView

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0
# Saves what TensorFlow would, a step every 20 ms, and a checkpoint every 50 steps.
PROGRAM = """
import os, pathlib, re, sys, time
from chaos.bundles import bundle, plain
here = pathlib.Path(os.environ["CHECKPOINT_DIR"])
state = here / "checkpoint"
found = re.search(r'"model.ckpt-(\\d+)"', state.read_text()) if state.exists() else None
step = int(found[1]) if found else 0
print("began at", step, flush=True)
while True:
    step += 1
    print("step", step, flush=True)
    if step % 50 == 0:
        prefix = f"model.ckpt-{step}"
        weights = plain(1, [1000], b"%04d" % (step % 10000) * 1000)
        for name, data in bundle(prefix, [{b"w": weights, b"x": plain(1, [1], b"abcd")}]).items():
            (here / "new").write_bytes(data)
            os.replace(here / "new", here / name)
        (here / "new").write_text(f'model_checkpoint_path: "{prefix}"\\n')
        os.replace(here / "new", state)
    time.sleep(0.02)
"""
JOB = """
name: count
strategy: plain
command: [{python}, count.py]
preload: []
env: {{PYTHONPATH: {root}}}
roles: {{worker: {{count: 1}}}}
checkpoint: {{keep: 3, verify: size{uri}}}
"""


class Shell:
    """`supervisorctl` on one cluster."""

    def __init__(self, cluster: LocalCluster, directory: Path, uri: str = "") -> None:
        self.cluster = cluster
        self.directory = directory
        self.job = directory / "job.yaml"
        self.argv = [sys.executable, "-m", "supervisor.cli.main", "--state", str(cluster.layout.state)]
        (directory / "count.py").write_text(PROGRAM)
        where = f", uri: '{uri}'" if uri else ""
        self.job.write_text(JOB.format(python=sys.executable, root=ROOT, uri=where))
        self.env = {n: v for n, v in os.environ.items() if not n.startswith("TFSUP_")} | {
            "PYTHONPATH": str(ROOT)
        }

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = self._run(*arguments)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def works(self, *arguments: str) -> bool:
        """Whether it can be done by now."""
        return self._run(*arguments).returncode == 0

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.argv, *arguments], env=self.env, capture_output=True, text=True, timeout=60, check=False
        )

    def json(self, *arguments: str, code: int = 0) -> dict[str, object]:
        found = json.loads(self(*arguments, "--output", "json", code=code).stdout)
        assert isinstance(found, dict)
        return found

    def list(self) -> tuple[CheckpointView, ...]:
        return from_plain(CheckpointList, self.json("checkpoints", "count")).checkpoints

    def stored(self, ref: str) -> Path:
        """Where the store has a checkpoint's files."""
        (entry,) = [each for each in self.list() if str(each.ref) == ref]
        return self.cluster.layout.state / "checkpoints" / "count" / entry.path

    def run_until_saved(self, count: int) -> None:
        self("wait", "count", "--for", "running", "--timeout", "60")
        until(lambda: len(self.list()) >= count, "checkpoints")

    def stop(self) -> None:
        self("stop", "count")
        self("wait", "count", "--for", "ended", "--timeout", "60")

    def lose_etcd(self) -> None:
        """All that etcd held is gone; the cluster comes up again without it."""
        self.cluster.down()
        shutil.rmtree(self.cluster.layout.state / "etcd")
        self.cluster.up()

    def base(self) -> str:
        """What the running generation began from."""
        jobs = self.json("status", "count")["jobs"]
        assert isinstance(jobs, list)
        base = jobs[0]["base"]
        return f"g{base['generation']}-s{base['step']}" if base else ""


def until(condition: Callable[[], bool], what: str = "") -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
