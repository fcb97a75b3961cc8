"""The process behind a call of the kernel, and whether it is being killed.

A process that waits for an answer of a mount cannot be killed: SIGKILL ends it once the answer is there. The
tasks of a lost node must be gone before D, however long the store takes, so a dying caller is answered at
once.
"""

from __future__ import annotations

import signal
from pathlib import Path

from recovery.mount.record import stat_fields

_PF_EXITING = 0x4
_KILLED = 1 << (signal.SIGKILL - 1)
_FLAGS, _EXIT_CODE = 6, 49
"""Indexes in the result of `stat_fields`."""


def is_dying(thread: int) -> bool:
    """Whether a signal is about to end a thread, given by its number in this process's PID namespace.

    False for a thread that ends by itself, as its last close must have its effect; and for 0, the number of a
    thread of another namespace.
    """
    if thread <= 0:
        return False
    try:
        status = Path(f"/proc/{thread}/status").read_bytes()
        fields = stat_fields(thread)
    except OSError:
        return False
    pending = int(status.partition(b"\nSigPnd:")[2].split(maxsplit=1)[0], 16)
    ended_by = int(fields[_EXIT_CODE]) & 0x7F
    return bool(pending & _KILLED) or bool(int(fields[_FLAGS]) & _PF_EXITING and ended_by)
