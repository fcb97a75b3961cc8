"""What a keeper such as systemd is told: ready, still turning, about to end (sd_notify(3)).

Only datagrams to a socket that the environment names: no library of systemd's is needed, nor systemd itself.
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
"""Signs of life within the time after which the keeper takes the daemon for hung."""
_NEVER_S = 3600.0


@dataclass(frozen=True, slots=True)
class Keeper:
    """Who started the daemon and wants to know how it is; `address` is empty where nobody does.

    `watchdog_s`: without a sign of life for so long it kills the daemon; 0: never.
    """

    address: str = ""
    watchdog_s: float = 0.0

    def ready(self) -> None:
        """The daemon does its work from now on."""
        self._tell("READY=1")

    def stopping(self) -> None:
        """The daemon was told to end, and is about to."""
        self._tell("STOPPING=1")

    async def vouch(self) -> NoReturn:
        """Tell it again and again that this loop turns, until cancelled."""
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
    """The keeper that the environment names. It is taken out of there: what the daemon starts is not it."""
    address = environ.pop(_SOCKET, "")
    span, pid = environ.pop(_WATCHDOG_US, ""), environ.pop(_WATCHDOG_PID, "")
    meant = pid in {"", str(os.getpid())}
    return Keeper(address, int(span) / 1e6 if meant and span.isdigit() else 0.0)
