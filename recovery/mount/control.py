"""Control of mounts: they are started, checked, healed and ended. Blocking.

It reads files and the kernel's tables, and never touches a mounted directory, as that may hang.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes.util import find_library
from enum import Enum
from pathlib import Path

import recovery
from recovery.mount.points import remove_point
from recovery.mount.record import MountBeat, MountFiles, MountWish, start_ticks
from supervisor.adapters.clock import BootClock
from supervisor.adapters.failpoints import effect
from supervisor.contract.errors import Refused, StoreUnreachable

SILENT_MS = 5_000
"""Milliseconds without a beat of a process's loop after which it is killed, and another one mounts."""

_LIBRARY_VARIABLE = "FUSE_LIBRARY_PATH"
_LIBRARIES = ("libfuse3.so.4", "libfuse3.so.3")
"""Names that need no search, which takes a compiler where there is none of them."""

_MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
"""Settings of glibc for a mount: the memory of chunks and requests is used again. By default each goes back
to the kernel, which clears every page of the next one. That is a third of the mount's processor time.
"""

_ROOT = Path(recovery.__file__).resolve().parents[1]
PATIENCE_S = 3.0
_STATUS = Path("/proc/self/status")
_POLL_S = 0.02
_WANTED_S = 5.0


class MountState(Enum):
    """The states of a mount, by its files.

    Attributes:
        GONE: no process serves it.
        STARTING: its process has not mounted yet.
        SERVING: it is mounted.
        SILENT: its process shows no progress.
        OTHER: its process serves an earlier wish.
    """

    GONE = "gone"
    STARTING = "starting"
    SERVING = "serving"
    SILENT = "silent"
    OTHER = "other"


def look(files: MountFiles, wish: MountWish, now_ms: int) -> MountState:
    """The present state of the mount."""
    if not files.served():
        return MountState.GONE
    beat = files.read_beat()
    if beat is None or start_ticks(beat.pid) != beat.start_ticks:
        return MountState.STARTING
    if now_ms - beat.at_ms > SILENT_MS:
        return MountState.SILENT
    if beat.live != wish.live:
        return MountState.OTHER
    return MountState.SERVING if beat.ready else MountState.STARTING


def require_fuse() -> str:
    """The library to mount with; raises Refused if this process cannot mount."""
    library = os.environ.get(_LIBRARY_VARIABLE) or _library()
    if library is None:
        raise Refused("libfuse 3 is not installed on this node; run deploy/get-fuse.sh, or install fuse3")
    if os.geteuid() != 0 and b"\nNoNewPrivs:\t1\n" in _STATUS.read_bytes():
        raise Refused(
            "this agent may gain no privileges (NoNewPrivileges of its unit), and fusermount3 has to: run it "
            "as root (deploy/systemd/agent-docker.conf)"
        )
    return library


def _library() -> str | None:
    for name in _LIBRARIES:
        with suppress(OSError):
            ctypes.CDLL(name)
            return name
    return find_library("fuse3")


def start(parent: Path, generation: int) -> subprocess.Popen[bytes]:
    """Start the process that serves a wish; it ends at once if another one does. Raises Refused."""
    library = require_fuse()
    log = MountFiles(parent, generation).log_path
    try:
        with log.open("ab") as output, effect("mount.spawn"):
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "recovery.mount", str(parent), str(generation)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env={**_MALLOC, **os.environ, "PYTHONPATH": str(_ROOT), _LIBRARY_VARIABLE: library},
                start_new_session=True,
            )
    except OSError as error:
        raise Refused(f"cannot start a mount: {error}") from error


def kill(files: MountFiles, *, at_once: bool = False) -> None:
    """End the process that serves the mount, in any state: by SIGTERM, or by SIGKILL if `at_once`."""
    beat = files.read_beat()
    if beat is None:
        return
    for number in (signal.SIGKILL,) if at_once else (signal.SIGTERM, signal.SIGKILL):
        if not _is(beat):
            return
        with suppress(ProcessLookupError), effect("mount.kill"):
            os.kill(beat.pid, number)
        limit_s = time.monotonic() + PATIENCE_S
        while _is(beat) and time.monotonic() < limit_s:
            time.sleep(_POLL_S)


def end_child(child: subprocess.Popen[bytes]) -> bool:
    """End a mount process that this process started, in any state; returns whether it has ended."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with effect("mount.end_child"):
            child.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(PATIENCE_S)
            return True
    return False


def end(files: MountFiles, directory: Path) -> None:
    """Unmount it for good and forget it; safe to repeat. Raises StoreUnreachable, Refused."""
    files.forget_wish()
    kill(files)
    remove_point(directory)
    files.forget()


@contextmanager
def mounted(parent: Path, wish: MountWish, patience_s: float = 30.0) -> Iterator[Path]:
    """A mount for the duration of a with block, for tools and measurements; yields its directory.

    The live directory must be there. Raises StoreUnreachable when it is not mounted in time.
    """
    files, clock = MountFiles(parent, wish.generation), BootClock()
    files.write_wish(wish)
    child = start(parent, wish.generation)
    over = threading.Event()
    keeper = threading.Thread(target=_keep_wanted, args=(files, clock, over), daemon=True)
    keeper.start()
    try:
        limit_ms = clock.now_ms() + int(patience_s * 1000)
        while look(files, wish, clock.now_ms()) is not MountState.SERVING:
            if child.poll() is not None or clock.now_ms() > limit_ms:
                said = files.log_path.read_text(errors="replace")[-2000:]
                raise StoreUnreachable(f"{wish.directory} is not mounted: {said}")
            time.sleep(_POLL_S)
        yield Path(wish.directory)
    finally:
        over.set()
        keeper.join()
        end(files, Path(wish.directory))
        child.wait()


def _keep_wanted(files: MountFiles, clock: BootClock, over: threading.Event) -> None:
    """Repeat that the mount is wanted, as an agent does. Without that the mount ends by itself."""
    while not over.is_set():
        files.write_wanted(clock.now_ms())
        over.wait(_WANTED_S)


def _is(beat: MountBeat) -> bool:
    return start_ticks(beat.pid) == beat.start_ticks
