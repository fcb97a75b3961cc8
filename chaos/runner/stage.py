"""A cluster that is kept through many runs, and the operator's terminal beside it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from chaos.cluster import Cluster, Shape
from chaos.cluster.cluster import temporary
from chaos.faults import FAULTS
from chaos.faults.fault import Fault
from chaos.faults.operator import Operator


class Stage:
    """Up inside a `with` block. `number` counts the runs on it, whose directories are below `runs`."""

    def __init__(self, shape: Shape, runs: Path | None = None) -> None:
        self.shape = shape
        self._runs = runs.resolve() if runs is not None else None
        self.number = 0
        self._stack = ExitStack()
        self.cluster: Cluster
        self.operator: Operator

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.cluster = stack.enter_context(temporary(self._mounted()))
            self.operator = stack.enter_context(Operator(self.cluster))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _mounted(self) -> Shape:
        """Containers have the runs' directories, where step logs are and where they look for ills."""
        if not self.shape.docker_agents or self._runs is None:
            return self.shape
        self._runs.mkdir(parents=True, exist_ok=True)
        return replace(self.shape, docker_mounts=(self._runs,))

    def available(self) -> dict[str, Fault]:
        """The faults that this cluster can have."""
        return {name: fault for name, fault in self._fitting() if fault.needs(self.cluster) is None}

    def missing(self) -> dict[str, str]:
        """The faults that a cluster of this shape should have and this one cannot, with the reasons."""
        found = {name: fault.needs(self.cluster) for name, fault in self._fitting()}
        return {name: why for name, why in found.items() if why is not None}

    def _fitting(self) -> list[tuple[str, Fault]]:
        return [(name, fault) for name, fault in FAULTS.items() if fault.fits(self.shape)]
