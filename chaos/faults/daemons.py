"""What can be done to any daemon of a node: it is killed, or stands still."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from chaos.faults.scene import Scene


@contextmanager
def dead(scene: Scene, node: str, *, daemon: str) -> Iterator[str]:
    """SIGKILL; its successor comes at the heal."""
    life = scene.daemon(node, daemon)
    found = scene.cluster.nodes[node].daemons[daemon]
    found.kill(signal.SIGKILL)
    try:
        yield scene.gone(life)
    finally:
        found.start()


@contextmanager
def frozen(scene: Scene, node: str, *, daemon: str) -> Iterator[str]:
    """SIGSTOP, and SIGCONT at the heal: it takes connections meanwhile, and answers nothing."""
    life = scene.daemon(node, daemon)
    found = scene.cluster.nodes[node].daemons[daemon]
    found.freeze()
    try:
        scene.wait("a frozen process", lambda: life.frozen or None)
        yield f"process {life.pid}: {life.state}"
    finally:
        found.thaw()
