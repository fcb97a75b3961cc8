"""The node's Unix socket between its agent and its launchers: streams in order, a moment later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from chaos.sim.cluster.loop import SimProcess
from chaos.sim.cluster.machine import Machine, MachineProcess


class AgentEnd(Protocol):
    """The agent's end of a connection."""

    process: SimProcess

    def arrived(self, connection: Connection, message: object) -> None:
        """A message has come."""

    def ended(self, connection: Connection) -> None:
        """The launcher has closed the connection, or died."""


class LauncherEnd(Protocol):
    """The launcher's end of a connection; `row` is its process."""

    launcher_id: str
    row: MachineProcess

    def arrived(self, connection: Connection, message: object) -> None:
        """A message has come."""

    def ended(self, connection: Connection) -> None:
        """The agent has closed the connection, or died."""


@dataclass(eq=False, slots=True)
class Connection:
    """One stream connection over the node's socket. Messages arrive in order, a moment later."""

    machine: Machine
    launcher: LauncherEnd
    agent: AgentEnd
    open: bool = True
    hello: bool = False
    _free_s: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def to_agent(self, message: object) -> None:
        """The launcher sends."""
        if self.open:
            self._deliver(0, self.agent.process, lambda: self.agent.arrived(self, message))

    def to_launcher(self, message: object) -> None:
        """The agent sends."""
        if self.open:
            self._deliver(1, self.launcher.row.process, lambda: self.launcher.arrived(self, message))

    def close(self) -> None:
        """Either side has closed it; the other reads what was sent before, then the end."""
        if self.open:
            self.open = False
            self._deliver(0, self.agent.process, lambda: self.agent.ended(self))
            self._deliver(1, self.launcher.row.process, lambda: self.launcher.ended(self))

    def _deliver(self, way: int, to: SimProcess, callback: Callable[[], None]) -> None:
        loop = self.machine.loop
        at_s = max(self._free_s[way], loop.time() + self.machine.rng.uniform(0.0001, 0.002))
        self._free_s[way] = at_s
        loop.post(to, at_s - loop.time(), callback)


@dataclass(eq=False, slots=True)
class Socket:
    """The node's fixed Unix socket: whoever serves it now, if anybody."""

    server: AgentEnd | None = None
    connections: list[Connection] = field(default_factory=list)
