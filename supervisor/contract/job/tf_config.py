"""What a task is told of its cluster: `TF_CONFIG`, and the values of placeholders for other programs."""

from __future__ import annotations

import json

from supervisor.contract.desired import ClusterSpec
from supervisor.contract.ids import TaskId
from supervisor.contract.job.placeholders import CLASSIC_ROLES


def tf_config(spec: ClusterSpec, task: TaskId) -> str:
    """The value of `TF_CONFIG` for one task, as JSON.

    A task outside the ClusterSpec (an evaluator) is told of the cluster but is no member of it, which is what
    TensorFlow expects of it. Raises KeyError or IndexError for a task that the spec does not have.
    """
    spec.address(task.role, task.index)
    cluster = {entry.role: list(entry.addresses) for entry in spec.roles}
    document = {"cluster": cluster, "task": {"type": task.role, "index": task.index}}
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


def placeholder_values(
    spec: ClusterSpec,
    task: TaskId,
    checkpoint_dir: str,
    protocol: str = "grpc",
    address: str = "",
    output_dir: str = "",
    all_outputs: str = "",
) -> dict[str, str]:
    """The value of each placeholder of a job file (`job.placeholders`) in one task.

    `{ROLE_hosts}` is a comma-separated list of `host:port` for any role of the job; for the classic roles it
    is empty where the job has no such role, as such flags default to. `{host}` and `{port}` are the task's
    own: `address`, or what the ClusterSpec says. Raises KeyError or IndexError for a task that neither has.
    """
    values = {f"{role}_hosts": "" for role in CLASSIC_ROLES}
    values |= {f"{entry.role}_hosts": ",".join(entry.addresses) for entry in (*spec.roles, *spec.outside)}
    values |= {"job_name": task.role, "task_index": str(task.index)}
    values |= {"checkpoint_dir": checkpoint_dir, "protocol": protocol}
    values |= {"output_dir": output_dir, "all_outputs": all_outputs}
    values["host"], _, values["port"] = (address or spec.address(task.role, task.index)).rpartition(":")
    return values
