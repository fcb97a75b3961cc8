"""The two things that we read in a certificate ourselves: when it ends, and whose it is (RFC 5280, 4.1)."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime

from supervisor.contract.errors import UserError

_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
_FORMATS = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
_BEFORE_VALIDITY = 3
"""Serial number, algorithm and issuer."""
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
_COMMON_NAME = bytes.fromhex("550403")
"""2.5.4.3, as DER has it."""
RENEW_SHARE = 5
"""A certificate is due for another one when less than this part of its life is left: a fifth."""


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when a certificate is good; both in UTC."""

    begins: datetime
    ends: datetime

    def told(self, now: datetime) -> str:
        """What an operator should know of it now; empty: nothing."""
        if now >= self.ends:
            return f"expired at {self.ends:%Y-%m-%d %H:%M} UTC"
        if now < self.begins:
            return f"is not valid before {self.begins:%Y-%m-%d %H:%M} UTC: a clock is wrong"
        if (self.ends - now) * RENEW_SHARE < self.ends - self.begins:
            return f"expires at {self.ends:%Y-%m-%d %H:%M} UTC"
        return ""


def validity(pem: bytes) -> Validity:
    """Of the first certificate in a PEM text. Raises UserError where there is none that can be read."""
    try:
        tag, times, _ = _element(_from_validity(pem))
        if tag != _SEQUENCE:
            raise ValueError("its validity is not where it should be")
        tag, begins, times = _element(times)
        last, ends, _ = _element(times)
        return Validity(_time(tag, begins), _time(last, ends))
    except (ValueError, IndexError) as error:
        raise UserError(f"no certificate that can be read: {error}") from error


def common_name(pem: bytes) -> str:
    """The holder's name in the first certificate of a PEM text. Raises UserError."""
    try:
        _, _, rest = _element(_from_validity(pem))
        _, names, _ = _element(rest)
        while names:
            _, name, names = _element(names)
            _, pair, _ = _element(name)
            _, kind, rest = _element(pair)
            if kind == _COMMON_NAME:
                return _element(rest)[1].decode("utf-8")
        raise ValueError("it has no common name")
    except (ValueError, IndexError) as error:
        raise UserError(f"no certificate that can be read: {error}") from error


def _from_validity(pem: bytes) -> bytes:
    """A certificate from its validity on; the subject comes next."""
    start = pem.index(_BEGIN)
    text = pem[start : pem.index(_END, start) + len(_END)]
    _, certificate, _ = _element(ssl.PEM_cert_to_DER_cert(text.decode("ascii")))
    _, rest, _ = _element(certificate)
    if rest[0] == _VERSION:
        _, _, rest = _element(rest)
    for _ in range(_BEFORE_VALIDITY):
        _, _, rest = _element(rest)
    return rest


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """The tag and the content of the first element of DER, and what comes after it."""
    length, start = data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if start + length > len(data):
        raise ValueError("it is cut off")
    return data[0], data[start : start + length], data[start + length :]


def _time(tag: int, content: bytes) -> datetime:
    if tag not in _FORMATS:
        raise ValueError("its validity is no time")
    return datetime.strptime(content.decode("ascii"), _FORMATS[tag]).replace(tzinfo=UTC)
