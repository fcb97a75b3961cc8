"""The secrets of the attempts on this node.

They are kept only in memory; a successor gets them from the launchers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from agent.inside.launcher.mask import Masker, masked


@dataclass(slots=True)
class TaskSecrets:
    """Attempt -> variable -> secret."""

    _known: dict[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    def learn(self, attempt: str, secrets: Mapping[str, str]) -> None:
        """Set the secrets of an attempt."""
        self._known[attempt] = dict(secrets)

    def of(self, attempt: str) -> Mapping[str, str]:
        """The known secrets of an attempt."""
        return self._known.get(attempt, {})

    def forget(self, attempt: str) -> None:
        """Forget the secrets of an attempt that is over."""
        self._known.pop(attempt, None)

    def keep(self, attempts: Collection[str]) -> None:
        """Forget the secrets of all other attempts."""
        for attempt in self._known.keys() - set(attempts):
            del self._known[attempt]

    def masker(self, attempt: str) -> Masker:
        """A masker for the output of an attempt, or of a command beside it."""
        return Masker(self.of(attempt).values())

    def masked(self, attempt: str, text: str) -> str:
        """A text about an attempt without its secrets."""
        return masked(text, self.of(attempt).values())
