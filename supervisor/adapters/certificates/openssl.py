"""The command `openssl`, as far as certificates are made with it: keys, requests and signatures."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from supervisor.contract.errors import Refused

PATIENCE_S = 30
_NO_NAMES = "[req]\ndistinguished_name = names\n[names]\n"
"""In place of the machine's own configuration of openssl, which may add extensions to a request."""


def require() -> None:
    """Raise Refused where the command is missing."""
    if shutil.which("openssl") is None:
        raise Refused("openssl is needed; run: apt-get install openssl")


def run(*arguments: str) -> None:
    """Run openssl. Its files get mode 0600. Its output is used only for an error. Raises Refused."""
    try:
        done = subprocess.run(
            ["openssl", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=PATIENCE_S,
            umask=0o077,
        )
    except subprocess.TimeoutExpired as error:
        raise Refused(f"openssl has not ended within {PATIENCE_S} s") from error
    except OSError as error:
        raise Refused(f"openssl cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        raise Refused(f"openssl says: {done.stderr.strip()[-1000:]}")


@contextmanager
def scratch(directory: Path | None = None) -> Iterator[str]:
    """A directory of mode 0700, on the file system of `directory`. Raises Refused where it has no room."""
    try:
        with tempfile.TemporaryDirectory(prefix=".making-", dir=directory) as made:
            yield made
    except OSError as error:
        named = f" ({error.filename})" if error.filename else ""
        raise Refused(f"a certificate's files cannot be written: {error.strerror}{named}") from error


def new_key(path: Path) -> None:
    """Make a private key on the curve P-256. Raises Refused."""
    run("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(path))


def key_and_request(name: str) -> tuple[bytes, str]:
    """A new private key, and the request for a certificate with this common name, both as PEM.

    Raises Refused.
    """
    require()
    with scratch() as directory:
        key, request, config = (Path(directory) / each for each in ("key", "request", "config"))
        new_key(key)
        config.write_text(_NO_NAMES)
        made = ("-config", str(config), "-key", str(key), "-out", str(request))
        run("req", "-new", "-sha256", *made, "-subj", f"/CN={name}")
        return key.read_bytes(), request.read_text(encoding="ascii")
