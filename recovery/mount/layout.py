"""Names that a mounted generation uses in its store. Pure.

    .live/g00007.PLAN/            what every mount of generation 7 shows
        checkpoint, model.ckpt-120.index, ...
        .tfsup/links/NAME/PLACE/  NAME is not here any more but in PLACE: a checkpoint that was taken
        .tfsup/parts/ID           a file that is being written; it gets its name when it is closed
        .tfsup/verified/STORED/NAME/    a node has read this file of the base and found it whole

A link is an empty directory: one call of the NameNode, no block, no quota of bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from recovery.checkpoints.paths import STAGING
from supervisor.contract.checkpoint import CheckpointRef

MOUNTED = "mounted"
"""`checkpoint.mode` of jobs whose directory is a mount."""

LIVE = ".live"
HIDDEN = ".tfsup"
SIGN = ".tfsup-mounted"
"""A file that every mount shows while its store answers, and no listing does."""

_LIVE_NAME = re.compile(r"g(\d{5,8})\.[A-Za-z0-9-]+", re.ASCII)
_STORED_NAME = re.compile(r"g(\d{5,8})-s(\d{10,12})\.[A-Za-z0-9-]+", re.ASCII)


def live_path(generation: int, plan_id: str) -> str:
    """The directory that a generation of a plan writes to, relative to the store's root."""
    return f"{LIVE}/g{generation:05d}.{plan_id}"


def live_generation(name: str) -> int | None:
    """Whose a directory under `.live` is; None for a name that is not ours."""
    match = _LIVE_NAME.fullmatch(name)
    return int(match[1]) if match else None


def links_path(live: str) -> str:
    """Where the links of a live directory are."""
    return f"{live}/{HIDDEN}/links"


def parts_path(live: str) -> str:
    """Where files are written before they get their name."""
    return f"{live}/{HIDDEN}/parts"


def verified_path(live: str, stored: str, name: str) -> str:
    """Exists when a node has verified a file of the base for this generation."""
    return f"{live}/{HIDDEN}/verified/{stored}/{name}"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where the files of a checkpoint are: first `.staging/STAGED`, then STORED, a name in the store's root.

    `staged` is empty for a checkpoint that was committed before.
    """

    stored: str
    staged: str = ""

    @property
    def name(self) -> str:
        """As it is spelt in a link."""
        return f"{self.staged}+{self.stored}"

    @property
    def staging(self) -> str:
        """The directory in which it is made ready, relative to the store's root."""
        return f"{STAGING}/{self.staged}"

    @property
    def directories(self) -> tuple[str, ...]:
        """Where to look, in this order: it may move from the second to the third meanwhile."""
        return (self.stored, self.staging, self.stored) if self.staged else (self.stored,)

    @property
    def ref(self) -> CheckpointRef | None:
        """Which checkpoint it is; None for a directory with a name of its own."""
        match = _STORED_NAME.fullmatch(self.stored)
        return CheckpointRef(int(match[1]), int(match[2])) if match else None


def parse_place(name: str) -> Place | None:
    """What a link says; None for a name that is not ours."""
    staged, plus, stored = name.partition("+")
    return Place(stored, staged) if plus and stored and "/" not in name else None
