"""The way to a target of notifications, as it is configured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.adapters.files.config.notify import TargetConfig, objection
from supervisor.adapters.notify_command import NotifyCommand
from supervisor.contract.errors import UserError

if TYPE_CHECKING:
    from supervisor.adapters.webhook import Webhook


def messenger_of(target: TargetConfig, *, insecure: bool) -> Webhook | NotifyCommand:
    """Open the way to a target: its files are read now.

    Raises Refused for a program that cannot be run, UserError for a file that cannot be used. No error
    contains what is in a file.
    """
    if target.command:
        return NotifyCommand(target.command)
    from supervisor.adapters.webhook import Webhook

    url = target.webhook or _line_of(target.webhook_file or "")
    if why := objection(url, insecure=insecure):
        raise UserError(f"what is in webhook_file {why}")
    secret = _line_of(target.secret_file) if target.secret_file is not None else ""
    return Webhook(url, secret, target.ca or "")


def _line_of(path: str) -> str:
    """The first line of a file, which is not empty."""
    try:
        line = Path(path).read_text(encoding="utf-8").split("\n", maxsplit=1)[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__})") from error
    if not line:
        raise UserError(f"{path} is empty")
    return line
