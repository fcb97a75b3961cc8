"""The data of a job: directories that its tasks only read, each by a name. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from supervisor.contract.bounds import MAX_PATH_LENGTH
from supervisor.contract.errors import UserError
from supervisor.contract.job.container import Objection
from supervisor.contract.job.spec import JobSpec, as_hdfs_user

MOST_DATA = 16
"""Directories that a job may name."""

FILE, HDFS = "file", "hdfs"
"""Kinds of places of data, as nodes say which they can show."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


def check_name(name: str) -> str:
    """Return the name of data; raises UserError."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name[:40]!r} is no name of data; write lower-case letters, digits and `_`, for example train"
        )
    return name


def placeholder_of(name: str) -> str:
    """The placeholder for the directory of data of this name."""
    return f"data.{name}"


def variable_of(name: str) -> str:
    """The variable of each task with the directory of data of this name."""
    return f"TFSUP_DATA_{name.upper()}"


def kinds(data: Mapping[str, str]) -> tuple[str, ...]:
    """The kinds of places that a job reads from, sorted."""
    return tuple(sorted({HDFS if uri.startswith(f"{HDFS}://") else FILE for uri in data.values()}))


def as_user(data: Mapping[str, str], user: str) -> dict[str, str]:
    """The places as a daemon is to reach them: those in HDFS as this user; empty: as itself."""
    return {name: as_hdfs_user(uri, user) for name, uri in data.items()}


def objections(spec: JobSpec) -> Iterator[Objection]:
    """Objections to a job's data."""
    if len(spec.data) > MOST_DATA:
        yield Objection(("data",), f"{len(spec.data)} directories; at most {MOST_DATA} are possible")
    for name, uri in spec.data.items():
        try:
            check_name(name)
        except UserError as error:
            yield Objection(("data",), str(error))
        if len(uri) > MAX_PATH_LENGTH:
            yield Objection(("data", name), f"has more than {MAX_PATH_LENGTH} characters")
