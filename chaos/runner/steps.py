"""The tasks' own step logs, read as they grow: how the runner knows that a job gets on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one process; `at_ms` is CLOCK_BOOTTIME."""

    at_ms: float
    task: str
    attempt: str
    step: int


@dataclass(slots=True)
class StepLog:
    """Every step so far, of all tasks, in the order in which it was read."""

    directory: Path
    steps: list[Step] = field(default_factory=list)
    _offsets: dict[str, int] = field(default_factory=dict)

    def read(self) -> None:
        """Take in what is new; a line that is being written waits for the next look."""
        if not self.directory.is_dir():
            return
        for path in sorted(self.directory.iterdir()):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path.name, 0))
                raw = file.read()
            whole = raw[: raw.rfind(b"\n") + 1]
            self._offsets[path.name] = self._offsets.get(path.name, 0) + len(whole)
            for line in whole.splitlines():
                body = json.loads(line)
                if body["kind"] == "step":
                    self.steps.append(
                        Step(float(body["at_ms"]), body["task"], body["attempt"], int(body["step"]))
                    )

    def since(self, at_ms: float, task: str = "", attempt: str = "") -> int:
        """The number of steps after a moment: of all, of one task, of one attempt."""
        return sum(
            1
            for each in reversed(self.steps)
            if each.at_ms > at_ms and task in ("", each.task) and attempt in ("", each.attempt)
        )
