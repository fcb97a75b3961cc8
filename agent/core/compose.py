"""The recipe of a start: arguments, environment and directories of a task."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from agent.core.instructions import NOWHERE, Launch, OutputDirs
from agent.inside import protocol
from supervisor.contract.addresses import split_host_port
from supervisor.contract.desired import Assignment, Cadence, ClusterSpec
from supervisor.contract.job.data import placeholder_of, variable_of
from supervisor.contract.job.placeholders import fill, fill_earlier
from supervisor.contract.job.tf_config import placeholder_values, tf_config

NO_DEVICE = "-1"
"""A device that CUDA does not have, so that it sees none. Some programs take an empty list for no list at
all."""

_QUEUES = "TF_GRPC_WORKER_CACHE_QUEUES"
_MOST_QUEUES = 64


def start_message(
    launch: Launch,
    incarnation: str,
    attempt_dir: str,
    checkpoint_dir: str,
    code_dir: str = "",
    must_see: str = "",
    outputs: OutputDirs = NOWHERE,
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> protocol.Start:
    """The launcher's order for an attempt. Raises KeyError or IndexError for a task that the spec lacks.

    `code_dir` is this node's copy of the shipped code, where the program runs if there is one. `must_see` is
    a file without which `checkpoint_dir` is not there. `outputs`: where the task writes what is to stay, and
    where it reads what others wrote. `secrets`: the values of the assignment's, by variable.
    """
    assignment = launch.assignment
    task = assignment.task
    step = launch.base.step if launch.base is not None else -1
    spec = (
        launch.spec.with_address(task.role, task.index, launch.address) if assignment.joins else launch.spec
    )
    values = placeholder_values(
        spec,
        task,
        checkpoint_dir,
        assignment.protocol,
        launch.address,
        outputs.own,
        outputs.all,
        assignment.model_base,
    )
    values |= {placeholder_of(name): directory for name, directory in outputs.data.items()}
    argv, asked = _filled(assignment, values)
    env = {
        _QUEUES: str(_queues(launch.spec)),
        **asked,
        "TF_CONFIG": tf_config(spec, task, assignment.protocol),
        "CHECKPOINT_DIR": checkpoint_dir,
        "TFSUP_OUTPUT_DIR": outputs.own,
        "TFSUP_GENERATION": str(assignment.generation),
        "TFSUP_RESTART_COUNT": str(assignment.restart_count),
        "TFSUP_BASE_STEP": str(step),
        "TFSUP_PROTOCOL": assignment.protocol,
        "TFSUP_JOB": assignment.job,
        "TFSUP_TASK": str(task),
        "TFSUP_WORKERS": str(sum(len(each.addresses) for each in spec.roles if each.role == "worker")),
        **{variable_of(name): directory for name, directory in outputs.data.items()},
        **_cadence_env(assignment.cadence),
        **({"TFSUP_PS_RECOVERY": "partial"} if assignment.partial_ps else {}),
        **device_env(assignment.gpus, shared=assignment.gpus_shared),
    }
    return protocol.Start(
        attempt=str(assignment.attempt_id),
        incarnation=incarnation,
        argv=argv,
        cwd=code_dir or assignment.workdir,
        attempt_dir=attempt_dir,
        env=env,
        reservation=launch.reservation,
        warm=launch.warm,
        wait_for=_awaited(launch),
        wait_ms=assignment.startup_ms,
        alone=assignment.binds_alone,
        yields=assignment.yields and assignment.attempt == 1,
        must_see=must_see,
        adopt=assignment.checkpoint_adopt,
        devices=assignment.gpus,
        secrets=dict(secrets),
        joins=assignment.joins,
        hosts=tuple(sorted({split_host_port(each)[0] for each in spec.known})),
    )


def _filled(assignment: Assignment, values: dict[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Command and environment of the job, with the values of this attempt in them."""
    if not assignment.templated:
        return tuple(fill_earlier(word, values) for word in assignment.argv), assignment.env
    argv = tuple(fill(word, values) for word in assignment.argv)
    return argv, {name: fill(value, values) for name, value in assignment.env.items()}


def device_env(gpus: tuple[str, ...], *, shared: bool) -> dict[str, str]:
    """The variables that show TensorFlow these GPUs and no others; without any GPU it sees none, on any node.

    On a shared GPU it takes memory as it needs it, instead of all at once.
    """
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus) or NO_DEVICE}
    return {**visible, "TF_FORCE_GPU_ALLOW_GROWTH": "true"} if gpus and shared else visible


def _cadence_env(told: Cadence | None) -> dict[str, str]:
    if told is None:
        return {}
    words = (f"{told.failures:.6g}", told.over_ms, f"{told.max_overhead:.6g}", int(told.steers), told.cost_ms)
    return {"TFSUP_CADENCE": " ".join(map(str, words))}


def _queues(spec: ClusterSpec) -> int:
    """One queue, and thread, for each task that TensorFlow sends requests to, and one for its client.

    It gives each task a queue of its own in turn, but makes 64, however few tasks there are: the others cost
    a starting and a dying task a thread each.
    """
    return min(_MOST_QUEUES, 1 + sum(len(entry.addresses) for entry in spec.roles))


def _awaited(launch: Launch) -> tuple[str, ...]:
    """The tasks that must listen before this one starts its program, wherever the ClusterSpec has them."""
    known = {entry.role: entry.addresses for entry in (*launch.spec.roles, *launch.spec.outside)}
    return tuple(
        f"{role}:{index}={address}"
        for role in launch.assignment.after
        for index, address in enumerate(known[role])
    )
