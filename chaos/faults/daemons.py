"""Faults of any daemon: it is killed, alone or with others, or stopped for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from chaos.faults.scene import Scene


@contextmanager
def dead(scene: Scene, node: str, *, daemon: str) -> Iterator[str]:
    """SIGKILL; its successor comes at the heal."""
    with all_dead(scene, [node], daemon=daemon) as evidence:
        yield evidence


@contextmanager
def all_dead(scene: Scene, nodes: Sequence[str], *, daemon: str) -> Iterator[str]:
    """SIGKILL of the one on each of these nodes, at once; their successors come at the heal."""
    lives = [scene.daemon(node, daemon) for node in nodes]
    daemons = [scene.cluster.nodes[node].daemons[daemon] for node in nodes]
    with ExitStack() as restored:
        for each in daemons:
            each.kill()
            restored.callback(each.start)
        yield "; ".join(scene.gone(life) for life in lives)


@contextmanager
def frozen(scene: Scene, node: str, *, daemon: str) -> Iterator[str]:
    """SIGSTOP, and SIGCONT at the heal: it takes connections meanwhile, and answers nothing."""
    life = scene.daemon(node, daemon)
    found = scene.cluster.nodes[node].daemons[daemon]
    found.freeze()
    try:
        yield scene.frozen(life)
    finally:
        found.thaw()
