"""The dead-man's switch (rule 4) as a value: when to ask, until when to go on. Pure: `now_ms` is an argument.

Safety: the deadline is always the stamp of a pull that was sent plus what the agent granted for that very
stamp. How long the answer took can only shorten what is left of it, never lengthen it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class DeadMan:
    """`deadline_ms`: until when an attempt may run, None before any grant. All on CLOCK_BOOTTIME."""

    deadline_ms: int | None = None
    in_flight_ms: int | None = None
    last_pull_ms: int = -1

    def expired(self, now_ms: int) -> bool:
        """Whether an attempt must be dead by now; also when nothing was ever granted."""
        return self.deadline_ms is None or now_ms >= self.deadline_ms

    def next_pull_ms(self, every_ms: int) -> int | None:
        """When to pull next; None while an answer is outstanding."""
        return None if self.in_flight_ms is not None else self.last_pull_ms + max(1, every_ms)

    def pulled(self, now_ms: int) -> DeadMan:
        """A pull stamped `now_ms` was sent. Stamps are never used twice."""
        assert self.in_flight_ms is None, "one pull in flight"
        assert now_ms > self.last_pull_ms, "stamps only grow"
        return replace(self, in_flight_ms=now_ms, last_pull_ms=now_ms)

    def granted(self, stamp_ms: int, remaining_ms: int) -> DeadMan:
        """The agent's answer; ignored unless it is for the pull in flight."""
        if stamp_ms != self.in_flight_ms:
            return self
        return replace(self, in_flight_ms=None, deadline_ms=stamp_ms + remaining_ms)

    def disconnected(self, *, running: bool) -> DeadMan:
        """The agent is away: a running attempt keeps its deadline, an idle launcher has nothing to keep."""
        return replace(self, in_flight_ms=None, deadline_ms=self.deadline_ms if running else None)
