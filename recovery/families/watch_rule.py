"""What a look at a program's directory shows, and what comes of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

META_PATIENCE_LOOKS = 20
"""How long to wait for a `.meta` that should come; it is not needed to restore."""

OVERTAKEN_LOOKS = 3
"""So many saves in a row were followed by the next before they could be looked at twice: hurry."""


@dataclass(frozen=True, slots=True, order=True)
class FileMark:
    """A file as one look saw it. Two equal marks: nobody wrote to it in between."""

    name: str
    size: int
    mtime_ns: int
    inode: int


class Idle:
    """Nothing new."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """TensorFlow is still writing this one."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Unusable:
    """This one can never be committed; `reason` says why."""

    prefix: str
    reason: str


IDLE = Idle()
