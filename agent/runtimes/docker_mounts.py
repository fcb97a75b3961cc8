"""The mounts of a container and its writable directories, each checked against this node's settings."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.core.instructions import Recipe
from agent.host.task_users import TaskUsers
from agent.runtimes.docker_node import HOME, INSIDE_AT, DockerNode, is_within, spec_of
from supervisor.contract.errors import Refused, UserError
from supervisor.contract.job.container import mount_objection
from supervisor.contract.job.spec import Mount

INSIDE = Path(__file__).resolve().parents[1] / "inside"
IN_MEMORY = "rw,nosuid,nodev,mode=1777"


@dataclass(frozen=True, slots=True)
class Bind:
    """A directory of this machine in a container. `slave`: later mounts below it appear there too."""

    source: str
    target: str
    read_only: bool = True
    slave: bool = False


def binds(launcher_id: str, recipe: Recipe, node: DockerNode) -> tuple[Bind, ...]:
    """All mounts of a container; raises UserError, Refused."""
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
    for bind in (*_workdir(recipe, node), *_read_alone(recipe, node), *_asked(recipe, node)):
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
    if any(each.always and is_within(workdir, each.source) for each in node.mounts):
        return ()
    real = os.path.realpath(workdir)
    if any(is_within(real, each.source) for each in _lists(node)):
        _check_fixed(real, node)
        return (Bind(real, workdir),)
    raise Refused(
        f"workdir {workdir} is in no directory of this node's `docker.mounts`: ship it with `code:`, "
        "or allow it there"
    )


def _read_alone(recipe: Recipe, node: DockerNode) -> Iterable[Bind]:
    """The job's data, at the same paths: `Recipe.data` has been filled with directories of this node."""
    for path in sorted(set(recipe.data.values())):
        own = is_within(path, str(node.checkpoints))
        if not own:
            _check_fixed(os.path.realpath(path), node)
        yield Bind(os.path.realpath(path), path, slave=own and is_shared(Path(path)))


def _asked(recipe: Recipe, node: DockerNode) -> Iterable[Bind]:
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
            if is_within(mount.target, own) or is_within(own, mount.target):
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
    """The directories that jobs may mount, with links resolved, without those that containers could replace
    by a link.
    """
    fixed = [each for each in node.mounts if not _loose(each.source, node)]
    return [Mount(os.path.realpath(each.source), "", each.read_only) for each in fixed]


def _check_fixed(source: str, node: DockerNode) -> None:
    """Raise Refused for a directory that a container could replace by a link before dockerd mounts it."""
    if loose := _loose(source, node):
        raise Refused(f"mount {source}: containers can write in {loose} and replace it; mount {loose} itself")


def _loose(path: str, node: DockerNode) -> str:
    """A directory above `path` that containers can write to; empty if there is none."""
    writable = [os.path.realpath(each.source) for each in node.mounts if not each.read_only]
    for above in map(str, Path(path).parents):
        if any(is_within(above, each) for each in writable) and _may_write(above, node.users):
            return above
    return ""


def _may_write(directory: str, users: TaskUsers) -> bool:
    """Whether containers of any job may write to a directory: those of another job could interfere too."""
    try:
        found = Path(directory).stat()
    except OSError:
        return False  # whoever mounts it is told
    group = users.has_group(found.st_gid) and found.st_mode & stat.S_IWGRP
    # Its owner can make it writable.
    return users.has(found.st_uid) or bool(group) or bool(found.st_mode & stat.S_IWOTH)


def _own(node: DockerNode) -> tuple[Path, ...]:
    return node.homes, node.tasks, node.attempts, node.checkpoints, node.lock_dir


def _check_source(bind: Bind, node: DockerNode) -> None:
    try:
        mode = Path(bind.source).stat().st_mode
    except OSError as error:
        raise UserError(f"mount {bind.source}: {error.strerror} on this node") from error
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise Refused(f"mount {bind.source}: only directories and files can be mounted")
    if is_within(os.path.realpath(node.socket), os.path.realpath(bind.source)):
        raise Refused(f"mount {bind.source}: docker's socket is in it")


def is_shared(path: Path) -> bool:
    """Whether later mounts below a directory can appear in containers that mount it."""
    best, shared = "", False
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        point, options = fields[4].replace("\\040", " "), fields[6 : fields.index("-")]
        if len(point) >= len(best) and is_within(str(path), point):
            best, shared = point, any(each.startswith(("shared:", "master:")) for each in options)
    return shared


def in_memory(volumes: Iterable[str], targets: Sequence[str], user: str) -> dict[str, str]:
    """The volumes of an image, as directories in memory like `/tmp`; on the disk they would have no limit.

    `targets`: the mount points of the container. `user`: UID:GID; for a name the directories get no owner.
    Raises UserError for a volume inside a mounted directory, where its directory would be made.
    """
    uid, _, gid = user.partition(":")
    own = f",uid={uid},gid={gid}" if uid.isdigit() and gid.isdigit() else ""
    found = {HOME: IN_MEMORY}
    for volume in map(os.path.normpath, volumes):
        if volume in (HOME, *targets):
            continue
        if above := next((each for each in targets if is_within(volume, each)), ""):
            raise UserError(f"the image has a volume at {volume}, and {above} is mounted: take it out of one")
        found[volume] = f"{IN_MEMORY}{own}"
    return found


def api_mount(bind: Bind) -> dict[str, object]:
    """The mount in the form of docker's API."""
    body: dict[str, object] = {
        "Type": "bind",
        "Source": bind.source,
        "Target": bind.target,
        "ReadOnly": bind.read_only,
    }
    if bind.slave:
        body["BindOptions"] = {"Propagation": "rslave"}
    return body
