"""The options of containers that a job may ask for, and their checks. Pure.

The same rules are applied three times: when a job file is read, when the leader takes a job, and when an
agent makes the container. So neither another client nor a forged record gets more. Options of docker that no
job may ask for (privileges, host namespaces, capabilities, devices, runtimes) have no field at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from supervisor.contract.errors import UserError
from supervisor.contract.job.spec import ContainerSpec, JobSpec, Mount, Resources, RoleSpec, Ulimit

Where = tuple[str | int, ...]

MAX_CPUS = 4096
MAX_PIDS = 4_194_304
MAX_SIZE_BYTES = 2**60
MAX_MOUNTS = 32
MAX_GPU_INDEX = 1023
MAX_GPU_SHARE = 64
TENSORFLOW_MEMORY_BYTES = 512 << 20
TENSORFLOW_PIDS = 128
"""The memory, and the number of processes and threads, that a parameter server needs, with some room."""

ULIMITS = {"core": -1, "fsize": -1, "memlock": -1, "nofile": 1_048_576, "stack": -1}
"""Limits that a job may set -> the largest value of each; -1: no bound."""

_HOST_OWN = (
    *("/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/var/run"),
    *("/var/lib/containerd", "/var/lib/docker", "/var/lib/kubelet"),
)
_IMAGE_OWN = (
    *("/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/var/run"),
    *("/usr/bin", "/usr/lib", "/usr/lib64", "/usr/sbin"),
)
_OURS = ("TF_CONFIG", "CHECKPOINT_DIR", "CUDA_VISIBLE_DEVICES")
_OUR_PREFIX = "TFSUP_"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9][A-Za-z0-9-]*(?:\.[A-Za-z0-9][A-Za-z0-9-]*)*(?::\d{1,5})?"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_IMAGE = re.compile(
    rf"(?:{_HOST}/)?{_COMPONENT}(?:/{_COMPONENT})*(?::{_TAG})?(?:@sha256:[0-9a-f]{{64}})?", re.ASCII
)
_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
_DOCKERS_OWN = ("bridge", "default", "ingress", "none")
_PROGRAM = re.compile(r"(?:/[A-Za-z0-9._+-]+)+|[A-Za-z0-9_][A-Za-z0-9._+-]*")
_CPUS = re.compile(r"\d{1,4}(?:-\d{1,4})?(?:,\d{1,4}(?:-\d{1,4})?){0,63}", re.ASCII)
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/()+-]{0,63}")


@dataclass(frozen=True, slots=True)
class Objection:
    """An error in one field of a job. `where` is its path: `("container", "mounts", 0, "source")`."""

    where: Where
    text: str


def check_variable(name: str) -> str:
    """Return the name of an environment variable that a job may set; raises UserError with the reason."""
    if not _VARIABLE.fullmatch(name):
        raise UserError(f"{name[:40]!r} cannot be the name of a variable; use letters, digits and '_'")
    if name in _OURS or name.startswith(_OUR_PREFIX):
        raise UserError(f"{name} is set by tf-supervisor for each task; remove it or use another name")
    if name.startswith("LD_"):
        raise UserError(
            f"{name} changes what the dynamic loader loads, also into programs that prepare containers as "
            "root; build the image so that its libraries are found, or set it in a script that is the command"
        )
    if name.startswith("NVIDIA_"):
        raise UserError(
            f"{name} tells NVIDIA's container runtime which devices to give, which tf-supervisor decides; "
            "ask with resources.gpus"
        )
    return name


def check_image(text: str) -> str:
    """Return the name of an image as docker writes it; raises UserError."""
    if len(text) > 255 or not _IMAGE.fullmatch(text):
        raise UserError(f"{text[:60]!r} is not the name of an image; write for example tensorflow:2.21")
    return text


def check_python(text: str) -> str:
    """Return a program's name or absolute path; raises UserError."""
    if len(text) > 255 or not _PROGRAM.fullmatch(text) or ".." in text.split("/"):
        raise UserError(f"{text[:60]!r} is not a program; write python3 or its absolute path in the image")
    return text


def check_network(text: str) -> str:
    """Return `host` or the name of a docker network; raises UserError."""
    if text in _DOCKERS_OWN:
        raise UserError(
            f"{text!r} is docker's own, which tasks of other containers cannot reach by it; write host, or a "
            "network that was made with `docker network create`"
        )
    if not _NETWORK.fullmatch(text):
        raise UserError(
            f"{text[:60]!r} is not the name of a docker network; write host, or the name of one that is in "
            "docker.networks of the nodes' agents"
        )
    return text


def check_cpuset(text: str) -> str:
    """Return processors by number, `0-3,8`; raises UserError."""
    good = _CPUS.fullmatch(text)
    bounds = [[int(end) for end in part.split("-")] for part in text.split(",")] if good else []
    if not good or any(part[0] > part[-1] for part in bounds):
        raise UserError(f"{text[:60]!r} is not a list of processors; write for example 0-3 or 0,2")
    return text


