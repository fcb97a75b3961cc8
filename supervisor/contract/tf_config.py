"""What a task is told of its cluster: `TF_CONFIG`, and the flags of programs that do not read it."""

from __future__ import annotations

import json
import re

from supervisor.contract.desired import ClusterSpec
from supervisor.contract.ids import TaskId
from supervisor.contract.job import CHIEF_ROLES

_PLACEHOLDER = re.compile(r"\{([A-Za-z0-9][A-Za-z0-9_.-]*)\}")
_CLASSIC_ROLES = (*CHIEF_ROLES, "ps", "worker")


def tf_config(spec: ClusterSpec, task: TaskId) -> str:
    """The value of `TF_CONFIG` for one task, as JSON.

    A task outside the ClusterSpec (an evaluator) is told of the cluster but is no member of it, which is what
    TensorFlow expects of it. Raises KeyError or IndexError for a task that the spec does not have.
    """
    spec.address(task.role, task.index)
    cluster = {entry.role: list(entry.addresses) for entry in spec.roles}
    document = {"cluster": cluster, "task": {"type": task.role, "index": task.index}}
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


def fill(
    argv: tuple[str, ...],
    spec: ClusterSpec,
    task: TaskId,
    checkpoint_dir: str,
    protocol: str = "grpc",
    address: str = "",
) -> tuple[str, ...]:
    """Replace the placeholders of a command: `{ps_hosts}`, `{job_name}`, `{task_index}`, and so on.

    `{ROLE_hosts}` is a comma-separated list of `host:port` for any role of the job; for `ps`, `worker`,
    `chief` and `master` it is empty where the job has no such role, as such flags default to. `{host}` and
    `{port}` are the task's own: `address`, or what the ClusterSpec says. All other braces are left alone,
    and what is filled in is not looked at again.
    """
    values = {f"{role}_hosts": "" for role in _CLASSIC_ROLES}
    values |= {f"{entry.role}_hosts": ",".join(entry.addresses) for entry in (*spec.roles, *spec.outside)}
    values |= {"job_name": task.role, "task_index": str(task.index)}
    values |= {"checkpoint_dir": checkpoint_dir, "protocol": protocol}
    values["host"], _, values["port"] = (address or spec.address(task.role, task.index)).rpartition(":")
    return tuple(_PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), part) for part in argv)
