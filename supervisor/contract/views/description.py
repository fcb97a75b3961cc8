"""The document of `describe`: the stored job file of a job."""

from __future__ import annotations

from dataclasses import dataclass

JOB_FILE = "job file"
NAME_OPTION = "--name"
CHECKPOINT_BASE = "checkpoint_base"
DEFAULT = "default"
SCALE = "scale"
SUBMIT = "submit"
ROOM = "room"
CLUSTER = "cluster"
NOT_RECORDED = "not recorded"


@dataclass(frozen=True, slots=True)
class FieldView:
    """A field of a stored job file.

    Attributes:
        path: its place, as `("roles", "worker", "count")`.
        value: the value on one line, as a job file writes it.
        source: the source of the value (docs/cli.md). Later releases may have more sources.
        in_file: whether a job file may have this field; if not, it is what the record tells besides.
    """

    path: tuple[str, ...]
    value: str
    source: str
    in_file: bool = True


@dataclass(frozen=True, slots=True)
class Description:
    """A job as the leader holds it, in the words and the nesting of a job file.

    Attributes:
        recorded: whether the record knows which fields the job file gave.
        redacted: whether values are hidden that may be secrets.
    """

    job: str
    uuid: str
    submitted_wall_ms: int
    owner: str
    group: str
    recorded: bool
    redacted: bool
    fields: tuple[FieldView, ...]
