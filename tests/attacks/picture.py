"""The state of a site before an attack, which must be the same after it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Picture:
    """The state that an attack must leave as it is; `files`: owner, mode and content by path."""

    daemons: Mapping[str, tuple[int | None, int]]
    victim: tuple[object, ...]
    files: Mapping[str, str]
    processes: frozenset[tuple[int, str]]
    mounts: tuple[str, ...]
    listening: frozenset[str]

    def problems(self, now: Picture) -> list[str]:
        """The differences, in words."""
        found = [
            f"{name}: {now.daemons[name]}, was {was}"
            for name, was in self.daemons.items()
            if now.daemons[name] != was
        ]
        if now.victim != self.victim:
            found.append(f"the victim: {now.victim}, was {self.victim}")
        for path in sorted(self.files.keys() | now.files.keys()):
            was, has = self.files.get(path, "none"), now.files.get(path, "none")
            if was != has:
                found.append(f"{path}: {has}, was {was}")
        found += [f"left: process {pid} {name}" for pid, name in sorted(now.processes - self.processes)]
        found += [f"left: mount {line}" for line in now.mounts if line not in self.mounts]
        found += [f"left: socket {line}" for line in sorted(now.listening - self.listening)]
        found += [f"gone: socket {line}" for line in sorted(self.listening - now.listening)]
        return found


def entries(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def is_bug(line: str) -> bool:
    return any(
        word in line for word in ("Traceback", "by a bug", "an error of its own", "error of tf-supervisor")
    )


def look(path: Path, *, content: bool) -> str:
    try:
        found = path.lstat()
        told = f"{found.st_uid}:{found.st_gid} {found.st_mode:o}"
        if path.is_symlink():
            return f"{told} -> {path.readlink()}"
        if path.is_file() and content:
            told += " " + hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except FileNotFoundError:
        return "none"
    except PermissionError:
        return "not to be read"
    return told
