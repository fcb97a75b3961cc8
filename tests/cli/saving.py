"""A program that saves, and `supervisorctl` on a cluster that runs it: for tests of what operators do."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from supervisor.cli.local.cluster import LocalCluster
from supervisor.contract.codec import from_plain
from supervisor.contract.views.jobs import CheckpointList, CheckpointView, ClusterStatus, JobView
from tests.cli.shell import ROOT, Shell
from tests.support.waiting import wait_until

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


class SavingShell(Shell):
    """The shell of an operator whose cluster runs the job that saves."""

    def __init__(self, cluster: LocalCluster, directory: Path, uri: str = "") -> None:
        super().__init__(cluster)
        self.directory = directory
        self.job = directory / "job.yaml"
        (directory / "count.py").write_text(PROGRAM)
        where = f", uri: '{uri}'" if uri else ""
        self.job.write_text(JOB.format(python=sys.executable, root=ROOT, uri=where))

    def save_when_asked(self) -> None:
        """Change the program: it saves when it is asked, and by itself only after a minute."""
        program = self.directory / "count.py"
        asks = program.read_text().replace("import os,", "import asking, os,")
        program.write_text(asks.replace("if step % 50 == 0:", "if asking.should_save():"))
        (self.directory / "asking.py").write_text((ROOT / "agent/inside/trainer_hook.py").read_text())

    def step(self) -> int:
        """The newest step of the job."""
        return self._job().step

    def nodes(self) -> set[str]:
        """The nodes of its tasks."""
        return {each.node for each in self._job().tasks}

    def list(self) -> tuple[CheckpointView, ...]:
        return from_plain(CheckpointList, self.json("checkpoints", "count")).checkpoints

    def stored(self, ref: str) -> Path:
        """The directory of a checkpoint's files in the store."""
        (entry,) = [each for each in self.list() if str(each.ref) == ref]
        return self.cluster.layout.state / "checkpoints" / "count" / entry.path

    def run_until_saved(self, count: int) -> None:
        self("wait", "count", "--for", "running", "--timeout", "60")
        wait_until(lambda: len(self.list()) >= count, "checkpoints")

    def stop(self) -> None:
        self("stop", "count")
        self("wait", "count", "--for", "ended", "--timeout", "60")

    def lose_etcd(self) -> None:
        """All that etcd held is gone; the cluster comes up again without it."""
        self.cluster.down()
        shutil.rmtree(self.cluster.layout.state / "etcd")
        self.cluster.up()

    def base(self) -> str:
        """The base of the running generation."""
        base = self._job().base
        return str(base) if base is not None else ""

    def _job(self) -> JobView:
        return from_plain(ClusterStatus, self.json("status", "count")).jobs[0]
