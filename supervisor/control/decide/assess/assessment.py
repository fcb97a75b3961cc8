"""The assessment of a job in one snapshot, made once for all that decide on it or show it."""

from __future__ import annotations

from dataclasses import dataclass, field

from recovery.policy.hangs import Hang, Judgement, Running
from supervisor.contract.ids import TaskId
from supervisor.control.decide.assess.completion import Completion
from supervisor.control.decide.assess.members import Member
from supervisor.control.decide.assess.need import Need


@dataclass(frozen=True, slots=True)
class Liveness:
    """The liveness of a running job's tasks, by their signs of life.

    Attributes:
        slow: those of the suspected that have not come to their first step, as `slow_starts` says.
        acted: the hang to act upon, and the restart of the task that is blamed.
        left: hangs that are left alone, each with the reason.
    """

    tasks: tuple[Running, ...] = ()
    judgement: Judgement = field(default_factory=Judgement)
    slow: frozenset[TaskId] = frozenset()
    acted: tuple[Hang, Need] | None = None
    left: tuple[tuple[Hang, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The state of a job, and what it needs. `assess.assess` makes it.

    Attributes:
        members: of the generation in force, but those that leave it; none while the job does not run.
        leaving: the workers that are to leave the generation in force, the last one first.
        liveness: whether they show signs of life.
        completion: how far a job that runs is from its end.
        need: the restart that it needs; None also for a job that neither runs nor waits for its start.
        held: why nothing of it is restarted or moved now; empty where it may be.
    """

    members: tuple[Member, ...] = ()
    leaving: tuple[Member, ...] = ()
    liveness: Liveness = field(default_factory=Liveness)
    completion: Completion | None = None
    need: Need | None = None
    held: str = ""
