"""The record of a pause. While it is in force the leader restarts and moves nothing (rule 6.14)."""

from __future__ import annotations

from dataclasses import dataclass

MOST_REASON = 500
"""Characters of an operator's reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A pause of the whole cluster, or of one job.

    The record of the cluster stays when its pause is over. That of a job goes.

    Attributes:
        by: the caller that asked for it; empty for the brake.
        reason: for people.
        wall_ms: when it began, for people.
        in_force: it is not over.
        brake: the leader has begun it, as many nodes were lost at once, and ends it when they are back.
        since: of the brake, the etcd revision of the oldest lost mark that it counts.
        passed: lost marks up to this revision do not begin the brake again, as an operator knows of them.
    """

    by: str = ""
    reason: str = ""
    wall_ms: int = 0
    in_force: bool = True
    brake: bool = False
    since: int = 0
    passed: int = 0
