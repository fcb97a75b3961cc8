"""Read the names, validity and URIs of a certificate (RFC 5280, 4.1 and 4.2.1.6)."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from supervisor.contract.errors import UserError

_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
_FORMATS = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
_BEFORE_ISSUER = 2
"""Number of elements before the issuer: serial number and algorithm."""
_EXTENSIONS, _URI = 0xA3, 0x86
_ALTERNATIVE_NAMES = bytes.fromhex("551d11")
"""The identifier 2.5.29.17."""
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
COMMON_NAME = bytes.fromhex("550403")
"""The identifier 2.5.4.3 in DER."""
RENEW_SHARE = 5
"""A certificate should be renewed when less than one part in this number of its life is left."""


@dataclass(frozen=True, slots=True)
class Validity:
    """The first and last moment of a certificate; both in UTC."""

    begins: datetime
    ends: datetime

    @property
    def due(self) -> datetime:
        """The moment from which it should be renewed."""
        return self.ends - (self.ends - self.begins) / RENEW_SHARE

    def told(self, now: datetime) -> str:
        """A warning for an operator; empty while there is none."""
        if now >= self.ends:
            return f"expired at {self.ends:%Y-%m-%d %H:%M} UTC"
        if now < self.begins:
            return f"is not valid before {self.begins:%Y-%m-%d %H:%M} UTC: a clock is wrong"
        if now > self.due:
            return f"expires at {self.ends:%Y-%m-%d %H:%M} UTC"
        return ""


def validity(pem: bytes) -> Validity:
    """The validity of the first certificate in a PEM text. Raises UserError if none can be read."""
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
            if kind == COMMON_NAME:
                return _element(rest)[1].decode("utf-8")
        raise ValueError("it has no common name")
    except (ValueError, IndexError) as error:
        raise UserError(f"no certificate that can be read: {error}") from error


def fingerprint(pem: bytes) -> str:
    """The SHA-256 of the first certificate in a PEM text, in hex. Raises UserError."""
    try:
        return hashlib.sha256(_der(pem)).hexdigest()
    except (ValueError, IndexError) as error:
        raise UserError(f"no certificate that can be read: {error}") from error


def issuer(pem: bytes) -> bytes:
    """The name of the authority that signed the first certificate in a PEM text, as DER. Raises UserError."""
    try:
        return _element(_from_issuer(pem))[1]
    except (ValueError, IndexError) as error:
        raise UserError(f"no certificate that can be read: {error}") from error


def subjects(pem: bytes) -> frozenset[bytes]:
    """The names of the holders of all certificates in a PEM text, as DER. Raises UserError."""
    try:
        rests = [_element(_from_validity(_BEGIN + each))[2] for each in pem.split(_BEGIN)[1:]]
        return frozenset(_element(each)[1] for each in rests)
    except (ValueError, IndexError) as error:
        raise UserError(f"no certificate that can be read: {error}") from error


def uris(pem: bytes) -> tuple[bytes, ...]:
    """The URIs among the alternative names of the first certificate in a PEM text, each in full.

    gRPC's own list cuts each of them at its first NUL.

    Raises UserError if no certificate can be read.
    """
    found: list[bytes] = []
    try:
        for tag, content in elements(_from_validity(pem)):
            if tag != _EXTENSIONS:
                continue
            ((_, extensions),) = elements(content)
            for _, extension in elements(extensions):
                (_, identifier), *_, (_, value) = elements(extension)
                if identifier == _ALTERNATIVE_NAMES:
                    ((_, names),) = elements(value)
                    found += [name for kind, name in elements(names) if kind == _URI]
    except (ValueError, IndexError) as error:
        raise UserError(f"no certificate that can be read: {error}") from error
    return tuple(found)


def _from_validity(pem: bytes) -> bytes:
    """The first certificate in a PEM text, from its validity on. Raises ValueError or IndexError."""
    return _element(_from_issuer(pem))[2]


def _from_issuer(pem: bytes) -> bytes:
    """The first certificate in a PEM text, from the name of its authority on. Raises as `_from_validity`."""
    _, certificate, _ = _element(_der(pem))
    _, rest, _ = _element(certificate)
    if rest[0] == _VERSION:
        _, _, rest = _element(rest)
    for _ in range(_BEFORE_ISSUER):
        _, _, rest = _element(rest)
    return rest


def _der(pem: bytes) -> bytes:
    """The first certificate in a PEM text. Raises ValueError."""
    start = pem.index(_BEGIN)
    text = pem[start : pem.index(_END, start) + len(_END)]
    return ssl.PEM_cert_to_DER_cert(text.decode("ascii"))


def elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The tags and contents of all elements of DER, one after the other."""
    while data:
        tag, content, data = _element(data)
        yield tag, content


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """The tag and the content of the first element of DER, and the bytes after it."""
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
