"""The secrets in the files of Hadoop's tokens and of Kerberos' keys, and where their traces are."""

from __future__ import annotations

import base64
import contextlib
import html
import io
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urljoin
from urllib.request import urlopen

import psutil

MAGIC = b"HDTS"


def passwords(tokens: Path) -> list[bytes]:
    """The passwords in a file of tokens, as `Credentials.writeTokenStorageToStream` writes it."""
    file = io.BytesIO(tokens.read_bytes())
    assert file.read(5) == MAGIC + b"\0", f"{tokens} is of another form"
    found = []
    for _ in range(_number(file)):
        _alias, _identifier, password, _kind, _service = (file.read(_number(file)) for _ in range(5))
        found.append(password)
    return found


def keys(keytab: Path) -> list[bytes]:
    """The keys of a keytab."""
    told = subprocess.run(["klist", "-k", "-K", str(keytab)], check=True, capture_output=True, text=True)
    return [bytes.fromhex(each) for each in re.findall(r"\(0x([0-9a-f]+)\)", told.stdout)]


def traces(secrets: list[bytes], places: dict[str, bytes]) -> list[str]:
    """The places that hold one of the secrets: as it is, in hexadecimal or base64."""
    forms = {form for secret in secrets for form in _forms(secret)}
    return [name for name, content in places.items() if any(form in content for form in forms)]


def files(directory: Path) -> dict[str, bytes]:
    """All files below a directory."""
    return _read(each for each in directory.rglob("*") if each.is_file())


def command_lines() -> dict[str, bytes]:
    """The command lines and environments of all processes that are there."""
    return _read(Path(f"/proc/{each}/{name}") for each in psutil.pids() for name in ("cmdline", "environ"))


def pages(first: str) -> dict[str, bytes]:
    """The page of this address, and all that it and its pages link to on this machine."""
    found: dict[str, bytes] = {}
    waiting = [first]
    while waiting:
        page = waiting.pop()
        if page not in found:
            found[page] = _fetch(page)
            links = re.findall(rb"""href=["']([^"'?#]+)""", found[page])
            absolute = (urljoin(page, html.unescape(each.decode())) for each in links)
            waiting += (each for each in absolute if each.startswith("http://127.0.0."))
    return found


def _fetch(page: str) -> bytes:
    try:
        with urlopen(page, timeout=30) as answer:
            return bytes(answer.read())
    except HTTPError as error:  # what it may not show is a page, too
        return error.read()
    except URLError:  # its daemon has ended
        return b""


def _read(paths: Iterable[Path]) -> dict[str, bytes]:
    found = {}
    for each in paths:
        with contextlib.suppress(OSError):  # it is gone by now
            found[str(each)] = each.read_bytes()
    return found


def _forms(secret: bytes) -> Iterator[bytes]:
    yield secret
    yield secret.hex().encode()
    # A secret may begin at any of three places in what is encoded, and be followed by more.
    for before in range(3):
        cut = slice(4 if before else 0, -4)
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(bytes(before) + secret)[cut]


def _number(file: io.BytesIO) -> int:
    """Hadoop's VInt."""
    first = int.from_bytes(file.read(1), signed=True)
    if first >= -112:
        return first
    return int.from_bytes(file.read(-112 - first))
