"""The body of docker's API for a launcher's container, with the options that a job may have and no others.

A job's options were checked at its submission. Here they are checked again, and against this node's settings,
because an agent does not trust records more than necessary.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from agent.core.instructions import Recipe
from agent.inside.child import program, warm
from agent.inside.launcher.remains import OF_IPC
from agent.inside.processes import fence
from agent.runtimes.docker_engine import Image
from agent.runtimes.docker_mounts import IN_MEMORY, api_mount, binds, in_memory
from agent.runtimes.docker_node import (
    ATTEMPT,
    GENERATION,
    HOME,
    INDEX,
    INSIDE_AT,
    JOB,
    LAUNCHER,
    ROLE,
    DockerNode,
    spec_of,
)
from supervisor.contract.errors import UserError
from supervisor.contract.job.container import (
    container_objections,
    environment_objections,
    resource_objections,
)
from supervisor.contract.job.spec import ContainerSpec

DEFAULT_PYTHON = "python3"
_UUID = re.compile(r"[0-9A-Za-z-]{1,64}")
_GIVES = re.compile(r"LD_(?!LIBRARY_PATH$).*|NVIDIA_(?!REQUIRE_).*")
"""Variables that NVIDIA's runtime, which prepares containers as root, also reads from an image's
environment."""
_HERE = re.compile(r"/+(proc|dev)(/|$)|.*/\.\.?(/|$)")


def check_joined(spec: ContainerSpec, node: DockerNode) -> None:
    """Raise UserError for a network that jobs may not join on this node."""
    if spec.networked and spec.network not in node.networks:
        raise UserError(
            f"docker network {spec.network} is not in `docker.networks` of node {node.node}: list it there, "
            "or write host"
        ).about("container", "network")


def interpreter(recipe: Recipe, node: DockerNode) -> str:
    """The Python of the launcher: a path, or a name in the PATH of the image."""
    spec = spec_of(recipe)
    named = program.is_python((recipe.program,))
    if spec.python:
        return spec.python
    if named and "/" in recipe.program:
        return os.path.normpath(Path(recipe.workdir) / recipe.program)
    if not spec.image and node.python:
        return node.python
    return recipe.program if named else DEFAULT_PYTHON


def check(recipe: Recipe) -> None:
    """Raise UserError for options that only a forged record can have, as the leader refuses them."""
    found = (
        *container_objections(spec_of(recipe)),
        *environment_objections(recipe.env),
        *resource_objections(recipe.resources),
    )
    for each in found:
        where = tuple(map(str, each.where))
        raise UserError(f"{'.'.join(where)}: {each.text}").about(*where)
    if not _UUID.fullmatch(recipe.job_uuid):
        raise UserError(f"{recipe.job_uuid!r} is not the UUID of a job")


def environment(recipe: Recipe, image: Image) -> dict[str, str]:
    """The job's variables and ours. Variables of the image that would give more rights are emptied."""
    gpus = ",".join(recipe.gpus)
    ours = {"HOME": HOME, "USER": "tfsup", "LOGNAME": "tfsup", "NVIDIA_VISIBLE_DEVICES": gpus or "void"}
    if gpus:
        ours["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
    threads = warm.THREADS_VARIABLE
    latched = {threads: image.env[threads]} if threads in image.env else {}
    emptied = {name: "" for name in image.env if _GIVES.fullmatch(name)}
    if "LD_LIBRARY_PATH" in image.env:
        emptied["LD_LIBRARY_PATH"] = _libraries(image.env["LD_LIBRARY_PATH"])
    return {**latched, **emptied, **ours, **recipe.env}


def _libraries(path: str) -> str:
    """A library path without directories in which a program of the machine would find libraries of the
    image.
    """
    return ":".join(each for each in path.split(":") if each.startswith("/") and not _HERE.match(each))


def container(
    launcher_id: str,
    recipe: Recipe,
    node: DockerNode,
    image: Image,
    env: Mapping[str, str],
    runtimes: frozenset[str],
) -> dict[str, object]:
    """The body of docker's `POST /containers/create`; raises UserError, Refused.

    `env` is the result of `environment`; `runtimes` are the runtimes of dockerd.
    """
    check(recipe)
    spec = spec_of(recipe)
    check_joined(spec, node)
    mark = node.marks.of(launcher_id)
    variables = {**warm.launcher_environment(dict(env)), fence.MARKER_VARIABLE: mark}
    uid, gid = node.users.of(recipe.job_uuid)
    mounts = binds(launcher_id, recipe, node)
    return {
        "Image": image.id,
        "User": f"{uid}:{gid}",
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "WorkingDir": recipe.workdir,
        "Entrypoint": [interpreter(recipe, node)],
        "Cmd": [INSIDE_AT, str(node.homes / launcher_id / "config.json")],
        "Labels": _labels(launcher_id, recipe, node),
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            **least_privilege(),
            **_limits(recipe, node),
            **_devices(recipe, runtimes),
            "NetworkMode": spec.network,
            "Mounts": [api_mount(each) for each in mounts],
            "Tmpfs": in_memory(image.volumes, [each.target for each in mounts], f"{uid}:{gid}"),
        },
    }


