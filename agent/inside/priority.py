"""Who gets the processors first: what starts or has to die, and the daemons, before what trains already."""

from __future__ import annotations

import os
from contextlib import suppress


def renice(pid: int, nice: int) -> None:
    """Set the priority of the session that `pid` leads, all its threads; a hint, so failures are ignored.

    Linux may group sessions for scheduling (autogroup), and then weighs groups against each other by a nice
    value of their own. Raising either needs no privilege, lowering does.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PGRP, pid, nice)
    weigh_session(pid, nice)


def weigh_session(pid: int, nice: int) -> bool:
    """Set the session's weight against other sessions alone, which can be taken back without privilege.

    False when the kernel asks to try again later: it takes one such wish in a tenth of a second.
    """
    try:
        with open(f"/proc/{pid}/autogroup", "w", encoding="ascii") as file:
            file.write(str(nice))
    except BlockingIOError:
        return False
    except OSError:
        pass  # a kernel without autogroups, or a session that is gone
    return True
