"""The values of a look at a program's directory, and the results of judging it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

META_PATIENCE_LOOKS = 20
"""Looks to wait for a `.meta` that is expected; a restore does not need it."""

OVERTAKEN_LOOKS = 3
"""Number of saves in a row, each followed by the next before a second look at it, after which the watcher
hurries."""


@dataclass(frozen=True, slots=True, order=True)
class FileMark:
    """A file as one look saw it. If two marks are equal, the file was not written in between."""

    name: str
    size: int
    mtime_ns: int
    inode: int


class Idle:
    """There is no new save."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A save that TensorFlow is still writing."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Unusable:
    """A save that can never be committed, with the `reason`."""

    prefix: str
    reason: str


IDLE = Idle()
