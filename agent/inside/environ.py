"""What an attempt was started with, on disk for the commands that an operator runs beside it."""

from __future__ import annotations

import json
import os

from .failpoints import effect

FILE = "environ.json"


def keep(state_dir: str, attempt: str, cwd: str, env: dict[str, str]) -> None:
    """Replace `state_dir`/environ.json, mode 0600: environments hold secrets."""
    path = os.path.join(state_dir, FILE)
    try:
        with effect("launcher.environ"):
            fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                json.dump({"attempt": attempt, "cwd": cwd, "env": env}, file)
            os.replace(f"{path}.new", path)
    except OSError:
        pass  # a full disk stops no training
