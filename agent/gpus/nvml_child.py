"""`python -m agent.gpus.nvml_child PARENT POLL_MS KMSG LAST [GPU...]`: calls NVML, writes a `Sight` a line.

It is a process of its own, because a call of a hanging driver cannot be given up in any other way, and a
crashing driver ends its process. An empty line is a sign of life. A line to its standard input asks for a
look. It ends when NVML cannot be used, with the reason as its last line, and when `PARENT` has ended. KMSG is
the kernel's log, or empty. LAST is the number of the last record that an earlier child has reported, or -1.
The log is reported before the first call of NVML, which may hang: a driver writes the reason of a hang to the
log first. With GPUs (indices or UUIDs, or `none`) it knows no others.
"""

from __future__ import annotations

import os
import re
import select
import sys
import time
from dataclasses import replace

from agent.core.gpus.health import Sight, Xid
from agent.gpus.nvml import Nvml
from agent.inside.processes import spawn
from supervisor.contract import codec
from supervisor.contract.errors import Refused

SLICE_MS = 50
"""Longest wait for an event in ms. A sign of life follows each wait."""
GLANCE_MS = 150
"""Interval in ms of reading the alarms between two looks: three calls for each GPU."""
_NUMBER = re.compile(rb"\d+,(\d+),")
_XID = re.compile(rb"NVRM: Xid \(PCI:([0-9a-fA-F:]+)[^)]*\): (\d+)")


class KernelLog:
    """XIDs of the kernel's log, a second source for drivers whose events are silent.

    It reads XIDs after the record `last`, or new ones if that is -1. `last` is then the newest record read.
    """

    def __init__(self, path: str, last: int) -> None:
        self._fd = -1
        self.last = last
        if not path:
            return
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return  # not root, or no such log: NVML's own events remain
        if last < 0:
            self.xids()

    def xids(self) -> tuple[Xid, ...]:
        """The XIDs since the last call; never waits."""
        found: list[Xid] = []
        while self._fd >= 0:
            try:
                record = os.read(self._fd, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # the log was overwritten before it was read; what is left of it follows
            except OSError:
                os.close(self._fd)
                self._fd = -1
                break
            if not record:
                break
            for line in record.splitlines():
                found += self._new_in(line)
        return tuple(found)

    def _new_in(self, line: bytes) -> list[Xid]:
        number = _NUMBER.match(line)
        if number is None or int(number[1]) <= self.last:
            return []
        self.last = int(number[1])
        return [Xid(int(code), pci=bus.decode().lower()) for bus, code in _XID.findall(line)]


def serve(nvml: Nvml, log: KernelLog, poll_ms: int) -> None:
    """Write looks and events until NVML fails (Refused) or the reader is gone."""
    due_ms, glance_ms, known = 0, 0, nvml.glance()
    while True:
        now_ms = time.monotonic_ns() // 1_000_000
        if now_ms >= glance_ms:
            before, known = known, nvml.glance()
            due_ms = due_ms if known == before else now_ms
            glance_ms = now_ms + GLANCE_MS
        if now_ms >= due_ms:
            _tell(replace(nvml.look(), kernel=log.last))
            due_ms = now_ms + poll_ms
        wait_ms = max(1, min(SLICE_MS, due_ms - now_ms))
        event = nvml.wait(wait_ms) if nvml.has_events else None
        if not nvml.has_events:
            time.sleep(wait_ms / 1000)
        if event is not None or _asked():
            due_ms = 0
        xids = (*((event,) if event is not None and event.code else ()), *log.xids())
        _tell(Sight(nvml.driver, xids=xids, kernel=log.last) if xids else None)


def _asked() -> bool:
    """Whether a look is requested.

    The end of the input is no request: the parent's death is detected otherwise.
    """
    return bool(select.select([0], [], [], 0)[0]) and bool(os.read(0, 4096))


def _tell(sight: Sight | None) -> None:
    line = codec.encode(sight) if sight is not None else b""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def main(parent: int, poll_ms: int, kmsg: str, last: int, only: tuple[str, ...] = ()) -> None:
    """Look at the GPUs until the end; at those of `only`, if it names any."""
    spawn.die_with(parent)
    log = KernelLog(kmsg, last)
    _tell(Sight(xids=log.xids(), kernel=log.last))
    try:
        serve(Nvml(frozenset(only) if only else None), log, poll_ms)
    except Refused as error:
        _tell(Sight(problem=str(error)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), tuple(sys.argv[5:]))
