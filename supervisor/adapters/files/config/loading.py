"""The reading of a configuration file. Paths are taken relative to the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from supervisor.adapters.files.yaml_file import Document, Strict, build, read

C = TypeVar("C", bound=Strict)
Adapt = Callable[[dict[str, object]], None]

_TLS = ("ca", "cert", "key")
_PATHS: tuple[tuple[str, ...], ...] = (
    *((name,) for name in ("state_dir", "run_dir", "checkpoint_parent", "lock_dir", "token_file", "user_ca")),
    ("log", "file"),
    ("http", "token_file"),
    ("audit", "file"),
    ("hadoop", "conf_dir"),
    ("gpus", "library"),
    ("docker", "socket"),
    ("hadoop", "kerberos", "keytab"),
    *(("pools", "issuer", name) for name in ("cert", "key")),
    *(("tls", name) for name in _TLS),
    *(("etcd", "tls", name) for name in _TLS),
)


def _absolute_paths(document: Document, base: Path) -> None:
    for *parents, last in _PATHS:
        owner = document.value
        for part in parents:
            owner = owner.get(part) if isinstance(owner, dict) else None
        if isinstance(owner, dict) and isinstance(owner.get(last), str):
            owner[last] = str(base / Path(owner[last]).expanduser())
    secrets = document.value.get("secrets") if isinstance(document.value, dict) else None
    for each in secrets.values() if isinstance(secrets, dict) else ():
        if isinstance(each, dict) and isinstance(each.get("file"), str):
            each["file"] = str(base / Path(each["file"]).expanduser())
    notify = document.value.get("notify") if isinstance(document.value, dict) else None
    targets = notify.get("targets") if isinstance(notify, dict) else None
    for each in targets.values() if isinstance(targets, dict) else ():
        for name in ("webhook_file", "secret_file", "ca") if isinstance(each, dict) else ():
            if isinstance(each.get(name), str):
                each[name] = str(base / Path(each[name]).expanduser())
    fence = document.value.get("fence") if isinstance(document.value, dict) else None
    devices = fence.get("devices") if isinstance(fence, dict) else None
    for each in devices if isinstance(devices, list) else ():
        if isinstance(each, dict) and isinstance(each.get("options_file"), str):
            each["options_file"] = str(base / Path(each["options_file"]).expanduser())


def load(model: type[C], path: Path, check: Callable[[Document, C], None], adapt: Adapt | None = None) -> C:
    """Read a configuration; raises UserError with every problem, NotFound.

    `check` notes the problems that no single field has. `adapt` changes the file's values, whose paths are
    absolute by then, before they are checked.
    """
    document = read(path)
    _absolute_paths(document, path.resolve().parent)
    if adapt is not None and isinstance(document.value, dict):
        adapt(document.value)
    config = build(model, document)
    if config is not None:
        check(document, config)
    document.raise_problems()
    assert config is not None
    return config
