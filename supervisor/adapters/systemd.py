"""Messages to a service manager such as systemd: ready, alive, about to end (sd_notify(3)).

They are datagrams to a socket that the environment names. Neither a library of systemd nor systemd itself is
needed.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

_SOCKET, _WATCHDOG_US, _WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
_SHARE = 3
"""Number of signs of life within the watchdog's time."""
_NEVER_S = 3600.0


@dataclass(frozen=True, slots=True)
class Keeper:
    """The service manager that started the daemon; `address` is empty if there is none.

    `watchdog_s`: seconds without a sign of life after which it kills the daemon; 0: never.
    """

    address: str = ""
    watchdog_s: float = 0.0

    def ready(self) -> None:
        """Report that the daemon does its work from now on."""
        self._tell("READY=1")

    def stopping(self) -> None:
        """Report that the daemon is about to end."""
        self._tell("STOPPING=1")

    async def vouch(self) -> NoReturn:
        """Send signs of life of this loop until cancelled."""
        while True:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / _SHARE or _NEVER_S)

    def _tell(self, line: str) -> None:
        if not self.address:
            return
        path = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        # A keeper that has gone, or does not read, must not hold up the daemon: its own watchdog acts then.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.setblocking(False)
            told.sendto(line.encode(), path)


def keeper_of(environ: MutableMapping[str, str]) -> Keeper:
    """The service manager that the environment names.

    The variables are removed, so that child processes do not have them.
    """
    address = environ.pop(_SOCKET, "")
    span, pid = environ.pop(_WATCHDOG_US, ""), environ.pop(_WATCHDOG_PID, "")
    meant = pid in {"", str(os.getpid())}
    return Keeper(address, int(span) / 1e6 if meant and span.isdigit() else 0.0)
