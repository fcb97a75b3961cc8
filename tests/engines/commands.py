"""Programs of the tests in place of Slurm's commands, and what they were given."""

from __future__ import annotations

from pathlib import Path


class Commands:
    """A directory that is first on PATH."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def put(self, name: str, body: str) -> None:
        """Make a command; what it is called with is noted."""
        path = self.directory / name
        path.write_text(f'#!/bin/sh\necho "$0 $*" >>{self.directory}/calls\n{body}\n')
        path.chmod(0o755)

    @property
    def path(self) -> str:
        """PATH with these commands."""
        return f"{self.directory}:/usr/bin:/bin"

    @property
    def calls(self) -> list[str]:
        """Each call so far, with its arguments."""
        file = self.directory / "calls"
        text = file.read_text() if file.exists() else ""
        return text.replace(f"{self.directory}/", "").splitlines()
