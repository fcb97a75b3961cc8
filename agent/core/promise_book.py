"""The promises of supervisors that one life of an agent has (rule 11)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PromiseBook:
    """The promises that this life has.

    Attributes:
        supervisors: all that must promise, by name; none: promises are off.
        for_ms: V, for how long they do.
        asked, asked_ms: the serial of the last request, and when it was made; -1 for never.
        given: until when each supervisor's promise holds, on our clock.
        until_ms: until when tasks may run by them; -1 while reads vouch for this node.
        floor: answers to requests up to this serial count no more.
        reads_ms: since when reads vouch for this node again, while promises are not given up yet; else -1.
        released: the serial up to which they are given up.
        said: the refusal that was told last.
    """

    supervisors: tuple[str, ...] = ()
    for_ms: int = 0
    asked: int = 0
    asked_ms: int = -1
    given: dict[str, int] = field(default_factory=dict)
    until_ms: int = -1
    floor: int = 0
    reads_ms: int = -1
    released: int = 0
    said: str = ""

    def anew(self) -> PromiseBook:
        """The book for another life of the agent: promises to the life before do not count."""
        return PromiseBook(self.supervisors, self.for_ms, self.asked, floor=self.asked, released=self.asked)
