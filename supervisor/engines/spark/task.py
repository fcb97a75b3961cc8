"""One agent as a task of Spark: this runs in the Python worker of an executor.

The task starts the agent's keeper, relays its output to the executor's log, and returns how it ended. The
keeper's standard input is a pipe of the task. However the task ends, the pipe closes, and the keeper ends the
node: Spark kills a Python worker with SIGKILL, and an executor's workers die with it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import IO

from pyspark import TaskContext

from supervisor.engines.keeper import WRONG_CONFIGURATION
from supervisor.engines.spark.command import GPU, AgentTask, Ended, argv_of, environment_of

_TAIL_LINES, _TAIL_BYTES = 20, 4096
_RELAY_S = 3.0
_LIMIT = "PYSPARK_EXECUTOR_MEMORY_MB"
"""Spark sets this in a worker whose address space it limits."""


def keep(task: AgentTask, _nothing: Iterable[object]) -> Iterator[Ended]:
    """Keep an agent until the keeper ends, or this process does."""
    place = socket.gethostname()
    if os.environ.get(_LIMIT):
        yield Ended(
            place,
            WRONG_CONFIGURATION,
            "spark.executor.pyspark.memory limits the address space of all that a task starts, into which "
            "TensorFlow does not fit: leave it out, and set spark.executor.memoryOverhead",
        )
        return
    context = TaskContext.get()
    gpus = context.resources().get(GPU)
    keeper = subprocess.Popen(
        argv_of(task, place, context.attemptNumber()),
        env=environment_of(os.environ, gpus.addresses if gpus is not None else ()),
        cwd=tempfile.gettempdir(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Spark's daemon of Python workers kills its process group. The keeper survives that to end the node.
        start_new_session=True,
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
    relaying = threading.Thread(target=_relay, args=(keeper.stdout, tail), daemon=True)
    relaying.start()
    try:
        code = keeper.wait()
    finally:
        # Spark may use this process for other tasks.
        keeper.stdin.close()
    relaying.join(_RELAY_S)
    said = b"".join(tail)[-_TAIL_BYTES:].decode(errors="replace")
    yield Ended(place, code, said.strip())


def _relay(source: IO[bytes], tail: deque[bytes]) -> None:
    for line in source:
        tail.append(line)
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
