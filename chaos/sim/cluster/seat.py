"""The seat of a daemon of the simulated cluster, its log, and the state of the network between seats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agent.daemon import AgentDaemon
from chaos.sim.cluster.etcd import SimEtcd
from chaos.sim.cluster.loop import SimProcess
from chaos.sim.cluster.machine import Machine, NodeClock
from chaos.sim.cluster.node import LauncherTable, SimLaunchers
from supervisor.contract.boundaries import Logger
from supervisor.control.loop.daemon import ControlDaemon


class SimSink(Logger):
    """A daemon's log, as lines of the trace."""

    def __init__(self, who: str, say: Callable[[str], None]) -> None:
        self._who = who
        self._say = say

    def debug(self, event: str, **fields: object) -> None:
        """Too much for a trace."""

    def info(self, event: str, **fields: object) -> None:
        """One line."""
        self._line("", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """One line."""
        self._line("! ", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """One line."""
        self._line("!! ", event, fields)

    def _line(self, mark: str, event: str, fields: dict[str, object]) -> None:
        shown = " ".join(f"{key}={value}" for key, value in fields.items())
        self._say(f"{self._who}: {mark}{event} {shown}".rstrip())


@dataclass(slots=True)
class Weather:
    """The state of the network: chances for each message, and the partitions in force."""

    lost: float = 0.0
    twice: float = 0.0
    slow: float = 0.0
    slow_s: float = 0.7
    etcd_fault: float = 0.0
    store_fault: float = 0.0
    store_s: float = 0.004
    store_lag_s: float = 0.0
    watch_lag_s: float = 0.0
    word_lag_s: float = 0.0
    cut_from_supervisors: set[str] = field(default_factory=set)
    cut_from_etcd: set[str] = field(default_factory=set)

    def clear(self) -> None:
        """End all losses and delays."""
        self.lost = self.twice = self.slow = self.etcd_fault = self.store_fault = 0.0
        self.store_lag_s = self.watch_lag_s = self.word_lag_s = 0.0


@dataclass(slots=True, eq=False)
class Seat:
    """The place of one daemon: its life now, and whether its keeper brings it back."""

    name: str
    clock: NodeClock
    lives: int = 0
    process: SimProcess | None = None
    etcd: SimEtcd | None = None
    control: ControlDaemon | None = None
    agent: AgentDaemon | None = None
    launchers: SimLaunchers | None = None
    machine: Machine | None = None
    table: LauncherTable = field(default_factory=LauncherTable)
    kept: bool = True
    label: str = ""

    @property
    def host(self) -> str:
        """The machine that it runs on: the node's own, unless it has the node's id by mistake."""
        return self.label or self.name

    @property
    def running(self) -> bool:
        """Whether a life of the daemon is there, frozen or not."""
        return self.process is not None and self.process.alive


def unforeseen(error: BaseException | None) -> str:
    """Why a daemon has ended, unless it is for one of the reasons that its contract names."""
    causes = _leaves(error)
    if causes and all(type(each).__name__ in {"Fenced", "Conflict"} for each in causes):
        return ""
    return "; ".join(f"{type(each).__name__}: {each}" for each in causes) or "it returned"


def _leaves(error: BaseException | None) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error] if error is not None else []
