"""Faults of docker on a node whose tasks are containers: its daemon, its containers, its image, its names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from chaos.cluster import docker as dockers
from chaos.cluster.cluster import PREFIX
from chaos.container_image import IMAGE
from chaos.faults.daemons import dead, frozen
from chaos.faults.fault import Family, Fault, Incidents, expects
from chaos.faults.scene import DidNotBite, Scene

DAEMON = dockers.DAEMON
AGENT = "agent"
NAMES_TAKEN = 3
CONTAINERS = (("agents", 0), ("docker_agents", 3))
LOST = ("killed", "launcher_lost", "start_failed", "peer_lost", "node_lost")


def engines(scene: Scene) -> Sequence[str]:
    """Nodes with a dockerd and tasks of the job."""
    busy = {task.node for task in scene.tasks()}
    return [node.name for node in scene.cluster.docker_agents if node.name in busy]


def workers(scene: Scene) -> Sequence[str]:
    """Tasks in containers that can be replaced alone."""
    nodes = engines(scene)
    return [f"{task.role}.{task.index}" for task in scene.tasks("worker") if task.node in nodes]


@contextmanager
def killed(scene: Scene, node: str) -> Iterator[str]:
    """SIGKILL; with live-restore its containers go on. It answers again after the heal."""
    try:
        with dead(scene, node, daemon=DAEMON) as evidence:
            yield evidence
    finally:
        _answers(scene, node)


@contextmanager
def restarted(scene: Scene, node: str) -> Iterator[str]:
    """SIGTERM, and started again at once."""
    life = scene.daemon(node, DAEMON)
    found = scene.cluster.nodes[node].daemons[DAEMON]
    found.stop()
    found.start()
    evidence = scene.gone(life)
    _answers(scene, node)
    yield evidence


def _answers(scene: Scene, node: str) -> None:
    def look() -> bool | None:
        with suppress(AssertionError):
            scene.cluster.docker(node, "version")
            return True
        return None

    scene.wait(f"dockerd of {node}", look, dockers.UP_S)


def container_of(scene: Scene, member: str) -> tuple[str, str]:
    """A task's node and container: the one that its main process is in."""
    task = scene.task(member)
    for ident in scene.cluster.docker(task.node, "ps", "--quiet", "--no-trunc").split():
        pid = int(scene.cluster.docker(task.node, "inspect", "--format", "{{.State.Pid}}", ident))
        if str(task.pid) in (str(pid), *_pids(scene, task.node, ident)):
            return task.node, ident
    raise DidNotBite(f"{member} is in no container of {task.node}")


@contextmanager
def removed(scene: Scene, member: str) -> Iterator[str]:
    """Its container is removed by somebody else."""
    life = scene.process(scene.task(member))
    node, ident = container_of(scene, member)
    scene.cluster.docker(node, "rm", "--force", ident)
    yield f"container {ident[:12]} is removed; {scene.gone(life)}"


def spares(scene: Scene, node: str) -> list[str]:
    """Containers of a node in which no task runs: a restart would take one of these."""
    busy = {str(task.pid) for task in scene.tasks() if task.node == node}
    found = scene.cluster.docker(node, "ps", "--quiet", "--no-trunc").split()
    return [ident for ident in found if busy.isdisjoint(_pids(scene, node, ident))]


def _pids(scene: Scene, node: str, ident: str) -> list[str]:
    return scene.cluster.docker(node, "top", ident, "-eo", "pid").split()[1:]


def _remove(scene: Scene, node: str, idents: Sequence[str]) -> str:
    """Remove containers; what the agent says when it cannot make the next one."""
    log = scene.cluster.nodes[node].daemons[AGENT].log
    said = log.stat().st_size
    scene.cluster.docker(node, "rm", "--force", *idents)

    def look() -> str | None:
        lines = log.read_bytes()[said:].decode(errors="replace").splitlines()
        return next(
            (line.partition("reason=")[2] for line in lines if "a launcher cannot be started" in line), None
        )

    return scene.wait("a container that cannot be made", look)


