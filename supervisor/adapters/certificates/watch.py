"""Periodic check of a daemon's own certificates: new ones are logged, and those that end soon are
reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import NoReturn

from supervisor.adapters.certificates.reload import Certificates
from supervisor.adapters.certificates.tls import TlsMaterial
from supervisor.adapters.certificates.x509 import Validity, validity
from supervisor.adapters.files.config.daemon import DaemonConfig
from supervisor.contract.boundaries import Logger
from supervisor.contract.errors import UserError

LOOK_S = 10.0
Tell = Callable[[Mapping[str, str]], Awaitable[None]]


def own_certificates(config: DaemonConfig, holder: str) -> dict[str, Certificates]:
    """Holder -> certificates of a daemon: its own, and those for etcd if they differ."""
    own, etcd = config.tls_files(), config.etcd_tls_files()
    same = own is not None and replace(own, user_ca=None) == etcd
    named = {holder: own, f"{holder}, for etcd": None if same else etcd}
    return {name: Certificates(files) for name, files in named.items() if files is not None}


class CertificateWatch:
    """Watches `own`: the use of a certificate -> its files.

    Raises UserError if one of them cannot be read when the daemon starts.
    """

    def __init__(
        self,
        own: Mapping[str, Certificates],
        sink: Logger,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._own = own
        self._sink = sink
        self._now = now
        self._seen: dict[str, TlsMaterial] = {name: each.current() for name, each in own.items()}
        self._said: dict[tuple[str, str], str] = {}

    async def run(self, tell: Tell) -> NoReturn:
        """Check for ever. After each check `tell` gets name -> warning for an operator."""
        while True:
            await tell(await asyncio.to_thread(self.look))
            await asyncio.sleep(LOOK_S)

    def ends(self) -> dict[str, Validity]:
        """The validity of each certificate, as last read. It leaves out what cannot be read."""
        found = {}
        for name, material in self._seen.items():
            with suppress(UserError):
                found[name] = validity(material.cert)
        return found

    def look(self) -> dict[str, str]:
        """Read changed certificates; returns name -> warning for an operator."""
        told = {}
        for name, each in self._own.items():
            material = each.current()
            if material is not self._seen[name]:
                self._seen[name] = material
                self._sink.info("certificate read again", what=name, file=str(each.files.cert))
            self._say(
                name,
                "problem",
                each.problem,
                "a new certificate is not taken",
                next="the former stays in use",
            )
            try:
                text = validity(material.cert).told(self._now())
            except UserError as error:
                text = str(error)
            self._say(
                name,
                "end",
                text,
                "certificate needs to be renewed",
                next="replace its files; no restart is needed",
            )
            if text:
                told[name] = text
        return told

    def _say(self, name: str, about: str, reason: str, what: str, **more: str) -> None:
        """Log a state once, until it changes."""
        if reason and self._said.get((name, about)) != reason:
            self._sink.warning(what, what=name, reason=reason, **more)
        self._said[name, about] = reason
