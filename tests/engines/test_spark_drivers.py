"""Drivers of a real Spark that are killed at each moment of a pool's life."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.engines.pool_shell import ours
from tests.engines.spark_shell import SparkShell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
OTHER = f"""
name: other
command: [{sys.executable}, -u, -c, "import time\\nfor i in range(99999): print('step', i); time.sleep(0.1)"]
strategy: plain
preload: []
roles: {{worker: {{count: 1, resources: {{labels: {{pool: p}}}}}}}}
"""


def test_a_driver_that_is_killed_leaves_nothing_and_the_next_one_goes_on(shell: SparkShell) -> None:
    """Each driver is killed at a later moment than the one before, and meets what that one has left."""
    job, gate = shell.counting(), shell.directory / "gate"
    data = shell.cluster.layout.state / "checkpoints" / "count-data"
    options = ("--agents", "2", "--rows", "100", "--gate", str(gate))

    with shell.driver(job, options=options):
        shell.wait(lambda: any(data.glob("train.new-*/part-00000.tfrecord")), "it writes data")
    shell.all_given_back()
    assert not (data / "train").exists()

    gate.touch()
    with shell.driver(job, options=options):
        shell.wait(lambda: ours(shell.directory) != [], "agents come up")
        assert not shell.works("status", "count")
    shell.all_given_back()
    assert [each.name for each in data.iterdir() if each.is_dir()] == ["train"]

    with shell.driver(job, options=options):
        shell.wait(lambda: shell.runs("count"), "the job runs")
        shell.wait(lambda: shell.view("count").newest_commit is not None, "it saves")
    shell.all_given_back()
    commit = shell.view("count").newest_commit
    assert commit is not None
    assert not shell.view("count").phase.ended

    (shell.directory / "other.yaml").write_text(OTHER)
    with shell.driver(job, options=(*options, "--resume")) as driver:
        shell.wait(lambda: shell.view("count").base is not None, "the next driver goes on")
        base = shell.view("count").base
        assert base is not None
        assert base.step >= commit.step
        shell.wait(lambda: shell.view("count").step > base.step + 20, "it makes steps")
        assert "count is not over, and goes on" in shell.told()
        # It finds no other node when the block ends, so that this takes a while.
        shell("submit", str(shell.directory / "other.yaml"))
        shell.wait(lambda: shell.runs("other"), "another job runs on the pool")
        driver.send_signal(signal.SIGINT)
        shell.wait(lambda: "draining" in {each["state"] for each in shell.there().values()}, "the block ends")
    shell.all_given_back()
    assert not shell.runs("other")

    with shell.driver(job, options=(*options, "--resume")):
        shell.wait(lambda: shell.runs("other") and shell.runs("count"), "both jobs go on")
    shell.all_given_back()
