"""The container of a launcher, as docker's API wants it: what a job may have, and nothing else.

What a job asks for was checked when it was submitted. Here it is checked again, and against what this node
allows, because an agent believes no record more than it must.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agent.core.instructions import Recipe
from agent.inside import fence, program, warm
from agent.runtimes import marks
from agent.runtimes.docker_engine import Image
from supervisor.contract.container import (
    check_image,
    container_objections,
    environment_objections,
    mount_objection,
    resource_objections,
)
from supervisor.contract.errors import Refused, UserError
from supervisor.contract.job import ContainerSpec, Mount

INSIDE = Path(__file__).resolve().parents[1] / "inside"
INSIDE_AT = "/opt/tf-supervisor/inside"
HOME = "/tmp"
_IN_MEMORY = "rw,nosuid,nodev,mode=1777"
DEFAULT_PYTHON = "python3"
_UUID = re.compile(r"[0-9A-Za-z-]{1,64}")
_GIVES = re.compile(r"LD_PRELOAD|LD_AUDIT|NVIDIA_(?!REQUIRE_).*")
"""What NVIDIA's runtime, which prepares containers as root, takes from an image's environment too."""
CLUSTER, NODE, HOMES, LAUNCHER, JOB, ROLE, INDEX, GENERATION, ATTEMPT = (
    f"tfsup.{each}"
    for each in ("cluster", "node", "directory", "launcher", "job", "role", "index", "generation", "attempt")
)


@dataclass(frozen=True, slots=True)
class Allowed:
    """A directory of this machine that containers may have, with all below it. `always`: they all have it."""

    source: str
    read_only: bool = True
    always: bool = False


@dataclass(frozen=True, slots=True)
class DockerNode:
    """What the containers of one agent have in common.

    Attributes:
        socket: dockerd's, which no container may reach.
        user: (uid, gid) of everything in them.
        homes: has a directory for each launcher.
        tasks: the directory of the socket at which launchers find the agent, and of nothing else.
        attempts, checkpoints: have a directory for each job, by UUID.
        networks: of docker's, those that jobs may join beside the host's.
    """

    cluster: str
    node: str
    socket: str
    image: str
    user: tuple[int, int]
    homes: Path
    tasks: Path
    attempts: Path
    checkpoints: Path
    lock_dir: Path
    python: str = ""
    mounts: tuple[Allowed, ...] = ()
    pids: int = 4096
    pull_timeout_ms: int = 1_800_000
    networks: tuple[str, ...] = ()

    @property
    def labels(self) -> dict[str, str]:
        """On everything that is this agent's, and on nothing else of this machine."""
        return {CLUSTER: self.cluster, NODE: self.node, HOMES: str(self.homes)}

    @property
    def owner(self) -> str:
        """The same in the environment of what runs in them."""
        return marks.owner(f"{self.cluster}/{self.node}", self.homes)

    def image_of(self, spec: ContainerSpec) -> str:
        """The image of a container; raises UserError where neither job nor node name one."""
        if not spec.image and not self.image:
            raise UserError(
                "no image: add `container: {image: NAME}` to the job, or `docker.image` to the node"
            )
        return check_image(spec.image) if spec.image else self.image


@dataclass(frozen=True, slots=True)
class Bind:
    """A directory of this machine in a container. `slave`: what is mounted below it later shows there too."""

    source: str
    target: str
    read_only: bool = True
    slave: bool = False


def check_allowed(mounts: Iterable[Allowed], state_dir: Path, checkpoint_parent: Path) -> None:
    """Raise UserError where containers may have what only this agent's own hands may touch.

    In `state_dir` are all jobs' environments and output, in `checkpoint_parent` their checkpoints.
    """
    for allowed in mounts:
        for own in (state_dir, checkpoint_parent):
            if _within(os.path.realpath(own), os.path.realpath(allowed.source)):
                raise UserError(
                    f"docker.mounts: {allowed.source} holds {own}, which is the agent's own; mount less of it"
                )


def container_name(node: str, launcher_id: str) -> str:
    """What docker calls a launcher's container."""
    return f"tfsup-{node}-{launcher_id}"


def spec_of(recipe: Recipe) -> ContainerSpec:
    """What the job says of its containers."""
    return recipe.container or ContainerSpec()


