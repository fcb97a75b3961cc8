"""The secrets of the attempts on this node. They are kept in memory alone; a launcher tells a successor."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from agent.inside.launcher.mask import Masker, masked


@dataclass(slots=True)
class TaskSecrets:
    """By attempt and variable."""

    _known: dict[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    def learn(self, attempt: str, secrets: Mapping[str, str]) -> None:
        """These are an attempt's."""
        self._known[attempt] = dict(secrets)

    def of(self, attempt: str) -> Mapping[str, str]:
        """Those that are known."""
        return self._known.get(attempt, {})

    def forget(self, attempt: str) -> None:
        """It is over."""
        self._known.pop(attempt, None)

    def keep(self, attempts: Collection[str]) -> None:
        """Forget those of all other attempts."""
        for attempt in self._known.keys() - set(attempts):
            del self._known[attempt]

    def masker(self, attempt: str) -> Masker:
        """For a stream of what an attempt, or a command beside it, prints."""
        return Masker(self.of(attempt).values())

    def masked(self, attempt: str, text: str) -> str:
        """A text about an attempt without its secrets."""
        return masked(text, self.of(attempt).values())
