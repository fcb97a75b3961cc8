"""Secrets of jobs: names in job files and records, values on their way to a task (decision 0049). Pure.

No record of etcd holds a value. An agent asks for it when an attempt starts. In output it is masked.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from supervisor.contract.job.spec import JobSpec, RoleSpec

LEAST_BYTES = 8
LEAST_DIFFERENT = 4
"""Least number of different characters in a secret. Simpler texts occur in ordinary output, and masking them
would make it unreadable."""

MOST_BYTES = 16 * 1024
MOST_SECRETS = 16
"""Most secrets of one task."""

MOST_LINES = 128
"""Most lines of one value. Each line is masked by itself."""

EVERY_JOB = "*"
_SOUNDS_SECRET = re.compile(
    r"passw|passphrase|secret|authorization|bearer|credential|cookie|private|key_(pem|material|data)"
    r"|(access|account|api|encryption|ssh)_?key|(^|_)(jwt|pass|pat|token)$",
    re.IGNORECASE,
)
GROUP = "group:"


def sounds_secret(name: str) -> bool:
    """Whether the value of a variable, a flag or a field of this name is hidden from people and logs."""
    return _SOUNDS_SECRET.search(name.replace("-", "_")) is not None


@dataclass(frozen=True, slots=True)
class Source:
    """The source of one secret, and the jobs that may use it.

    Attributes:
        allow: owners of jobs, as `user:NAME`; groups that jobs are shared with, as `group:NAME`; `*`: all.
        file: a file that holds the value.
        command: without a file: a command that prints the value.
    """

    allow: frozenset[str]
    file: str = ""
    command: tuple[str, ...] = ()

    def serves(self, owner: str, group: str) -> bool:
        """Whether a job of this owner, shared with this group, may use it."""
        known = {EVERY_JOB} | ({owner} if owner else set()) | ({GROUP + group} if group else set())
        return not known.isdisjoint(self.allow)


@dataclass(frozen=True, slots=True)
class SecretsRequest:
    """An agent asks for the secrets of a task that it is about to start, by the plan in force."""

    protocol: int
    node: str
    task: str
    plan_id: str


@dataclass(frozen=True, slots=True)
class SecretsAnswer:
    """The values by the names of the secrets."""

    values: dict[str, str] = field(default_factory=dict, repr=False)


def secrets_of(spec: JobSpec, role: RoleSpec) -> dict[str, str]:
    """Variable -> name of the secret, for a role's tasks."""
    return {name: secret for name, secret in spec.secrets.items() if name not in role.env} | role.secrets


def environment_of(spec: JobSpec, role: RoleSpec) -> dict[str, str]:
    """Variable -> text, for a role's tasks, without secrets."""
    return {name: text for name, text in spec.env.items() if name not in role.secrets} | role.env


def uses(spec: JobSpec) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each field that names a secret, and the name."""
    parts: list[tuple[tuple[str, ...], Mapping[str, str]]] = [(("env",), spec.secrets)]
    parts += [(("roles", role.name, "env"), role.secrets) for role in spec.roles]
    for where, secrets in parts:
        yield from (((*where, variable), name) for variable, name in secrets.items())


def value_objection(value: bytes) -> str:
    """The reason why this cannot be the value of a secret; empty if it can.

    It contains no part of the value.
    """
    if len(value) > MOST_BYTES:
        return f"its value has more than {MOST_BYTES // 1024} KiB"
    if len(value.strip()) < LEAST_BYTES:
        return f"its value has fewer than {LEAST_BYTES} characters, and could not be masked"
    if len(set(value.strip())) < LEAST_DIFFERENT:
        return f"its value has fewer than {LEAST_DIFFERENT} different characters, and could not be masked"
    if value.count(b"\n") > MOST_LINES:
        return f"its value has more than {MOST_LINES} lines, of which each is masked by itself"
    if b"\0" in value:
        return "its value has a NUL character, which no variable can hold"
    try:
        value.decode()
    except UnicodeDecodeError:
        return "its value is not UTF-8 text"
    return ""


def too_many(values: Mapping[str, str]) -> bool:
    """Whether these values are too many, or too large, for a task."""
    return len(values) > MOST_SECRETS or any(
        len(each) > MOST_BYTES or len(each.splitlines()) > MOST_LINES + 1 for each in values.values()
    )


def missing(wanted: Collection[str], values: Mapping[str, str]) -> str:
    """The first of the secrets that has no value; empty if all have one."""
    return next((name for name in sorted(wanted) if not values.get(name)), "")
