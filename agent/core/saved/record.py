"""The content of an agent's state file, for its next process (rule 12)."""

from __future__ import annotations

from dataclasses import dataclass

from agent.core.gpus.health import GpuRecord
from agent.core.instructions import Reach, Recipe
from supervisor.contract.boundaries import Seen
from supervisor.contract.observed import Exit, ExitReason


@dataclass(frozen=True, slots=True)
class LauncherRecord:
    """A launcher that was asked for. `pid` is 0 until it was seen: it may exist all the same.

    `had_secrets`: true also where an earlier release, which did not record it, has written the record.
    """

    launcher_id: str
    recipe: Recipe
    pid: int = 0
    start_ticks: int = 0
    member: str = ""
    reach: Reach | None = None
    had_secrets: bool = True


@dataclass(frozen=True, slots=True)
class PortRecord:
    """A port held for a plan's task."""

    job: str
    plan_id: str
    member: str
    launcher_id: str
    port: int
    warm: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """How an attempt ended, as seen here."""

    reason: ExitReason
    code: int | None
    signal: int | None
    ended_ms: int
    confirmed_dead: bool
    detail: str = ""
    address_lost: bool = False
    rebooted: bool = False

    def as_exit(self) -> Exit:
        """The exit for the report; the daemon adds age and tail."""
        return Exit(
            self.reason,
            self.code,
            self.signal,
            0,
            self.confirmed_dead,
            self.detail,
            address_lost=self.address_lost,
            rebooted=self.rebooted,
        )


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """An attempt that was started, or was about to be. `pid` is 0 until seen. `told`: see state.Told."""

    job: str
    role: str
    index: int
    generation: int
    number: int
    job_uuid: str
    plan_id: str
    launcher_id: str
    port: int
    address: str
    warm: bool
    patterns: tuple[str, ...] = ()
    pid: int = 0
    start_ticks: int = 0
    started_ms: int = -1
    end: End | None = None
    drained: bool = False
    look: int = 0
    uncommitted: str = ""
    told: int = 0
    watch_nan: bool = False
    hold_ms: int = 0
    ending_ms: int = -1
    gpus: tuple[str, ...] = ()
    gpus_shared: bool = False


@dataclass(frozen=True, slots=True)
class PlanAddresses:
    """`host:port` of each task of a plan of which attempts run here, for the firewall."""

    plan_id: str
    job_uuid: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """One life of an agent on a node. `succeeds`: the lives that it had taken over from, newest first.

    `gpus`: those that ever had a fault. `serial`: grows with each record of this node that is saved;
    `origin`: the life that began to count, as it had found neither record nor number. `cluster`: the UUID of
    the one whose tasks these are; empty before its record was read. `seen`: the newest write by which etcd
    wanted anything here. `addresses`: what the firewall lets tasks reach, where there is one.
    """

    node: str
    boot_id: str
    incarnation: str
    succeeds: tuple[str, ...] = ()
    born: int = 0
    launchers: tuple[LauncherRecord, ...] = ()
    ports: tuple[PortRecord, ...] = ()
    attempts: tuple[AttemptRecord, ...] = ()
    gpus: tuple[GpuRecord, ...] = ()
    serial: int = 0
    origin: str = ""
    cluster: str = ""
    seen: Seen | None = None
    addresses: tuple[PlanAddresses, ...] = ()


@dataclass(frozen=True, slots=True)
class Saved:
    """The record that was saved last, by its number and life: kept apart from the record itself.

    It is written when the record is durable and before anything depends on that: it is never ahead of a
    record that is the last one.
    """

    incarnation: str
    serial: int
    origin: str
