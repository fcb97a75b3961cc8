"""A disk that is slow to keep what it is given: each fsync of a program, however it is linked, takes longer.

The kernel hands each such call of the program to a watcher, which lets it go on a while later. Standard
library alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import mmap
import os
import platform
import select
import socket
import struct
import time
from pathlib import Path

from chaos.machine import kernel

FORMAT = "=dQ"
"""The format of the file: the delay in seconds, and the number of delayed calls."""
_ARCHITECTURES = {
    # What audit calls it, and its numbers of seccomp, fsync and fdatasync.
    "x86_64": (0xC000_003E, 317, 74, 75),
    "aarch64": (0xC000_00B7, 277, 82, 83),
}
_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_USER_NOTIF, _ALLOW = 0x7FC0_0000, 0x7FFF_0000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER, _ARCHITECTURE = 0, 4
_RECV, _SEND = 0xC050_2100, 0xC018_2101
_CALL, _CONTINUE = 80, 1
_libc = ctypes.CDLL(None, use_errno=True)


def prepare(control: Path) -> None:
    """Make the file that says how slow, where it is missing; whoever writes to it is heard at once."""
    if not control.exists():
        control.write_bytes(bytes(struct.calcsize(FORMAT)))


def become_slow(control: Path) -> None:
    """The calling process, which has one thread, gets a watcher, and is slow for good, after exec as well.

    Raises:
        OSError: this kernel does not allow it.
    """
    ours, theirs = socket.socketpair()
    watcher = os.fork()
    if watcher == 0:
        try:
            ours.close()
            os.setsid()
            _, descriptors, _, _ = socket.recv_fds(theirs, 1, 1)
            if descriptors:
                _watch(descriptors[0], control)
        finally:
            os._exit(0)
    theirs.close()
    with ours:
        listener = _listen()
        socket.send_fds(ours, [b"x"], [listener])
        os.close(listener)


def _listen() -> int:
    """Have fsync and fdatasync told to whoever has the descriptor that this returns."""
    architecture, seccomp, *calls = _ARCHITECTURES[platform.machine()]
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 0, 3, architecture),
        (_LOAD, 0, 0, _NUMBER),
        (_EQUAL, 2, 0, calls[0]),
        (_EQUAL, 1, 0, calls[1]),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _USER_NOTIF),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(code)))
    found = _libc.syscall(seccomp, _SET_MODE_FILTER, _NEW_LISTENER, program)
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "seccomp")
    return int(found)


def _watch(listener: int, control: Path) -> None:
    """Let each call go on when it is due; ends with the program."""
    kernel.die_with_parent()
    with control.open("r+b") as file, mmap.mmap(file.fileno(), struct.calcsize(FORMAT)) as said:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        waiting: list[tuple[float, int]] = []
        while True:
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _let_go(listener, heapq.heappop(waiting)[1])
            timeout_ms = (waiting[0][0] - now) * 1000 if waiting else None
            for _, event in poll.poll(timeout_ms):
                if not event & select.POLLIN:
                    return
                call = bytearray(_CALL)
                try:
                    fcntl.ioctl(listener, _RECV, call)
                except FileNotFoundError:
                    continue  # the caller has been killed meanwhile
                (identity,) = struct.unpack_from("=Q", call)
                delay_s, count = struct.unpack_from(FORMAT, said)
                if delay_s > 0:
                    struct.pack_into("=Q", said, 8, count + 1)
                heapq.heappush(waiting, (time.monotonic() + delay_s, identity))


def _let_go(listener: int, identity: int) -> None:
    answer = bytearray(struct.pack("=QqiI", identity, 0, 0, _CONTINUE))
    try:
        fcntl.ioctl(listener, _SEND, answer)
    except FileNotFoundError:
        return  # the caller has been killed meanwhile