@contextmanager
def no_image(scene: Scene, member: str) -> Iterator[str]:
    """The image has lost its name, and a container goes: the next one cannot be made before the heal."""
    life = scene.process(scene.task(member))
    node, ident = container_of(scene, member)
    doomed = [*spares(scene, node), ident]
    image = scene.cluster.docker(node, "images", "--quiet", "--no-trunc", IMAGE)
    scene.cluster.docker(node, "rmi", "--force", IMAGE)
    try:
        left = scene.cluster.docker(node, "images", "--quiet", IMAGE)
        if left:
            raise DidNotBite(f"{node} still has {IMAGE}: {left}")
        said = _remove(scene, node, doomed)
        yield f"{node} has no image {IMAGE}; {scene.gone(life)}; {said}"
    finally:
        try:
            scene.cluster.docker(node, "tag", image, IMAGE)
        except AssertionError:
            # The last container that needed it is gone, and so is it.
            dockers.begin(scene.cluster.nodes[node], scene.cluster.programs.disks[node])


@contextmanager
def names_taken(scene: Scene, member: str) -> Iterator[str]:
    """Strangers have the names of the next containers when one goes."""
    life = scene.process(scene.task(member))
    node, ident = container_of(scene, member)
    doomed = [*spares(scene, node), ident]
    incarnation = _incarnation(scene, node)
    used = [
        int(name.rpartition("-")[2])
        for name in scene.cluster.docker(node, "ps", "--all", "--format", "{{.Names}}").split()
        if incarnation in name
    ]
    names = [
        f"tfsup-{node}-{incarnation}-{number}" for number in range(max(used) + 1, max(used) + 1 + NAMES_TAKEN)
    ]
    for name in names:
        scene.cluster.docker(node, "create", "--name", name, IMAGE, "true")
    try:
        said = _remove(scene, node, doomed)
        yield f"{', '.join(names)} are taken; {scene.gone(life)}; {said}"
    finally:
        for name in names:
            with suppress(AssertionError):
                scene.cluster.docker(node, "rm", "--force", name)


def _incarnation(scene: Scene, node: str) -> str:
    key = f"{PREFIX}nodes/{node}"
    return str(json.loads(scene.cluster.etcd().read(key)[key])["incarnation"])


FAULTS: tuple[Fault, ...] = (
    Fault(
        "dockerd-killed",
        Family.DOCKER,
        "SIGKILL of dockerd, and back",
        engines,
        killed,
        hold_s=(1.0, 6.0),
        bound_s=60.0,
        shape=CONTAINERS,
    ),
    Fault(
        "dockerd-frozen",
        Family.DOCKER,
        "dockerd stands still",
        engines,
        partial(frozen, daemon=DAEMON),
        hold_s=(2.0, 8.0),
        bound_s=60.0,
        shape=CONTAINERS,
    ),
    Fault(
        "dockerd-restarted",
        Family.DOCKER,
        "dockerd is restarted",
        engines,
        restarted,
        bound_s=60.0,
        shape=CONTAINERS,
    ),
    Fault(
        "container-removed",
        Family.DOCKER,
        "a worker's container is removed behind our back",
        workers,
        removed,
        expects(Incidents.ONE, "killed", "launcher_lost", scopes=["task"]),
        bound_s=60.0,
        shape=CONTAINERS,
    ),
    Fault(
        "image-missing",
        Family.DOCKER,
        "a node has no image any more when a worker needs a new container",
        workers,
        no_image,
        expects(Incidents.ANY, *LOST, program_faults=3),
        hold_s=(2.0, 4.0),
        bound_s=90.0,
        shape=CONTAINERS,
    ),
    Fault(
        "name-clash",
        Family.DOCKER,
        "the names of the next containers are taken when a worker needs one",
        workers,
        names_taken,
        expects(Incidents.ANY, *LOST),
        hold_s=(1.0, 3.0),
        bound_s=90.0,
        shape=CONTAINERS,
    ),
)