def check_source(text: str) -> str:
    """Return a directory of the node that may be mounted; raises UserError."""
    _check_plain(text)
    if own := _touches(text, _HOST_OWN):
        raise UserError(f"{text} is or holds {own}, which is the node's own; mount a directory of data")
    return text


def check_target(text: str) -> str:
    """Return a path in the container at which a directory can be mounted; raises UserError."""
    _check_plain(text)
    if own := _touches(text, _IMAGE_OWN):
        raise UserError(
            f"{text} is or holds {own}, which is the image's own; mount it elsewhere, such as /data"
        )
    return text


def check_ulimit(name: str) -> str:
    """Return the name of a limit that a job may set; raises UserError."""
    if name == "nproc":
        raise UserError("nproc counts all containers of a user together; write container.pids")
    if name not in ULIMITS:
        raise UserError(f"{name[:40]!r} is not a limit that a job may set; those are {', '.join(ULIMITS)}")
    return name


def check_gpu_model(text: str) -> str:
    """Return a part of a GPU's name; raises UserError."""
    if not _MODEL.fullmatch(text):
        raise UserError(f"{text[:60]!r} is not a part of a GPU's name; write for example H200")
    return text


def objections(spec: JobSpec) -> tuple[Objection, ...]:
    """All objections to a job's containers, environments and GPUs."""
    return (
        *(container_objections(spec.container) if spec.container is not None else ()),
        *_variables(("env",), (*spec.env, *spec.secrets)),
        *(each for role in spec.roles for each in _role(role)),
    )


def container_objections(container: ContainerSpec) -> tuple[Objection, ...]:
    """All objections to a container."""
    return tuple(Objection(("container", *each.where), each.text) for each in _container(container))


def resource_objections(need: Resources) -> tuple[Objection, ...]:
    """All objections to the resources of one task."""
    return tuple(Objection(("resources", *each.where), each.text) for each in _resources(need))


def environment_objections(env: Iterable[str]) -> tuple[Objection, ...]:
    """All objections to the names of a task's variables."""
    return tuple(_variables(("env",), env))


def cautions(spec: JobSpec) -> tuple[Objection, ...]:
    """Warnings about allowed values that will hardly work: limits below the needs of TensorFlow."""
    found = []
    for role in spec.roles:
        memory = role.resources.memory_bytes
        if "tensorflow" in spec.preload and 0 < memory < TENSORFLOW_MEMORY_BYTES:
            text = (
                f"{memory >> 20} MiB: TensorFlow alone takes about 300, and one that needs more is killed; "
                f"give at least {TENSORFLOW_MEMORY_BYTES >> 20} MiB"
            )
            found.append(Objection(("roles", role.name, "resources", "memory"), text))
    pids = spec.container.pids if spec.container is not None else 0
    if "tensorflow" in spec.preload and 0 < pids < TENSORFLOW_PIDS:
        text = f"TensorFlow has about 100 processes and threads; give at least {TENSORFLOW_PIDS}"
        found.append(Objection(("container", "pids"), text))
    return tuple(found)


def mount_objection(mount: Mount, allowed: Iterable[Mount]) -> str:
    """The reason why a node does not mount this; empty if it does.

    The caller has resolved the symbolic links in `mount.source` and in the sources of `allowed`: a link
    inside an allowed directory may lead out of it. A mount from a `read_only` allowed one is never writable.
    """
    lists = [each for each in allowed if _is_below(mount.source, each.source)]
    if not lists:
        return f"{mount.source} is not in a directory that this node's agent lets jobs mount (docker.mounts)"
    if not mount.read_only and all(each.read_only for each in lists):
        return f"{mount.source} may be mounted on this node with read_only alone (docker.mounts)"
    return ""


def _container(container: ContainerSpec) -> Iterator[Objection]:
    optional: tuple[tuple[str, str, Callable[[str], str]], ...] = (
        ("image", container.image, check_image),
        ("python", container.python, check_python),
        ("cpuset", container.cpuset, check_cpuset),
    )
    for name, text, check in optional:
        if text:
            yield from _refused((name,), check, text)
    yield from _refused(("network",), check_network, container.network)
    for name, number, most in (
        ("swap", container.swap_bytes, MAX_SIZE_BYTES),
        ("shm", container.shm_bytes, MAX_SIZE_BYTES),
        ("pids", container.pids, MAX_PIDS),
    ):
        if not 0 <= number <= most:
            yield Objection((name,), f"must be from 0 to {most}")
    yield from _ulimits(container.ulimits)
    yield from _mounts(container.mounts)


