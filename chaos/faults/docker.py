"""Faults of docker on nodes whose tasks are containers: its daemon killed, frozen and restarted."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from chaos.cluster import docker as dockers
from chaos.faults.fault import Family, Fault
from chaos.faults.scene import Scene

DAEMON = dockers.DAEMON
CONTAINERS = (("agents", 0), ("docker_agents", 3))


def engines(scene: Scene) -> Sequence[str]:
    """Nodes with a dockerd and tasks of the job."""
    busy = {task.node for task in scene.tasks()}
    return [node.name for node in scene.cluster.docker_agents if node.name in busy]


@contextmanager
def killed(scene: Scene, node: str) -> Iterator[str]:
    """SIGKILL; with live-restore its containers go on. It is back at the heal."""
    life = scene.daemon(node, DAEMON)
    found = scene.cluster.nodes[node].daemons[DAEMON]
    found.kill(signal.SIGKILL)
    try:
        yield scene.gone(life)
    finally:
        found.start()
        _answers(scene, node)


@contextmanager
def frozen(scene: Scene, node: str) -> Iterator[str]:
    """It takes requests and answers none."""
    life = scene.daemon(node, DAEMON)
    found = scene.cluster.nodes[node].daemons[DAEMON]
    found.freeze()
    try:
        scene.wait("a frozen process", lambda: life.frozen or None)
        yield f"process {life.pid}: {life.state}"
    finally:
        found.thaw()


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
        frozen,
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
)
