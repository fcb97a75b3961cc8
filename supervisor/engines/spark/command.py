"""The command that keeps one agent on an executor's machine, and its environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from supervisor.engines.keeper import GPUS

GPU = "gpu"
"""Spark's usual name of the resource (`spark.executor.resource.gpu.amount`)."""
_SPARKS = ("SPARK_", "_SPARK_", "PYSPARK_", "PYTHON_WORKER_", "HADOOP_TOKEN_FILE_LOCATION")
"""Beginnings of variables that Spark, or YARN below it, sets for its own processes. They hold secrets of the
application, and its tokens: an agent has its own way into HDFS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTask:
    """One agent of a pool.

    Attributes:
        id: the part of the agent's id that its driver knows.
        file: the configuration that all agents of the pool share, on the executor's machine.
        token: the file with the pool's token; empty where the shared file names certificates.
        cpus, memory: what it may give to tasks; 0: what the file says, or the machine has.
    """

    pool: str
    id: str
    file: str
    cpus: int
    memory: int
    token: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a keeper: its machine, its exit code, and the last lines of its output."""

    place: str
    code: int
    said: str


def argv_of(task: AgentTask, place: str, attempt: int) -> list[str]:
    """The keeper's command. It runs the Python that runs this."""
    return [
        *(sys.executable, "-P", "-m", "supervisor.engines.keeper", "--leash"),
        *("--pool", task.pool),
        *("--place", place),
        # Spark may run a task again by itself, and the node of the one before may still be known.
        *("--id", f"{task.id}_{attempt}"),
        *("--agent-config", task.file),
        *("--cpus", str(task.cpus)),
        *("--memory", str(task.memory)),
        *(("--token", task.token) if task.token else ()),
    ]


def environment_of(variables: Mapping[str, str], gpus: Sequence[str]) -> dict[str, str]:
    """The keeper's environment: the executor's, without what Spark has for itself, and the agent's GPUs."""
    kept = {name: value for name, value in variables.items() if not name.startswith(_SPARKS)}
    return kept | {GPUS: ",".join(gpus)}
