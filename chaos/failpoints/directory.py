"""The directory by which a test arms the failpoints of running daemons, and sees what has come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.adapters.failpoints import ARMED, REACHED, STRUCK, VARIABLE


@dataclass(frozen=True, slots=True)
class Strike:
    """A point at which it happened, and the process to which."""

    point: str
    pid: int


@dataclass(frozen=True, slots=True)
class Directory:
    """The directory that `TFSUP_FAILPOINTS` names."""

    root: Path

    def make(self) -> Directory:
        """Make it, as only this user can write to it; returns itself."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.root.chmod(0o700)
        for name in (ARMED, REACHED, STRUCK):
            (self.root / name).mkdir(mode=0o700, exist_ok=True)
        return self

    def environment(self) -> Mapping[str, str]:
        """With this in its environment a daemon heeds what is armed here."""
        return {VARIABLE: str(self.root)}

    def arm(self, point: str, action: str = "kill") -> None:
        """Have this happen, once, when a process next gets there; see `supervisor.adapters.failpoints`."""
        fresh = self.root / f"{point}.new"
        fresh.write_text(action)
        fresh.rename(self.root / ARMED / point)

    def disarm(self) -> None:
        """Disarm all points."""
        for each in (self.root / ARMED).iterdir():
            each.unlink(missing_ok=True)

    def struck(self) -> tuple[Strike, ...]:
        """The strikes so far."""
        found = (each.name.rpartition(".") for each in sorted((self.root / STRUCK).iterdir()))
        return tuple(Strike(point, int(pid)) for point, _, pid in found)

    def reached(self) -> frozenset[str]:
        """Every point at which some process has been since this was last forgotten."""
        return frozenset(each.name for each in (self.root / REACHED).iterdir())

    def forget_reached(self) -> None:
        """Begin to note anew where processes have been."""
        for each in (self.root / REACHED).iterdir():
            each.unlink(missing_ok=True)
