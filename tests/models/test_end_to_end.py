"""A program of real TensorFlow exports two models, in an embedded cluster; a server serves them.

The server is a process of its own, or a task of the job.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.contract.views.jobs import TaskView
from tests.examples.harness import Cluster, CtlError
from tests.support.waiting import wait_until

PROGRAMS = Path(__file__).resolve().parent / "programs"
QUIET = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
PROGRAM = """\
import os
import sys
import time

import tensorflow as tf


class Net(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def serve(self, x):
        return {"y": x * self.weight}


net = Net()
for step in (1, 2):
    net.weight.assign(10.0 * step)
    tf.saved_model.save(net, os.path.join(sys.argv[1], "export", "latest"), signatures=net.serve)
    print("step", step, flush=True)
    while not os.path.exists(f"{sys.argv[2]}-{step}"):
        time.sleep(0.1)
"""
JOB = """\
name: net
strategy: plain
command: [python, train.py, "{output_dir}", %s]
roles:
  worker: {count: 1}
checkpoint: {uri: %s}
serving: {export: export/*, check: call}
"""
SERVER = """\
  server:
    count: 1
    cluster: false
    serves: true
    command: [python, model_server.py, --model_name=net, "--model_base_path={model_base}", "--port={port}"]
"""


@contextmanager
def model_server(root: Path) -> Iterator[int]:
    """A model server of our own; its port."""
    port = root / "port"
    command = [sys.executable, str(PROGRAMS / "model_server.py"), f"--port_file={port}"]
    with subprocess.Popen(command, env=QUIET) as server:
        try:
            wait_until(lambda: port.exists() or server.poll() is not None)
            yield int(port.read_text())
        finally:
            server.kill()


def ask(port: int, which: str) -> str:
    """What the server answers to 3, asked by version, label or neither (`-`)."""
    command = [sys.executable, str(PROGRAMS / "ask.py"), str(port), "net", which]
    done = subprocess.run(command, env=QUIET, capture_output=True, text=True, check=False, timeout=120)
    return done.stdout.strip() or done.stderr.splitlines()[-1]


def job_file(root: Path, go: Path, server: str = "") -> Path:
    """A job whose program makes its export of STEP, and then waits for the file `GO-STEP`."""
    (root / "job").mkdir()
    (root / "job/train.py").write_text(PROGRAM)
    shutil.copy(PROGRAMS / "model_server.py", root / "job")
    text = JOB % (go, root / "store")
    found = root / "job/job.yaml"
    found.write_text(text.replace("checkpoint:", f"{server}checkpoint:"))
    return found


def step_done(go: Path, step: int) -> None:
    """Let the program go on from a step."""
    go.with_name(f"{go.name}-{step}").touch()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_exports_of_a_real_program_are_served_and_labels_and_rollbacks_reach_the_server(
    tmp_path: Path,
) -> None:
    store, go = tmp_path / "store", tmp_path / "go"
    file = job_file(tmp_path, go)
    step_done(go, 2)
    models = store / "models/net"
    with Cluster(tmp_path / "state", nodes=1) as cluster, model_server(tmp_path) as port:
        job = cluster.submit(file)
        wait_until((models / "1").exists, "the first export is published while its program runs")
        server = ("--server", f"127.0.0.1:{port}")
        cluster.ctl("models", "net", "label", "stable", "1")
        cluster.ctl("models", "net", "reload", *server)
        assert ask(port, "stable") == "version 1 says 30.0"
        step_done(go, 1)
        job.wait("ended")
        wait_until((models / "2").exists, "the last export is published after the end of its program")
        assert sorted(each.name for each in models.iterdir()) == ["1", "2"]
        cluster.ctl("models", "net", "label", "canary", "2")
        cluster.ctl("models", "net", "reload", *server)
        assert [ask(port, each) for each in ("canary", "stable", "-")] == [
            "version 2 says 60.0",
            "version 1 says 30.0",
            "version 2 says 60.0",
        ]
        with pytest.raises(CtlError, match="label canary is on version 2, which would be withdrawn"):
            cluster.ctl("models", "net", "rollback")
        cluster.ctl("models", "net", "label", "canary", "--remove")
        cluster.ctl("models", "net", "reload", *server)
        cluster.ctl("models", "net", "rollback")
        wait_until(lambda: ask(port, "-") == "version 1 says 30.0", "the server polls, and goes back")
        with pytest.raises(CtlError, match=r"127\.0\.0\.1:1: UNAVAILABLE"):
            cluster.ctl("models", "net", "reload", "--server", "127.0.0.1:1")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_beside_the_training_follows_new_versions_and_is_restarted_alone(tmp_path: Path) -> None:
    go = tmp_path / "go"
    file = job_file(tmp_path, go, SERVER)
    with Cluster(tmp_path / "state", nodes=1) as cluster:
        job = cluster.submit(file)
        wait_until((tmp_path / "store/models/net/1").exists, "the first export is published")

        def task(role: str) -> TaskView:
            return next(each for each in job.view().tasks if each.role == role)

        def says() -> str:
            return ask(int(task("server").address.rpartition(":")[2]), "-")

        wait_until(lambda: says() == "version 1 says 30.0", "the server has found the first version")
        trainer = task("worker").pid
        incident = job.recovered(job.kill("server"))
        assert (incident.scope, incident.rule) == ("task", "plain.server.alone"), job.story()
        wait_until(lambda: says() == "version 1 says 30.0", "it serves again")
        step_done(go, 1)
        wait_until(lambda: says() == "version 2 says 60.0", "it has found the second version")
        assert (job.view().generation, task("worker").pid) == (1, trainer), job.story()
        document = cluster.document("models")
        assert isinstance(document, dict)
        (net,) = document["models"]
        assert (net["job"], net["visible"], net["served"], document["unread"]) == ("net", [1, 2], 2, [])
        step_done(go, 2)
        job.result()
        assert task("server").state == "exited", "it ends with the training"
