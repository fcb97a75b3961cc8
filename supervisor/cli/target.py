"""The cluster of a command: --state or --config, else TFSUP_STATE, TFSUP_CONFIG, else ./var/local."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli.local.layout import DEFAULT_STATE, Layout
from supervisor.cli.options import Globals
from supervisor.contract.errors import NotFound, UserError

if TYPE_CHECKING:
    from supervisor.api.client import ControlClient
    from supervisor.wire.rpc import Guard


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster as a client sees it. `remedy`: what to do where none of its supervisors runs."""

    name: str
    supervisors: tuple[str, ...]
    guard: Guard
    checkpoint_base: str
    remedy: str = ""

    def client(self, deadline_s: float = 10.0) -> ControlClient:
        """A client of its leader."""
        from supervisor.api.client import ControlClient

        return ControlClient(self.supervisors, self.guard, deadline_s=deadline_s, remedy=self.remedy)


def state_of(given: Globals) -> Path:
    """The state directory that `local` verbs work on."""
    if given.state is not None:
        return given.state
    return Path(os.environ.get("TFSUP_STATE") or DEFAULT_STATE)


def find_target(given: Globals) -> Target:
    """The cluster; raises NotFound if there is none, UserError if its configuration is wrong."""
    option, path = place_of(given)
    return _local(path) if option == "--state" else _configured(path)


def place_of(given: Globals) -> tuple[str, Path]:
    """The option that names the cluster, and its value. Raises UserError for two clusters."""
    if given.state is not None and given.config is not None:
        raise UserError("--state and --config name two clusters; give one of them")
    explicit_state = given.state or _path("TFSUP_STATE")
    if given.config is None and explicit_state is not None:
        return "--state", explicit_state
    config = given.config or _path("TFSUP_CONFIG")
    return ("--config", config) if config is not None else ("--state", DEFAULT_STATE)


def find_any_target(given: Globals) -> Target | None:
    """The cluster; None if none was started here. A configuration that an option names must exist."""
    try:
        return find_target(given)
    except NotFound:
        if given.config or _path("TFSUP_CONFIG"):
            raise
        return None


def _local(state: Path) -> Target:
    layout = Layout.of(state)
    if not layout.client_config.is_file():
        raise NotFound(
            f"no cluster here: run `supervisorctl local up`, or name one with --state or --config "
            f"(looked in {layout.state})"
        )
    local = f"`supervisorctl --state {layout.state} local"
    remedy = f"{local} status` shows which daemons run, {local} up` starts them"
    settings = layout.read_client()
    if settings is None:
        return replace(_configured(layout.client_config), remedy=remedy)
    from supervisor.wire.rpc import Guard

    return Target(settings.cluster, settings.supervisors, Guard(), settings.checkpoint_base, remedy)


def _configured(path: Path) -> Target:
    from supervisor.adapters.files.config.client import load_client
    from supervisor.wire.rpc import Guard

    config = load_client(path)
    guard = Guard(config.tls_files(), config.token, config.insecure)
    return Target(config.cluster, tuple(config.supervisors), guard, config.checkpoint_base or "")


def _path(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value) if value else None
