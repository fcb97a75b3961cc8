"""Dumps of the stacks of a suspected attempt: Python's own dump if it runs warm, and the kernel's view."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from agent.host.regular_files import open_regular, read_start, replace
from agent.inside.child import stacks
from agent.inside.processes import fence
from supervisor.adapters.failpoints import effect

DUMP = "dump.txt"
STACK_BYTES = 6 * 1024
PYTHON_BYTES = 4 * 1024
WAIT_S = 1.0
_LOOK_S = 0.02
_QUIET_LOOKS = 3
_MOST_BYTES = 1 << 20
_MOST_THREADS = 2000
_MOST_CHILDREN = 20


def dump_stacks(directory: Path, pid: int, start_ticks: int) -> str:
    """Write the stacks of a process to DUMP in `directory`; returns the beginning. It takes up to 1 s.

    The process is not stopped: it is only observed, and its Python threads print their stacks.
    """
    process = fence.read_process(pid)
    if process is None or process.start_ticks != start_ticks:
        return ""
    python = _python_stacks(directory, pid) if process.state not in "Tt" else ""
    parts = [f"pid {pid}, {_state(Path(f'/proc/{pid}'))}\n"]
    if python:
        parts.append(_cut(python, PYTHON_BYTES))
    parts.append(_threads(pid))
    parts += [_threads(child) for child in _children(pid)]
    text = "\n".join(parts)
    whole = f"{text}\n\nPython stacks, whole:\n{python}" if len(python) > PYTHON_BYTES else text
    with suppress(OSError):
        replace(directory / DUMP, whole[:_MOST_BYTES])
    return _cut(text, STACK_BYTES)


def read_dump(directory: Path) -> str:
    """The beginning of an earlier dump; empty if there is none."""
    try:
        return read_start(directory / DUMP, STACK_BYTES).decode(errors="ignore")
    except OSError:
        return ""


def _python_stacks(directory: Path, pid: int) -> str:
    """The Python stacks of the process; empty if it has no handler for our signal, which would end it.

    A program that is not warm never made the file. It may use that signal for its own purpose.
    """
    path = directory / stacks.FILE
    if not path.is_file() or not _catches(pid, stacks.SIGNAL):
        return ""
    before = _size(path)
    with suppress(ProcessLookupError, PermissionError), effect("agent.logs.dump"):
        os.kill(pid, stacks.SIGNAL)
    until, size, quiet = time.monotonic() + WAIT_S, before, 0
    while time.monotonic() < until and quiet < _QUIET_LOOKS:
        time.sleep(_LOOK_S)
        size, last = _size(path), size
        quiet = quiet + 1 if size == last and size > before else 0
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            file.seek(before)
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _catches(pid: int, number: int) -> bool:
    mask = _field(Path(f"/proc/{pid}"), "SigCgt")
    return bool(mask) and bool(int(mask, 16) >> (number - 1) & 1)


def _threads(pid: int) -> str:
    """The kernel's view of the threads; equal ones are counted."""
    seen: Counter[str] = Counter()
    try:
        threads = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda each: int(each.name))
    except OSError:
        return f"pid {pid} is gone"
    for thread in threads[:_MOST_THREADS]:
        name, wait, call = (_read(thread / each) for each in ("comm", "wchan", "syscall"))
        number = call.partition(" ")[0] or "?"
        state = _state(thread)
        seen[f"{name}: {state}, in {wait if wait not in ('', '0') else '?'}, system call {number}"] += 1
    lines = [f"{count} x {line}" for line, count in seen.most_common()]
    return "\n".join([f"threads of pid {pid} ({_read(Path(f'/proc/{pid}/comm'))}):", *lines])


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += [int(each) for each in _read(thread / "children").split()]
    return found[:_MOST_CHILDREN]


def _state(process: Path) -> str:
    return f"state {_field(process, 'State') or '?'}"


def _field(process: Path, name: str) -> str:
    for line in _read(process / "status").splitlines():
        if line.startswith(f"{name}:"):
            return line.partition(":")[2].strip()
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _cut(text: str, most_bytes: int) -> str:
    raw = text.encode()
    return text if len(raw) <= most_bytes else raw[: most_bytes - 4].decode(errors="ignore") + "\n..."
