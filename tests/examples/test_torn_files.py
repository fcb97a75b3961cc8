"""A program is killed while it overwrites its only checkpoint: it goes on from the last whole one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from recovery.commit.plain_outbox import is_being_written
from recovery.formats.soundness import HEAD_BYTES, TAIL_BYTES, is_whole
from supervisor.contract.desired import JobPhase
from tests.examples.cases import accuracy
from tests.examples.harness import EXAMPLES, Cluster, Kill

EPOCH = 23
WAIT_S = 60.0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_file_that_a_kill_tore_is_not_used(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(
        EXAMPLES / "digits_keras/job.yaml",
        name="digits_torn",
        # A model of some megabytes, so that it takes a while to write.
        flags={"": ("--units", "4000", "--steps", str(9 * EPOCH))},
    )
    job.wait_step(4 * EPOCH)
    known = frozenset(entry.id for entry in job.incidents())
    pid = job.view().tasks[0].pid
    files = (cluster.state / "tasks").glob("*/g*/backup/latest.weights.h5")
    file = max(files, key=lambda path: path.stat().st_mtime_ns)
    _kill_in_the_middle_of_a_save(file, pid)
    data = file.read_bytes()
    assert is_whole(file.name, len(data), data[:HEAD_BYTES], data[-TAIL_BYTES:]) is False

    incident = job.recovered(Kill("worker", 0, pid, known, time.monotonic_ns()))
    assert incident.to_step > EPOCH
    assert (incident.to_step - 1) % EPOCH == 0, "it did not go on at the beginning of an epoch"
    assert job.ended().phase is JobPhase.SUCCEEDED
    accuracy("worker")(job, tmp_path)


def _kill_in_the_middle_of_a_save(file: Path, pid: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while not (is_being_written(file.parent, file.name) and file.stat().st_size > 0):
        assert time.monotonic() < deadline, "the program does not save"
    os.kill(pid, signal.SIGKILL)
    while is_being_written(file.parent, file.name):
        assert time.monotonic() < deadline, "the program does not die"
