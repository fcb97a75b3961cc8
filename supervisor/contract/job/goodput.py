"""The goodput ledger: what the time of a job since its submission was spent on (docs/goodput.md).

Each moment is in exactly one category. The taxonomy follows Google's ml-goodput-measurement. The record is
written when another category begins, and rarely else: what runs now has run since the record's time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Category(Enum):
    """The use of a moment of a job. The names are those of the API and of metrics."""

    PRODUCTIVE = "productive"
    REDOING = "redoing"
    SAVING = "saving"
    STARTING = "starting"
    DETECT = "recovering_detect"
    DECIDE = "recovering_decide"
    PREPARE = "recovering_prepare"
    FENCE = "recovering_fence"
    RESTORING = "restoring"
    START = "recovering_start"
    FIRST_STEP = "recovering_first_step"
    WAITING_ROOM = "waiting_room"
    WAITING_STORE = "waiting_store"
    STOPPED = "stopped"

    @property
    def trains(self) -> bool:
        """Whether the program trains meanwhile."""
        return self in (Category.PRODUCTIVE, Category.REDOING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """What a job's time was spent on until `wall_ms`, and what it is spent on since.

    Attributes:
        since_wall_ms: from when on its time is counted: its submission, or a release that counts.
        spent_ms: by the value of a Category.
        category: what runs since the record's time.
        incident: the incident whose phases are counted, or were counted last.
        reached: the furthest step that was seen before the last restart; -1: none.
        saver: the attempt whose saves are counted, and `saves`: how many of them are.
        leader: the revision of the token under which it was written.
        at_ms: the record's time, on that leader's clock.
        wall_ms: the same on its wall clock.
    """

    job: str
    job_uuid: str
    since_wall_ms: int
    wall_ms: int
    category: Category = Category.STARTING
    spent_ms: dict[str, int] = field(default_factory=dict)
    incident: str = ""
    reached: int = -1
    saver: str = ""
    saves: int = 0
    leader: int = 0
    at_ms: int = 0
