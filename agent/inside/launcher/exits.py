"""Exit records that no agent has acknowledged yet: in memory for the Hello, on disk for an agent after the
launcher's end.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable

from .. import protocol
from ..failpoints import effect

DIRECTORY = "exits"


class ExitRecords:
    """The files `state_dir`/exits/ATTEMPT.json, one for each exit.

    An agent reads them when the launcher has left.
    """

    def __init__(self, state_dir: str) -> None:
        self._directory = os.path.join(state_dir, DIRECTORY)
        self._records: dict[str, protocol.Exited] = {}

    def unacknowledged(self) -> tuple[protocol.Exited, ...]:
        """All records, oldest first."""
        return tuple(self._records.values())

    def keep(self, exited: protocol.Exited) -> None:
        """Add a record, or replace the one that was not confirmed dead."""
        self._records[exited.attempt] = exited
        path = record_path(self._directory, exited.attempt)
        try:
            with effect("launcher.exit_write"):
                os.makedirs(self._directory, exist_ok=True)
                with open(f"{path}.new", "w", encoding="utf-8") as file:
                    json.dump(protocol.to_plain(exited), file)
            with effect("launcher.exit_rename"):
                os.replace(f"{path}.new", path)
        except OSError:
            pass  # a full disk: the record in memory serves as long as this process lives

    def resend(self, attempt: str, send: Callable[[object], None]) -> bool:
        """Send the record of `attempt` again; False if there is none."""
        exited = self._records.get(attempt)
        if exited is not None:
            send(exited)
        return exited is not None

    def forget(self, attempt: str) -> None:
        """Remove a record that the agent has acknowledged."""
        if self._records.pop(attempt, None) is not None:
            try:
                with effect("launcher.exit_forget"):
                    os.unlink(record_path(self._directory, attempt))
            except OSError:
                pass  # never written, or removed by an agent that read it


def record_path(directory: str, attempt: str) -> str:
    """The path of the record of `attempt`; attempt ids may contain '/' and ':'."""
    return os.path.join(directory, re.sub(r"[^A-Za-z0-9@._-]", "_", attempt) + ".json")