def check_joined(spec: ContainerSpec, node: DockerNode) -> None:
    """Raise UserError for a network that this node does not let jobs join."""
    if spec.networked and spec.network not in node.networks:
        raise UserError(
            f"docker network {spec.network} is not in `docker.networks` of node {node.node}: list it there, "
            "or write host"
        ).about("container", "network")


def interpreter(recipe: Recipe, node: DockerNode) -> str:
    """The Python that is the launcher: as a path, or a name in the PATH of the image."""
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
    """Raise UserError for what only a forged record asks for: the leader has refused it already."""
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
    """The job's variables and ours; those of the image that would give more are emptied."""
    gpus = ",".join(recipe.gpus)
    ours = {"HOME": HOME, "USER": "tfsup", "LOGNAME": "tfsup", "NVIDIA_VISIBLE_DEVICES": gpus or "void"}
    if gpus:
        ours["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
    threads = warm.THREADS_VARIABLE
    latched = {threads: image.env[threads]} if threads in image.env else {}
    emptied = {name: "" for name in image.env if _GIVES.fullmatch(name)}
    return {**latched, **emptied, **ours, **recipe.env}


def container(
    launcher_id: str,
    recipe: Recipe,
    node: DockerNode,
    image: Image,
    env: Mapping[str, str],
    runtimes: frozenset[str],
) -> dict[str, object]:
    """The body of docker's `POST /containers/create`; raises UserError, Refused.

    `env` is `environment`'s; `runtimes` are those that dockerd knows.
    """
    check(recipe)
    spec = spec_of(recipe)
    check_joined(spec, node)
    mark = marks.mark(launcher_id, node.owner)
    variables = {**warm.launcher_environment(dict(env)), fence.MARKER_VARIABLE: mark}
    uid, gid = node.user
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
            "Mounts": [_api(each) for each in mounts],
            "Tmpfs": _tmpfs(image, mounts, node.user),
        },
    }


def _labels(launcher_id: str, recipe: Recipe, node: DockerNode) -> dict[str, str]:
    """Ours, by which it is found again, and for people: whom it was made for."""
    labels = {**node.labels, LAUNCHER: launcher_id, JOB: recipe.job}
    if recipe.first is not None:
        labels[ROLE], labels[INDEX] = recipe.first.role, str(recipe.first.index)
        labels[GENERATION], labels[ATTEMPT] = str(recipe.first.generation), str(recipe.first.attempt)
    return labels


def binds(launcher_id: str, recipe: Recipe, node: DockerNode) -> tuple[Bind, ...]:
    """Everything of this machine that a container sees; raises UserError, Refused."""
    home, checkpoints = node.homes / launcher_id, node.checkpoints / recipe.job_uuid
    ours = [
        Bind(str(INSIDE), INSIDE_AT),
        Bind(str(home), str(home), read_only=False),
        Bind(str(node.tasks), str(node.tasks)),
        _both(node.attempts / recipe.job_uuid),
        replace(_both(checkpoints), slave=is_shared(checkpoints)),
    ]
    if not recipe.networked:
        ours.append(_both(node.lock_dir))
    found = {each.target: each for each in ours}
    for bind in (*_workdir(recipe, node), *_data(recipe, node)):
        _check_source(bind, node)
        if bind.target in found:
            raise UserError(f"two mounts at {bind.target} in a container of job {recipe.job}")
        found[bind.target] = bind
    return tuple(found.values())


def _both(path: Path) -> Bind:
    return Bind(str(path), str(path), read_only=False)


def _workdir(recipe: Recipe, node: DockerNode) -> Iterable[Bind]:
    """Shipped code, a directory that the node allows, or the image's own."""
    workdir = os.path.normpath(recipe.workdir)
    if recipe.code is not None:
        return (Bind(workdir, workdir),)
    if workdir == "/" or not _is_directory(workdir):
        return ()
    if any(each.always and _within(workdir, each.source) for each in node.mounts):
        return ()
    real = os.path.realpath(workdir)
    if any(_within(real, each.source) for each in _lists(node)):
        _check_fixed(real, node)
        return (Bind(real, workdir),)
    raise Refused(
        f"workdir {workdir} is in no directory of this node's `docker.mounts`: ship it with `code:`, "
        "or allow it there"
    )


