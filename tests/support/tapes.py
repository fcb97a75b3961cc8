"""Output of a program that comes from memory."""

from __future__ import annotations

from dataclasses import dataclass

from agent.logs.steps import StepReader


@dataclass(slots=True)
class Tape(StepReader):
    """Reads what a test has put into `waiting`."""

    waiting: bytes = b""

    def _chunk(self, budget: int) -> bytes:
        data, self.waiting = self.waiting[:budget], self.waiting[budget:]
        return data

    def _take_hook(self) -> None:
        pass
