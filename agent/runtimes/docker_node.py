"""The common options of one agent's containers: their owner, and the directories that they may mount."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agent.core.instructions import Recipe
from agent.host.task_users import TaskUsers
from agent.runtimes import marks
from supervisor.contract.errors import UserError
from supervisor.contract.job.container import check_image
from supervisor.contract.job.spec import ContainerSpec

INSIDE_AT = "/opt/tf-supervisor/inside"
HOME = "/tmp"
CLUSTER, NODE, HOMES, LAUNCHER, JOB, ROLE, INDEX, GENERATION, ATTEMPT = (
    f"tfsup.{each}"
    for each in ("cluster", "node", "directory", "launcher", "job", "role", "index", "generation", "attempt")
)


@dataclass(frozen=True, slots=True)
class Allowed:
    """A directory of this machine that containers may mount, with all below it.

    `always`: all of them mount it.
    """

    source: str
    read_only: bool = True
    always: bool = False


@dataclass(frozen=True, slots=True)
class DockerNode:
    """The common options of one agent's containers.

    Attributes:
        socket: the path of dockerd's socket, which no container may reach.
        users: the users of their processes.
        homes: holds a directory for each launcher.
        tasks: the directory of the agent's socket for launchers, without other files.
        attempts, checkpoints: they hold a directory for each job, by UUID.
        networks: docker networks that jobs may join beside the host's.
        key: the agent's key for the marks of their processes.
    """

    cluster: str
    node: str
    socket: str
    image: str
    users: TaskUsers
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
    key: marks.Key = field(default_factory=marks.Key)

    @property
    def labels(self) -> dict[str, str]:
        """The labels of this agent's containers. No other container of this machine has them."""
        return {CLUSTER: self.cluster, NODE: self.node, HOMES: str(self.homes)}

    @property
    def marks(self) -> marks.Marks:
        """The marks in the environment of their processes."""
        return marks.Marks(marks.owner(f"{self.cluster}/{self.node}", self.homes), self.key)

    def image_of(self, spec: ContainerSpec) -> str:
        """The image of a container; raises UserError if neither job nor node name one."""
        if not spec.image and not self.image:
            raise UserError(
                "no image: add `container: {image: NAME}` to the job, or `docker.image` to the node"
            )
        return check_image(spec.image) if spec.image else self.image


def check_allowed(mounts: Iterable[Allowed], state_dir: Path, checkpoint_parent: Path) -> None:
    """Raise UserError if containers may mount directories that only this agent may access.

    `state_dir` holds all jobs' environments and output, `checkpoint_parent` their checkpoints.
    """
    for allowed in mounts:
        for own in (state_dir, checkpoint_parent):
            if is_within(os.path.realpath(own), os.path.realpath(allowed.source)):
                raise UserError(
                    f"docker.mounts: {allowed.source} holds {own}, which is the agent's own; mount less of it"
                )


def container_name(node: str, launcher_id: str) -> str:
    """The name of a launcher's container."""
    return f"tfsup-{node}-{launcher_id}"


def spec_of(recipe: Recipe) -> ContainerSpec:
    """The job's options for its containers."""
    return recipe.container or ContainerSpec()


def is_within(path: str, directory: str) -> bool:
    """Whether a path is this directory, or below it."""
    return Path(path).is_relative_to(directory)
