"""Webhooks: messages by HTTP, signed as Standard Webhooks says. Only a daemon that has one imports this."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ssl
import time
from pathlib import Path

import aiohttp

from supervisor.contract.errors import Refused, Unreachable, UserError

SEND_S = 10.0
MOST_ANSWER = 4096
"""Bytes of an answer that are read. They say nothing that counts."""
_ENCODED = "whsec_"


class Webhook:
    """Posts messages to one address.

    The address may hold a secret: it is in no error. Redirects are not followed.

    Args:
        secret: messages are signed by it; empty: they are not.
        ca: the authority of the receiver's certificate, as a PEM file; empty: those of this machine.

    Raises UserError for a secret or an authority that cannot be used.
    """

    def __init__(self, url: str, secret: str = "", ca: str = "") -> None:
        self._url = url
        self._key = key_of(secret) if secret else b""
        try:
            self._ca = Path(ca).read_text(encoding="ascii", errors="ignore") if ca else None
            self._tls = ssl.create_default_context(cadata=self._ca)
        except (OSError, ValueError, ssl.SSLError) as error:
            raise UserError(f"{ca} is no authority in PEM form") from error

    def __eq__(self, other: object) -> bool:
        """Whether messages go to the same address, with the same secret and the same authority."""
        return isinstance(other, Webhook) and self._way == other._way

    def __hash__(self) -> int:
        """As for `__eq__`."""
        return hash(self._way)

    @property
    def _way(self) -> tuple[str, bytes, str | None]:
        return self._url, self._key, self._ca

    async def send(self, message: bytes, identity: str) -> None:
        """Post it. Raises Unreachable if there is no answer, Refused for one other than 2xx."""
        at_s = int(time.time())
        headers = {
            "content-type": "application/json",
            "user-agent": "tf-supervisor",
            "webhook-id": identity,
            "webhook-timestamp": str(at_s),
        }
        if self._key:
            headers["webhook-signature"] = signature(self._key, identity, at_s, message)
        try:
            timeout = aiohttp.ClientTimeout(total=SEND_S)
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(
                    self._url, data=message, headers=headers, allow_redirects=False, ssl=self._tls
                ) as answer,
            ):
                await answer.content.read(MOST_ANSWER)
        except TimeoutError as error:
            raise Unreachable(f"it has not answered in {SEND_S:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Their texts may have the address.
            raise Unreachable(f"there is no answer ({type(error).__name__})") from None
        if 300 <= answer.status < 400:
            raise Refused(f"it answers with a redirect ({answer.status}), which is not followed")
        if not 200 <= answer.status < 300:
            raise Refused(f"it answers with status {answer.status}")


def signature(key: bytes, identity: str, at_s: int, message: bytes) -> str:
    """The value of the header `webhook-signature`."""
    digest = hmac.new(key, f"{identity}.{at_s}.".encode() + message, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def key_of(secret: str) -> bytes:
    """The key in a secret: base64 after `whsec_`, or else the text itself. Raises UserError."""
    if not secret.startswith(_ENCODED):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_ENCODED), validate=True)
    except binascii.Error as error:
        raise UserError(f"what comes after {_ENCODED} in the secret is no base64") from error
