"""A program of real TensorFlow exports two models, in an embedded cluster; a server serves them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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
    while step == 1 and not os.path.exists(sys.argv[2]):
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


@contextmanager
def model_server(root: Path) -> Iterator[int]:
    """A model server of our own; its port."""
    port = root / "port"
    command = [sys.executable, str(PROGRAMS / "model_server.py"), str(port)]
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_exports_of_a_real_program_are_served_and_labels_and_rollbacks_reach_the_server(
    tmp_path: Path,
) -> None:
    store, go = tmp_path / "store", tmp_path / "go"
    (tmp_path / "job").mkdir()
    (tmp_path / "job/train.py").write_text(PROGRAM)
    (tmp_path / "job/job.yaml").write_text(JOB % (go, store))
    models = store / "models/net"
    with Cluster(tmp_path / "state", nodes=1) as cluster, model_server(tmp_path) as port:
        job = cluster.submit(tmp_path / "job/job.yaml")
        wait_until((models / "1").exists, "the first export is published while its program runs")
        server = ("--server", f"127.0.0.1:{port}")
        cluster.ctl("models", "net", "label", "stable", "1")
        cluster.ctl("models", "net", "reload", *server)
        assert ask(port, "stable") == "version 1 says 30.0"
        go.touch()
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
