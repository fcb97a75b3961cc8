"""Processes as the kernel shows them, so that nobody's word has to be taken."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """One process, unambiguous within a boot even when its pid is used again."""

    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie, all of whose threads have ended, does not."""
        fields = _stat(self.pid)
        return fields is not None and int(fields[19]) == self.start_ticks and not _dead(fields)

    @property
    def cpu_ticks(self) -> int:
        """Clock ticks of processor time so far; 0 when it is gone."""
        fields = _stat(self.pid)
        return 0 if fields is None else int(fields[11]) + int(fields[12])


def process(pid: int) -> ProcessRef | None:
    """The live process of this pid, if there is one."""
    fields = _stat(pid)
    return None if fields is None or _dead(fields) else ProcessRef(pid, int(fields[19]))


def family(root: int) -> list[ProcessRef]:
    """A process and all its descendants, as far as they live."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields is not None:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        queue += children.get(pid, [])
        ref = process(pid)
        if ref is not None:
            found.append(ref)
    return found


def using(directory: Path) -> list[ProcessRef]:
    """Live processes, other than this one, whose command line or working directory is under `directory`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            inside = (entry / "cwd").readlink().is_relative_to(directory)
        except OSError:
            continue
        if inside or os.fsencode(directory) + b"/" in command:
            ref = process(int(entry.name))
            if ref is not None:
                found.append(ref)
    return found


def _stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the state on; the command name before them may hold anything."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return raw[raw.rindex(b")") + 2 :].split()


def _dead(fields: list[bytes]) -> bool:
    return fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
