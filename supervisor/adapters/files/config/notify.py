"""The `notify:` section of a supervisor's configuration (docs/notify.md)."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field

from supervisor.adapters.certificates.tls import is_local
from supervisor.adapters.files.private import check_private
from supervisor.adapters.files.quantities import Name, Text
from supervisor.adapters.files.yaml_file import Document, Strict, Where
from supervisor.contract import addresses
from supervisor.contract.incident import Topic


def _topic(value: object) -> object:
    known = [topic.value for topic in Topic]
    if value not in known:
        raise ValueError(f"{value!r} is nothing to be told of; write some of {', '.join(known)}")
    return Topic(value)


class TargetConfig(Strict):
    """A target: a webhook, or a command."""

    webhook: Text | None = None
    webhook_file: Text | None = None
    secret_file: Text | None = None
    ca: Text | None = None
    command: list[Text] = Field(default_factory=list)
    on: list[Annotated[Topic, BeforeValidator(_topic)]] = Field(
        default_factory=lambda: list(Topic), min_length=1
    )
    jobs: Literal["all", "named"] = "all"


class NotifyConfig(Strict):
    """The targets of notifications, and the occasions that each is told of."""

    targets: dict[Name, TargetConfig] = Field(default_factory=dict)


def check_notify(document: Document, notify: NotifyConfig, *, insecure: bool) -> None:
    """A target that cannot be told is found at the start, not when it matters."""
    for name, each in notify.targets.items():
        where: Where = ("notify", "targets", name)
        ways = sum((each.webhook is not None, each.webhook_file is not None, bool(each.command)))
        if ways != 1:
            document.problem(
                where, "needs `webhook: URL`, `webhook_file: PATH` or `command: [PROGRAM, ...]`, one of them"
            )
        for field, file in (("webhook_file", each.webhook_file), ("secret_file", each.secret_file)):
            if file is not None:
                check_private(document, (*where, field), file)
        if each.command and (each.secret_file is not None or each.ca is not None):
            document.problem(where, "`secret_file` and `ca` are of a webhook; a command has neither")
        if each.webhook is not None and (why := objection(each.webhook, insecure=insecure)):
            document.problem((*where, "webhook"), why)


def objection(url: str, *, insecure: bool) -> str:
    """The fault in the address of a webhook; empty for nothing. It does not quote the address."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is no address; write https://HOST/PATH"
    if parts.scheme not in ("http", "https") or not host:
        return "is no address; write https://HOST/PATH"
    if parts.username is not None or parts.password is not None or parts.fragment:
        return "has a user, a password or a fragment; put what is secret into `webhook_file`"
    if parts.scheme == "http" and not insecure and not is_local(addresses.join(host, 1)):
        return "is read by everybody on the way; write https://, or `insecure: true`"
    return ""
