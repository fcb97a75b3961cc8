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
    with suppress(OSError), open(f"/proc/{pid}/autogroup", "w", encoding="ascii") as file:
        file.write(str(nice))
