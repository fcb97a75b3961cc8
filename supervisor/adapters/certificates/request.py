"""The check of a request for a certificate (PKCS #10, RFC 2986), which an agent of a pool sends."""

from __future__ import annotations

import base64
import textwrap

from supervisor.adapters.certificates.x509 import COMMON_NAME, elements
from supervisor.contract.errors import Refused

MOST_BYTES = 4096
_BEGIN, _END = "-----BEGIN CERTIFICATE REQUEST-----", "-----END CERTIFICATE REQUEST-----"
_ATTRIBUTES = 0xA0
_P256 = bytes.fromhex("06072a8648ce3d020106082a8648ce3d030107")
"""The algorithm of a public key on the curve P-256, as DER."""


def check_request(pem: str, name: str) -> str:
    """The request alone, as PEM, if it asks for this common name with a key on P-256, and for nothing else.

    An authority adds the alternative names and extensions itself, so that a request with any of its own is
    from another program, or from somebody who tries. The request's signature is checked when it is signed.
    Raises Refused.
    """
    if len(pem) > MOST_BYTES:
        raise Refused(f"the request for a certificate has {len(pem)} characters; at most {MOST_BYTES}")
    try:
        der = _der(pem)
        names, key, attributes = _read(der)
    except (ValueError, IndexError) as error:
        raise Refused(f"no request for a certificate that can be read: {error}") from error
    if names != [name]:
        shown = ", ".join(repr(each[:80]) for each in names) or "no name"
        raise Refused(f"the request is for {shown}, and not for {name!r}")
    if attributes:
        raise Refused("the request asks for extensions; supervisors choose all of them themselves")
    if key != _P256:
        raise Refused("the key of the request is not one on the curve P-256")
    return "\n".join((_BEGIN, *textwrap.wrap(base64.b64encode(der).decode(), 64), _END, ""))


def _der(pem: str) -> bytes:
    """The request in its only block, read as strictly as can be. Raises ValueError.

    Two readers that take a lenient text differently would check one request and sign another.
    """
    first, *lines, last = pem.strip().splitlines()
    if (first, last) != (_BEGIN, _END):
        raise ValueError("it is not one PEM block CERTIFICATE REQUEST")
    return base64.b64decode("".join(lines), validate=True)


def _read(der: bytes) -> tuple[list[str], bytes, bytes]:
    """The names of the subject, the key's algorithm and the attributes. Raises ValueError, IndexError."""
    ((_, request),) = elements(der)
    (_, info), _algorithm, _signature = elements(request)
    _version, (_, subject), (_, public), (tag, attributes) = elements(info)
    if tag != _ATTRIBUTES:
        raise ValueError("its attributes are not where they should be")
    (_, algorithm), _bits = elements(public)
    return _names(subject), algorithm, attributes


def _names(subject: bytes) -> list[str]:
    found = []
    for _, name in elements(subject):
        for _, pair in elements(name):
            (_, kind), (_, text) = elements(pair)
            if kind != COMMON_NAME:
                raise ValueError("its subject has other names than a common name")
            found.append(text.decode())
    return found
