"""The dead-man's switch (rule 4) as a value: the times of pulls, and the deadline.

Pure: `now_ms` is an argument.

Safety: the deadline is always the stamp of a sent pull plus the time that the agent granted for that stamp. A
slow answer can only shorten the remaining time, never lengthen it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class DeadMan:
    """`deadline_ms`: the time until which an attempt may run; None before any grant.

    All times are on CLOCK_BOOTTIME.
    """

    deadline_ms: int | None = None
    in_flight_ms: int | None = None
    last_pull_ms: int = -1

    def expired(self, now_ms: int) -> bool:
        """Whether an attempt must be dead by now; True without any grant too."""
        return self.deadline_ms is None or now_ms >= self.deadline_ms

    def next_pull_ms(self, every_ms: int) -> int | None:
        """The time of the next pull; None while an answer is outstanding."""
        return None if self.in_flight_ms is not None else self.last_pull_ms + max(1, every_ms)

    def pulled(self, now_ms: int) -> DeadMan:
        """Note a sent pull with the stamp `now_ms`. Stamps are never used twice."""
        assert self.in_flight_ms is None, "one pull in flight"
        assert now_ms > self.last_pull_ms, "stamps only grow"
        return replace(self, in_flight_ms=now_ms, last_pull_ms=now_ms)

    def granted(self, stamp_ms: int, remaining_ms: int) -> DeadMan:
        """Note the agent's answer. It is ignored unless it is for the pull in flight."""
        if stamp_ms != self.in_flight_ms:
            return self
        return replace(self, in_flight_ms=None, deadline_ms=stamp_ms + remaining_ms)

    def disconnected(self, *, running: bool) -> DeadMan:
        """Note the loss of the agent. A running attempt keeps its deadline; an idle launcher has none."""
        return replace(self, in_flight_ms=None, deadline_ms=self.deadline_ms if running else None)
