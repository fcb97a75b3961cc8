"""The place where the last lines of a text begin, found from its end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LastLines:
    """The last lines of a text that is read backwards. A line that has not ended is one.

    Attributes:
        lines: those that are still looked for.
        size: the length in bytes of what was found of them.
    """

    lines: int
    size: int = 0

    def before(self, block: bytes) -> bool:
        """Take the block before those so far; whether all lines are found."""
        end = len(block)
        # An end of line that is the last byte of all begins no line.
        at = end - 1 if not self.size and block.endswith(b"\n") else end
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            self.lines -= 1
            if self.lines == 0:
                self.size += end - at - 1
                return True
        self.size += end
        return False
