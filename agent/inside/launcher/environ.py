"""Files with an attempt's name, directory and environment, for operators' commands beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Dict, Tuple

from ..failpoints import effect

FILE = "environ.json"
NAME = "attempt"


PROXIES = ("grpc_proxy", "http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy", "NO_PROXY")


def unproxied(env: Mapping[str, str], hosts: Tuple[str, ...]) -> Dict[str, str]:
    """The variables that keep calls to `hosts` from the proxies that `env` names; none if it names none.

    gRPC asks a proxy for the other tasks otherwise. What `env` excepts already stays excepted.
    """
    if not any(env.get(name) for name in PROXIES):
        return {}
    known = {name: env.get(name) or env.get("no_proxy") or env.get("NO_PROXY") or "" for name in _EXCEPTIONS}
    # Only libraries of HTTP know "*", and only alone. gRPC reads no_proxy if there is no no_grpc_proxy.
    return {
        name: ",".join(filter(None, (value, *hosts)))
        for name, value in known.items()
        if value != "*" or name == "no_grpc_proxy"
    }


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
