"""The certificate of a pool's agent: had from the supervisors for the pool's token, and renewed.

The key is made here and never leaves the machine. The agent reads the file again when it changes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from supervisor.adapters.backoff import Backoff
from supervisor.adapters.certificates import openssl
from supervisor.adapters.certificates.reload import Certificates
from supervisor.adapters.certificates.tls import TlsFiles
from supervisor.adapters.certificates.x509 import validity
from supervisor.adapters.files.config.agent import AgentConfig
from supervisor.adapters.files.private import write_private
from supervisor.api.client import ControlClient
from supervisor.contract.errors import Refused, TfSupervisorError, UserError
from supervisor.contract.pool.requests import CertifyRequest
from supervisor.wire.rpc import Guard

ASK_S = 20.0
QUICK_S = 2.0
"""How long an agent waits for another certificate that has one: its tasks end without it."""
FIRST_MS, MOST_MS = 1_000, 30_000
REFUSED_S = 90.0
"""A refusal counts after this time. A pool's token is made once its agents are queued, and a file system that
machines share may show it to them a minute later."""
LOOK_S = 30.0
"""How often the wall clock is looked at, which may jump."""


class Credentials:
    """The certificate of one agent, and its key, in the file that its configuration names.

    `token`: the file with the pool's token, a private key and its certificate.

    Attributes:
        supervisors: their addresses.
    """

    def __init__(self, config: AgentConfig, token: Path, say: Callable[[str], None]) -> None:
        files = config.tls_files()
        assert files is not None, "this agent needs no certificate"
        self._own = files
        self._token = TlsFiles(files.ca, token, token)
        self._node = config.node
        self.supervisors = config.supervisors
        self._say = say
        self._said = ""
        self._due = datetime.now(UTC)

    @property
    def is_there(self) -> bool:
        """Whether this node has ever had a certificate, so that an agent may have run here."""
        return self._own.cert.exists()

    async def obtain(self) -> None:
        """Get the first certificate; asks until a supervisor answers.

        One of an earlier agent may be of a pool that has ended, so that the token comes first. While no
        supervisor answers it serves: tasks of the node may run, and wait for their agent.
        Raises Refused when they have refused for a while, or the token could not be read.
        """
        loop, backoff = asyncio.get_running_loop(), Backoff(FIRST_MS, MOST_MS)
        refused_at: float | None = None
        while True:
            has_one = self._has_one()
            try:
                async with asyncio.timeout(QUICK_S if has_one else None):
                    await self._ask(self._token, self._own)
                return
            except TimeoutError:
                self._tell(f"{self._node} begins with the certificate that it had: no supervisor answers")
                return
            except Refused as error:
                refused_at = refused_at or loop.time()
                if loop.time() - refused_at > REFUSED_S:
                    raise
                self._tell(f"{self._node} gets no certificate: {error}; asking again")
            except TfSupervisorError as error:
                refused_at = None
                if has_one:
                    self._tell(f"{self._node} begins with the certificate that it had: {error}")
                    return
                self._tell(f"{self._node} has no certificate yet: {error}; asking again")
            await backoff.wait()

    async def keep(self) -> NoReturn:
        """Renew the certificate for ever, when half of its life is over."""
        while True:
            left_s = (self._due - datetime.now(UTC)).total_seconds()
            if left_s > 0:
                await asyncio.sleep(min(left_s, LOOK_S))
                continue
            try:
                await self._ask(self._own, self._token)
            except TfSupervisorError as error:
                self._tell(f"the certificate of {self._node} is not renewed: {error}; asking again")
                await asyncio.sleep(random.uniform(0.5, 1) * LOOK_S)

    def _has_one(self) -> bool:
        try:
            Certificates(self._own).current()
            return not self._objection(self._own)
        except UserError:
            return False

    async def _ask(self, *shown: TlsFiles) -> None:
        """Ask with the first of these certificates that is valid, and with the next if it is refused."""
        reasons: list[str] = []
        for each in shown:
            try:
                if why := self._objection(each):
                    reasons.append(why)
                    continue
                await self._ask_with(each)
                return
            except (Refused, UserError) as error:
                reasons.append(str(error))
        raise Refused("; ".join(reasons))

    def _objection(self, shown: TlsFiles) -> str:
        """Why a certificate is not worth showing: servers end such a connection without a word."""
        if shown is self._own and not shown.cert.exists():
            return f"{self._node} has no other certificate yet"
        times = validity(shown.load().cert)
        if times.begins <= (now := datetime.now(UTC)) < times.ends:
            return ""
        if now < times.begins:
            return f"{shown.cert} {times.told(now)}"
        how = "; `supervisorctl pool token` makes another" if shown is self._token else ""
        return f"{shown.cert} {times.told(now)}{how}"

    async def _ask_with(self, shown: TlsFiles) -> None:
        key, request = await asyncio.to_thread(openssl.key_and_request, f"agent:{self._node}")
        async with ControlClient(self.supervisors, Guard(shown), deadline_s=ASK_S) as client:
            answer = await client.certify(CertifyRequest(self._node, request))
        write_private(self._own.cert, key + answer.pem.encode())
        ends, now = datetime.fromtimestamp(answer.ends_wall_ms / 1000, UTC), datetime.now(UTC)
        self._due = now + (ends - now) * random.uniform(0.4, 0.6)
        self._said = ""
        self._say(f"{self._node} has a certificate until {ends:%Y-%m-%d %H:%M} UTC")

    def _tell(self, text: str) -> None:
        if text != self._said:
            self._say(text)
        self._said = text
