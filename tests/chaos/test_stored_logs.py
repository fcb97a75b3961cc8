"""A node that loses its power takes no more of its tasks' output with it than `logs.lag`."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos.cluster import Cluster, Shape
from chaos.cluster.cluster import temporary
from tests.support.waiting import wait_until

LAG_S = 5.0
PROGRAM = """
import time
print("begins", flush=True)
while True:
    print(f"at {time.time():.3f}", flush=True)
    time.sleep(0.05)
"""


def said(cluster: Cluster, *words: str) -> tuple[str, str]:
    command = cluster.supervisorctl(*words)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout, done.stderr


def stored(cluster: Cluster) -> list[Path]:
    return list(cluster.store.glob("**/.logs/*/worker.0/g1.1/*"))


@pytest.mark.slow
def test_the_log_of_a_node_without_power_is_read_up_to_the_lag() -> None:
    with temporary(Shape(etcd=1, supervisors=1, agents=2)) as cluster:
        program = cluster.root / "prints.py"
        program.write_text(PROGRAM)
        body = {
            "name": "prints",
            "strategy": "plain",
            "roles": {"worker": {"count": 1}},
            # No Python of the job's own, which would import TensorFlow first.
            "command": ["sh", "-c", f"exec {sys.executable} {program}"],
        }
        file = cluster.root / "job.yaml"
        file.write_text(json.dumps(body))
        cluster.ctl("submit", str(file))
        cluster.ctl("wait", "prints", "--for", "running", timeout_s=120)
        wait_until(lambda: bool(stored(cluster)), "nothing is stored while the task runs")
        first = stored(cluster)
        wait_until(lambda: stored(cluster) not in ([], first), "what comes later is not stored")
        status = cluster.ctl("status", "prints")
        assert isinstance(status, dict)
        node = status["jobs"][0]["tasks"][0]["node"]
        off_s = time.time()
        cluster.nodes[node].power_off()

        def of_first_attempt() -> tuple[list[float], str]:
            out, err = said(cluster, "tail", "prints/worker:0", "-c", str(1 << 20))
            return [float(each) for each in re.findall(r"at (\d+\.\d+)", out.split("begins")[1])], err

        shown: list[float] = []
        notes = ""

        def is_read() -> bool:
            nonlocal shown, notes
            try:
                shown, notes = of_first_attempt()
            except IndexError:
                return False
            return "is stored up to" in notes

        wait_until(is_read, "the log of the lost node is not read from the store")
        before_s = [each for each in shown if each <= off_s + 1]
        assert before_s[-1] >= off_s - LAG_S, "more than the lag is missing"
        gaps = [after - before for before, after in itertools.pairwise(before_s)]
        assert max(gaps) < 2.5, "something in the middle is missing"
        assert f"prints/worker:0@1.1: {node} was heard until" in notes or "what came later" in notes
        merged, _ = said(cluster, "logs", "prints", "-c", str(1 << 20))
        assert f"worker:0 | at {before_s[-1]:.3f}" in merged.splitlines()