def _data(recipe: Recipe, node: DockerNode) -> Iterable[Bind]:
    for allowed in node.mounts:
        if allowed.always:
            yield Bind(allowed.source, allowed.source, allowed.read_only)
    lists = _lists(node)
    for index, mount in enumerate(spec_of(recipe).mounts):
        real = replace(mount, source=os.path.realpath(mount.source))
        wrong = mount_objection(real, lists)
        if wrong:
            raise Refused(wrong).about("container", "mounts", str(index), "source")
        _check_fixed(real.source, node)
        for own in (INSIDE_AT, *map(str, _own(node)), HOME):
            if _within(mount.target, own) or _within(own, mount.target):
                raise UserError(f"mount target {mount.target}: {own} is needed there").about(
                    "container", "mounts", str(index), "target"
                )
        yield Bind(real.source, mount.target, mount.read_only)


def _is_directory(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except OSError:
        return False  # nor can it be mounted


def _lists(node: DockerNode) -> list[Mount]:
    """What jobs may mount, without links, but for what containers themselves could replace by one."""
    fixed = [each for each in node.mounts if not _loose(each.source, node)]
    return [Mount(os.path.realpath(each.source), "", each.read_only) for each in fixed]


def _check_fixed(source: str, node: DockerNode) -> None:
    """Refuse what a container could replace by a link after this look and before dockerd mounts it."""
    if loose := _loose(source, node):
        raise Refused(f"mount {source}: containers can write in {loose} and replace it; mount {loose} itself")


def _loose(path: str, node: DockerNode) -> str:
    """The directory above `path` in which containers can write; empty when there is none."""
    writable = [os.path.realpath(each.source) for each in node.mounts if not each.read_only]
    for above in map(str, Path(path).parents):
        if any(_within(above, each) for each in writable) and _may_write(above, node.user):
            return above
    return ""


def _may_write(directory: str, user: tuple[int, int]) -> bool:
    try:
        found = Path(directory).stat()
    except OSError:
        return False  # whoever mounts it is told
    group = found.st_gid == user[1] and found.st_mode & stat.S_IWGRP
    # Its owner can make it writable.
    return found.st_uid == user[0] or bool(group) or bool(found.st_mode & stat.S_IWOTH)


def _own(node: DockerNode) -> tuple[Path, ...]:
    return node.homes, node.tasks, node.attempts, node.checkpoints, node.lock_dir


def _check_source(bind: Bind, node: DockerNode) -> None:
    try:
        mode = Path(bind.source).stat().st_mode
    except OSError as error:
        raise UserError(f"mount {bind.source}: {error.strerror} on this node") from error
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise Refused(f"mount {bind.source}: only directories and files can be mounted")
    if _within(os.path.realpath(node.socket), os.path.realpath(bind.source)):
        raise Refused(f"mount {bind.source}: docker's socket is in it")


def is_shared(path: Path) -> bool:
    """Whether what is mounted below a directory later can be made to show in containers that have it."""
    best, shared = "", False
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        point, options = fields[4].replace("\\040", " "), fields[6 : fields.index("-")]
        if len(point) >= len(best) and _within(str(path), point):
            best, shared = point, any(each.startswith(("shared:", "master:")) for each in options)
    return shared


def _tmpfs(image: Image, mounts: Iterable[Bind], user: tuple[int, int]) -> dict[str, str]:
    """What an image declares as volumes is in memory, as `/tmp` is; else it would be a disk without a limit.

    Raises UserError for one inside what is mounted: its directory would be made there.
    """
    targets = [each.target for each in mounts]
    found = {HOME: _IN_MEMORY}
    for volume in map(os.path.normpath, image.volumes):
        if volume in (HOME, *targets):
            continue
        if above := next((each for each in targets if _within(volume, each)), ""):
            raise UserError(f"the image has a volume at {volume}, and {above} is mounted: take it out of one")
        found[volume] = f"{_IN_MEMORY},uid={user[0]},gid={user[1]}"
    return found


def _within(path: str, directory: str) -> bool:
    return Path(path).is_relative_to(directory)


def least_privilege() -> dict[str, object]:
    """What every container of ours is run with: part of the body of docker's `POST /containers/create`."""
    return {
        "Privileged": False,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": True,
        "IpcMode": "private",
        "Tmpfs": {HOME: _IN_MEMORY},
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
    """GPUs by UUID: through the `nvidia` runtime where dockerd knows it, else as a device request."""
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


def _api(bind: Bind) -> dict[str, object]:
    body: dict[str, object] = {
        "Type": "bind",
        "Source": bind.source,
        "Target": bind.target,
        "ReadOnly": bind.read_only,
    }
    if bind.slave:
        body["BindOptions"] = {"Propagation": "rslave"}
    return body
