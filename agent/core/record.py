"""What an agent must find again after its own death (rule 12): the content of its state file."""

from __future__ import annotations

from dataclasses import dataclass

from agent.core.instructions import Recipe


@dataclass(frozen=True, slots=True)
class LauncherRecord:
    """A launcher that was asked for. `pid` is 0 until it was seen: it may exist all the same."""

    launcher_id: str
    recipe: Recipe
    pid: int = 0
    start_ticks: int = 0
    member: str = ""


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
class AttemptRecord:
    """An attempt that was started, or was about to be. `pid` is 0 until it was seen.

    `reason` and what follows it describe its end; empty while it lives.
    """

    attempt: str
    job_uuid: str
    plan_id: str
    launcher_id: str
    port: int
    address: str
    saver: bool
    warm: bool
    patterns: tuple[str, ...] = ()
    pid: int = 0
    start_ticks: int = 0
    started_ms: int = -1
    reason: str = ""
    code: int | None = None
    signal: int | None = None
    ended_ms: int = -1
    confirmed_dead: bool = False
    detail: str = ""
    drained: bool = False
    reported: int = 0


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """One life of an agent on a node. `succeeds`: the lives that it had taken over from, newest first."""

    node: str
    boot_id: str
    incarnation: str
    succeeds: tuple[str, ...] = ()
    launchers: tuple[LauncherRecord, ...] = ()
    ports: tuple[PortRecord, ...] = ()
    attempts: tuple[AttemptRecord, ...] = ()
