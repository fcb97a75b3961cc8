"""Failpoints as faults: a daemon is stopped exactly between two of its effects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chaos.cluster import Node
from chaos.faults.kernel import Life
from supervisor.adapters import failpoints


@dataclass(frozen=True, slots=True)
class Armed:
    """A failpoint that waits on several nodes for whoever comes first."""

    nodes: tuple[Node, ...]
    point: str

    def struck(self) -> tuple[Node, Life] | None:
        """The first node and process that it struck; None before, and for a process that is gone."""
        return next(self.all_struck(), None)

    def all_struck(self) -> Iterator[tuple[Node, Life]]:
        """The same, of all that it struck."""
        for node in self.nodes:
            for path in (node.failpoints / failpoints.STRUCK).glob(f"{self.point}.*"):
                pid = node.host_pid(int(path.name.rpartition(".")[2]))
                life = Life.of(pid) if pid is not None else None
                if life is not None:
                    yield node, life

    def disarm(self) -> None:
        """It strikes nobody from now on."""
        for node in self.nodes:
            (node.failpoints / failpoints.ARMED / self.point).unlink(missing_ok=True)


@contextmanager
def armed(nodes: Iterable[Node], point: str, action: str) -> Iterator[Armed]:
    """Arm a point on each of these nodes; whatever has not struck by the end of the block never will."""
    found = Armed(tuple(nodes), point)
    _clear(found)
    for node in found.nodes:
        (node.failpoints / failpoints.ARMED / point).write_text(action)
    try:
        yield found
    finally:
        found.disarm()
        _clear(found)


def _clear(found: Armed) -> None:
    for node in found.nodes:
        for path in (node.failpoints / failpoints.STRUCK).glob(f"{found.point}.*"):
            Path(path).unlink(missing_ok=True)
