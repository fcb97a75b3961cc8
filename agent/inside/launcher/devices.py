"""Whether the GPUs that a task was given can be used inside it, looked at from a process beside each attempt.

A container can lose its devices while the host's NVML finds them well (nvidia-docker #1730), and programs
that have them open already notice late or hang. Only one that opens them anew sees it. As that may hang in
the driver, it is done by `PYTHON -I -S agent/inside --devices PARENT EVERY_MS LIBRARY UUID...`, which the
fencing of the attempt ends like all that the attempt started. It writes one line, when something is missing.
"""

from __future__ import annotations

import ctypes
import os
import select
import selectors
import sys
import time
from collections.abc import Callable
from typing import Optional

from .. import protocol
from ..failpoints import effect
from ..processes import spawn

_CONTROL = "/dev/nvidiactl"
# NVML's codes that speak of the devices: no permission, not found, no driver here, the GPU is lost. All
# others leave it open: 18 is a driver whose files were replaced under programs that go on training.
_MISSING = frozenset({4, 6, 9, 15})
_AGAIN_S = 0.05
_WATCH_AGAIN_MS = 5_000
# To open one node costs next to nothing, and is what fails first; NVML is asked less often.
_CONTROL_EVERY_S = 0.1


class Watch:
    """The launcher's side of it: `fd` is readable when it has something to say. Raises OSError."""

    def __init__(self, start: protocol.Start) -> None:
        self.fd, said = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        listens, self._leash = os.pipe2(os.O_CLOEXEC)
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        command = [sys.executable, "-I", "-S", here, "--devices", str(os.getpid()), str(start.devices_ms)]
        try:
            with effect("launcher.look_at_devices"):
                os.posix_spawn(
                    sys.executable,
                    [*command, start.nvml, *start.devices],
                    os.environ,
                    file_actions=[(os.POSIX_SPAWN_DUP2, listens, 0), (os.POSIX_SPAWN_DUP2, said, 1)],
                )
        except OSError:
            self.close()
            raise
        finally:
            os.close(said)
            os.close(listens)

    def read(self) -> Optional[str]:
        """What is missing; empty if the process has ended without a word, None if it has said nothing."""
        try:
            return os.read(self.fd, 4096).decode(errors="replace").strip()
        except BlockingIOError:
            return None

    def close(self) -> None:
        """Let it end."""
        os.close(self.fd)
        os.close(self._leash)


class Guard:
    """Keeps a watch beside an attempt that has GPUs; `lost` is told, once for each watch, what is missing."""

    def __init__(self, selector: selectors.BaseSelector, lost: Callable[[str, int], None]) -> None:
        self._selector = selector
        self._lost = lost
        self._watch: Optional[Watch] = None
        self._due_ms = 0

    def tend(self, start: Optional[protocol.Start], now: int) -> None:
        """See to it that there is one for the attempt that runs, of this order; None: none runs."""
        if start is None or not start.devices:
            self._due_ms = 0
            self._end()
        elif self._watch is None and now >= self._due_ms:
            self._due_ms = now + _WATCH_AGAIN_MS
            try:
                self._watch = Watch(start)
            except OSError:
                return  # no process to be had: it is tried again
            self._selector.register(self._watch.fd, selectors.EVENT_READ, self._on_said)

    def _on_said(self, now: int) -> None:
        missing = self._watch.read() if self._watch is not None else None
        if missing is None:
            return
        self._end()
        if missing:
            self._lost(missing, now)

    def _end(self) -> None:
        if self._watch is not None:
            self._selector.unregister(self._watch.fd)
            self._watch.close()
            self._watch = None


def main(arguments: list[str]) -> None:
    """Look, until something is missing twice in a row or nobody listens any more."""
    spawn.die_with(int(arguments[0]))
    every_s, library, promised = int(arguments[1]) / 1000, arguments[2], arguments[3:]
    due_s = 0.0
    while True:
        if time.monotonic() >= due_s or _control():
            missing = look(library, promised)
            if missing:
                time.sleep(_AGAIN_S)
                missing = look(library, promised)
            if missing:
                os.write(1, f"{missing}\n".encode())
                return
            due_s = time.monotonic() + every_s
        left_s = max(0.0, due_s - time.monotonic())
        if select.select([0], [], [], min(left_s, _CONTROL_EVERY_S))[0]:
            return


def look(library: str, promised: list[str]) -> str:
    """What is missing of the GPUs with these UUIDs; empty if nothing is, or nothing can be known of it."""
    denied = _control()
    if denied:
        return denied
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return _by_nodes(len(promised))
    code = nvml.nvmlInit_v2()
    if code:
        return f"NVML cannot be used here (error {code})" if code in _MISSING else ""
    try:
        handle = ctypes.c_void_p()
        for uuid in promised:
            code = nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
            if code in _MISSING:
                return f"{uuid} is not there (NVML's error {code})"
    finally:
        nvml.nvmlShutdown()
    return ""


def _control() -> str:
    """Denied when the container has lost its devices, before NVML gives that another name."""
    try:
        os.close(os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        pass
    except OSError as error:
        return f"{_CONTROL} cannot be opened: {error.strerror}"
    return ""


def _by_nodes(count: int) -> str:
    """Where the image has no NVML, the device nodes must do."""
    found = [name for name in os.listdir("/dev") if name[:6] == "nvidia" and name[6:].isdigit()]
    return "" if len(found) >= count else f"{len(found)} of {count} GPUs have a device node here"