def cleared(launcher_id: str, recipe: Recipe, node: DockerNode, image: Image) -> tuple[str, ...]:
    """The directories in memory that only this container has: none of the mounted ones is among them."""
    targets = [each.target for each in binds(launcher_id, recipe, node)]
    return tuple(each for each in (*OF_IPC, *in_memory(image.volumes, targets, "")) if each not in targets)


def _labels(launcher_id: str, recipe: Recipe, node: DockerNode) -> dict[str, str]:
    """The labels: ours, by which a container is found again, and the names of its task for people."""
    labels = {**node.labels, LAUNCHER: launcher_id, JOB: recipe.job}
    if recipe.first is not None:
        labels[ROLE], labels[INDEX] = recipe.first.role, str(recipe.first.index)
        labels[GENERATION], labels[ATTEMPT] = str(recipe.first.generation), str(recipe.first.attempt)
    return labels


def least_privilege() -> dict[str, object]:
    """The restrictions of all our containers: part of the body of docker's `POST /containers/create`."""
    return {
        "Privileged": False,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": True,
        "IpcMode": "private",
        "Tmpfs": {HOME: IN_MEMORY},
        "RestartPolicy": {"Name": "no"},
        "Init": False,
        "AutoRemove": False,
        # Only what comes before the launcher writes to its own log: an interpreter that does not start.
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "64k", "max-file": "1"}},
    }


def _limits(recipe: Recipe, node: DockerNode) -> dict[str, object]:
    spec, resources = spec_of(recipe), recipe.resources
    limits: dict[str, object] = {"PidsLimit": spec.pids or node.pids}
    if resources.cpus:
        limits["NanoCpus"] = round(resources.cpus * 1e9)
    if resources.memory_bytes:
        limits["Memory"] = resources.memory_bytes
        limits["MemorySwap"] = resources.memory_bytes + spec.swap_bytes
    if spec.cpuset:
        limits["CpusetCpus"] = spec.cpuset
    if spec.shm_bytes:
        limits["ShmSize"] = spec.shm_bytes
    if spec.ulimits:
        limits["Ulimits"] = [
            {"Name": each.name, "Soft": each.soft, "Hard": each.hard} for each in spec.ulimits
        ]
    return limits


def _devices(recipe: Recipe, runtimes: frozenset[str]) -> dict[str, object]:
    """GPUs by UUID: through the `nvidia` runtime if dockerd has it, else as a device request."""
    if not recipe.gpus:
        return {}
    if "nvidia" in runtimes:
        return {"Runtime": "nvidia"}
    request = {
        "Driver": "nvidia",
        "DeviceIDs": list(recipe.gpus),
        "Capabilities": [["gpu", "compute", "utility"]],
    }
    return {"DeviceRequests": [request]}
