"""A rehearsal of kills: the time that a task takes to end on this node while every processor is busy.

`python -m agent.inside.rehearsal PARENT NICE UID GID MIB` prints the longest of a few kills in milliseconds.
Each kill is of a process with a hundred threads and MIB of memory. It has the priority of a task that trains,
as does one busy loop for each processor; together they take a fraction of a second. The killer has the rights
of a launcher: those of user UID, or its own if UID is -1. All processes end with the process PARENT.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from .processes import priority, spawn

ROUNDS = 3
THREADS = 100
"""The number of threads, similar to that of a TensorFlow task."""
LONGEST_S = 12
_SETTLE_S = 0.05
_MOST_LOOPS = 256
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.05
_STACK_BYTES = 1 << 18


def main(arguments: list[str]) -> None:
    """Rehearse and print. Raises OSError on failure, and ends by SIGALRM if it takes too long."""
    parent, nice, uid, gid, mib = map(int, arguments)
    signal.alarm(LONGEST_S)
    _first_for_the_oom_killer()
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    spawn.die_with(parent)  # after setuid, which takes it back
    print(max(_rehearse(nice, mib) for _ in range(ROUNDS)))


def _rehearse(nice: int, mib: int) -> int:
    loops = min(len(os.sched_getaffinity(0)), _MOST_LOOPS)
    reader, writer = os.pipe()
    pids: list[int] = []
    children: list[Callable[[], None]] = [partial(_live, mib, writer), *[partial(_burn, writer)] * loops]
    try:
        for child in children:
            pids.append(_fork(child))
            if not os.read(reader, 1):
                raise OSError("a process of the measurement did not start")
        for pid in pids:
            priority.lower(pid, nice)
        time.sleep(_SETTLE_S)
        return _kill(pids.pop(0))
    finally:
        os.close(reader)
        os.close(writer)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def _kill(pid: int) -> int:
    """Kill as a launcher does; returns when all threads have ended and their memory is free."""
    began_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    again_s, pause_s = began_s, _FIRST_PAUSE_S
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() >= again_s:
            priority.hasten(pid)
            again_s = time.monotonic() + pause_s
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        time.sleep(0.001)
    return round((time.monotonic() - began_s) * 1000)


def _live(mib: int, ready: int) -> None:
    held = mmap.mmap(-1, mib << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for start in range(0, len(held), mmap.PAGESIZE):
        held[start] = 1
    threading.stack_size(_STACK_BYTES)
    for _ in range(THREADS - 1):
        threading.Thread(target=time.sleep, args=(LONGEST_S,), daemon=True).start()
    os.write(ready, b".")
    time.sleep(LONGEST_S)


def _burn(ready: int) -> NoReturn:
    os.write(ready, b".")
    while True:
        pass


def _fork(child: Callable[[], None]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            spawn.die_with(parent)
            signal.alarm(LONGEST_S)
            child()
        finally:
            os._exit(1)
    return pid


def _first_for_the_oom_killer() -> None:
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
            file.write("1000")
    except OSError:
        pass  # a hint


if __name__ == "__main__":
    main(sys.argv[1:])