def _ulimits(ulimits: tuple[Ulimit, ...]) -> Iterator[Objection]:
    seen = set()
    for limit in ulimits:
        where: Where = ("ulimits", limit.name)
        if limit.name in seen:
            yield Objection(where, "given twice; keep one of the two")
        seen.add(limit.name)
        wrong = tuple(_refused(where, check_ulimit, limit.name))
        yield from wrong
        if wrong:
            continue
        most = ULIMITS[limit.name]
        for value in (limit.soft, limit.hard):
            if not (0 <= value <= (most if most >= 0 else MAX_SIZE_BYTES) or (value == -1 and most == -1)):
                bound = f"at most {most}" if most >= 0 else "a number from 0 on, or -1 for no limit"
                yield Objection(where, f"{value} is not possible; it must be {bound}")
        if limit.hard != -1 and (limit.soft == -1 or limit.soft > limit.hard):
            yield Objection(
                where, f"soft is {limit.soft}, more than hard, {limit.hard}; lower soft or raise hard"
            )


def _mounts(mounts: tuple[Mount, ...]) -> Iterator[Objection]:
    if len(mounts) > MAX_MOUNTS:
        yield Objection(("mounts",), f"{len(mounts)} mounts; at most {MAX_MOUNTS} are possible")
    targets: set[str] = set()
    for index, mount in enumerate(mounts):
        yield from _refused(("mounts", index, "source"), check_source, mount.source)
        yield from _refused(("mounts", index, "target"), check_target, mount.target)
        if mount.target in targets:
            yield Objection(("mounts", index, "target"), f"{mount.target} is the target of another mount too")
        targets.add(mount.target)


def _role(role: RoleSpec) -> Iterator[Objection]:
    yield from _variables(("roles", role.name, "env"), (*role.env, *role.secrets))
    for each in resource_objections(role.resources):
        yield Objection(("roles", role.name, *each.where), each.text)


def _resources(need: Resources) -> Iterator[Objection]:
    for name, number, most in (
        ("cpus", need.cpus, MAX_CPUS),
        ("memory", need.memory_bytes, MAX_SIZE_BYTES),
        ("gpus", need.gpus, MAX_GPU_INDEX + 1),
        ("gpu_memory", need.gpu_memory_bytes, MAX_SIZE_BYTES),
    ):
        if not 0 <= number <= most:
            yield Objection((name,), f"must be from 0 to {most}")
    if not 1 <= need.gpu_share <= MAX_GPU_SHARE:
        yield Objection(("gpu_share",), f"must be from 1 to {MAX_GPU_SHARE}")
    if need.gpu_model:
        yield from _refused(("gpu_model",), check_gpu_model, need.gpu_model)
    if any(not 0 <= index <= MAX_GPU_INDEX for index in need.gpu_indices):
        yield Objection(("gpu_indices",), f"must be numbers from 0 to {MAX_GPU_INDEX}")
    if len(set(need.gpu_indices)) < len(need.gpu_indices):
        yield Objection(("gpu_indices",), "names a GPU twice; keep one of the two")
    if need.gpu_indices and len(need.gpu_indices) != need.gpus:
        text = f"names {len(need.gpu_indices)} GPUs, and gpus is {need.gpus}; remove gpus"
        yield Objection(("gpu_indices",), text)
    asked = {
        "gpu_memory": need.gpu_memory_bytes > 0,
        "gpu_model": need.gpu_model != "",
        "gpu_share": need.gpu_share > 1,
    }
    for name in [name for name, given in asked.items() if given and not need.gpus]:
        yield Objection((name,), "has no effect without GPUs; add gpus: 1")


def _variables(where: Where, names: Iterable[str]) -> Iterator[Objection]:
    for name in names:
        yield from _refused((*where, name), check_variable, name)


def _refused(where: Where, check: Callable[[str], str], text: str) -> Iterator[Objection]:
    try:
        check(text)
    except UserError as error:
        yield Objection(where, str(error))


def _check_plain(text: str) -> None:
    """Raise UserError unless a path is absolute and plain: no `..`, `.` or empty part, nothing
    unprintable.
    """
    parts = text.split("/")
    if len(text) > 1024 or parts[0] or len(parts) < 2 or any(part in ("", ".", "..") for part in parts[1:]):
        raise UserError(f"{text[:60]!r} must be an absolute path without '..', '.' or a slash at its end")
    if not text.isprintable():
        raise UserError(f"{text[:60]!r} has characters that cannot be printed; rename the directory")


def _touches(path: str, own: tuple[str, ...]) -> str:
    """The first of `own` that is in `path` or holds it; empty when none is."""
    return next((each for each in own if _is_below(path, each) or _is_below(each, path)), "")


def _is_below(path: str, top: str) -> bool:
    """Whether a path is `top`, an absolute path, or below it."""
    return path == top or path.startswith(top.rstrip("/") + "/")
