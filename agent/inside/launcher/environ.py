"""Files with an attempt's name, directory and environment, for operators' commands beside it."""

from __future__ import annotations

import json
import os

from ..failpoints import effect

FILE = "environ.json"
NAME = "attempt"


def keep(state_dir: str, attempt: str, cwd: str, env: dict[str, str]) -> None:
    """Replace `state_dir`/environ.json, and `state_dir`/attempt, which holds the name alone."""
    try:
        with effect("launcher.environ"):
            _replace(os.path.join(state_dir, FILE), json.dumps({"attempt": attempt, "cwd": cwd, "env": env}))
            _replace(os.path.join(state_dir, NAME), f"{attempt}\n")
    except OSError:
        pass  # a full disk stops no training


def forget(state_dir: str) -> None:
    """Remove the files: there is no attempt any more."""
    try:
        with effect("launcher.forget"):
            os.unlink(os.path.join(state_dir, NAME))
    except OSError:
        pass


def _replace(path: str, text: str) -> None:
    """Replace a file with mode 0600: environments may hold secrets."""
    fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.new", path)
