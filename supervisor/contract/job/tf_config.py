"""The description of the cluster for a task: `TF_CONFIG`, and the values of placeholders for other
programs.
"""

from __future__ import annotations

import json

from supervisor.contract.addresses import bare
from supervisor.contract.desired import ClusterSpec
from supervisor.contract.ids import TaskId
from supervisor.contract.job.placeholders import CLASSIC_ROLES, MODEL_BASE
from supervisor.contract.job.spec import PLAIN_PROTOCOL


def tf_config(spec: ClusterSpec, task: TaskId, protocol: str = PLAIN_PROTOCOL) -> str:
    """The value of `TF_CONFIG` for one task, as JSON.

    A task outside the ClusterSpec (an evaluator) gets the cluster's description without being a member, as
    TensorFlow expects. Resolvers read the job's `protocol` from `rpc_layer`; without the key it is grpc.
    Raises KeyError or IndexError for a task that the spec does not have.
    """
    spec.address(task.role, task.index)
    cluster = {entry.role: list(entry.addresses) for entry in spec.roles}
    document: dict[str, object] = {"cluster": cluster, "task": {"type": task.role, "index": task.index}}
    if protocol != PLAIN_PROTOCOL:
        document["rpc_layer"] = protocol
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


def placeholder_values(
    spec: ClusterSpec,
    task: TaskId,
    checkpoint_dir: str,
    protocol: str = PLAIN_PROTOCOL,
    address: str = "",
    output_dir: str = "",
    all_outputs: str = "",
    model_base: str = "",
) -> dict[str, str]:
    """The value of each placeholder of a job file (`job.placeholders`) in one task.

    `{ROLE_hosts}` is a comma-separated list of `host:port` for any role of the job; for the classic roles it
    is empty if the job has no such role, like the default of such flags. `{address}`, `{host}` and `{port}`
    are the task's own, from `address` or else from the ClusterSpec; `{host}` has no brackets. Raises KeyError
    or IndexError for a task that neither has.
    """
    values = {f"{role}_hosts": "" for role in CLASSIC_ROLES}
    values |= {f"{entry.role}_hosts": ",".join(entry.addresses) for entry in (*spec.roles, *spec.outside)}
    values |= {"job_name": task.role, "task_index": str(task.index)}
    values |= {"checkpoint_dir": checkpoint_dir, "protocol": protocol}
    values |= {"output_dir": output_dir, "all_outputs": all_outputs, MODEL_BASE: model_base}
    values["address"] = address or spec.address(task.role, task.index)
    host, _, values["port"] = values["address"].rpartition(":")
    return {**values, "host": bare(host)}
