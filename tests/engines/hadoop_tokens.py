"""The secrets in the files of Hadoop's tokens and of Kerberos' keys, and where their traces are."""

from __future__ import annotations

import base64
import contextlib
import io
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

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
