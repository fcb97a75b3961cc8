"""The check, by a process beside each attempt, that a task's GPUs can be used inside its container.

A container can lose its devices while the host's NVML finds no fault (nvidia-docker #1730), and programs that
have them open notice it late or hang. Only a process that opens them anew notices at once. As that may hang
in the driver, it is done by `PYTHON -I -S agent/inside --devices PARENT EVERY_MS LIBRARY UUID...`, which the
fencing of the attempt kills like its other processes. It writes one line when a device is missing.
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

_SHARED = ("/dev/nvidiactl", "/dev/nvidia-uvm")
# NVML's codes that speak of the devices: no permission, not found, no driver here, the GPU is lost. All
# others leave it open: 18 is a driver whose files were replaced under programs that go on training.
_MISSING = frozenset({4, 6, 9, 15})
_AGAIN_S = 0.05
_WATCH_AGAIN_MS = 5_000
# To open two nodes costs next to nothing, and is what fails first; NVML is asked less often.
_SHARED_EVERY_S = 0.1


class Watch:
    """The launcher's end of the check: `fd` is readable when there is a result. Raises OSError."""

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
        """The missing devices; empty if the process has ended without a result, None if there is no result
        yet.
        """
        try:
            return os.read(self.fd, 4096).decode(errors="replace").strip()
        except BlockingIOError:
            return None

    def close(self) -> None:
        """End the process."""
        os.close(self.fd)
        os.close(self._leash)


class Guard:
    """Keeps a watch beside an attempt with GPUs.

    `lost` is called with the missing devices, once for each watch.
    """

    def __init__(self, selector: selectors.BaseSelector, lost: Callable[[str, int], None]) -> None:
        self._selector = selector
        self._lost = lost
        self._watch: Optional[Watch] = None
        self._due_ms = 0

    def tend(self, start: Optional[protocol.Start], now: int) -> None:
        """Keep exactly one watch, for the running attempt of this order; None: no attempt runs."""
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
    """Check until a device is missing twice in a row, or the launcher is gone."""
    spawn.die_with(int(arguments[0]))
    every_s, library, promised = int(arguments[1]) / 1000, arguments[2], arguments[3:]
    due_s = 0.0
    while True:
        if time.monotonic() >= due_s or _denied():
            missing = look(library, promised)
            if missing:
                time.sleep(_AGAIN_S)
                missing = look(library, promised)
            if missing:
                os.write(1, f"{missing}\n".encode())
                return
            due_s = time.monotonic() + every_s
        left_s = max(0.0, due_s - time.monotonic())
        if select.select([0], [], [], min(left_s, _SHARED_EVERY_S))[0]:
            return


def look(library: str, promised: list[str]) -> str:
    """The missing ones of the GPUs with these UUIDs; empty if none is missing, or if that is unknown."""
    denied = _denied()
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


def _denied() -> str:
    """Check the nodes that all GPUs share: access to them is denied if the container has lost its devices.

    NVML gives a less clear error for the first, and does without the second, but CUDA does not.
    """
    for node in _SHARED:
        try:
            os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC))
        except PermissionError as error:
            return f"{node} cannot be opened: {error.strerror}"
        except OSError:
            pass
    return ""


def _by_nodes(count: int) -> str:
    """Check the device nodes, for an image without NVML."""
    found = [name for name in os.listdir("/dev") if name[:6] == "nvidia" and name[6:].isdigit()]
    return "" if len(found) >= count else f"{len(found)} of {count} GPUs have a device node here"
