"""Names that a mounted generation uses in its store. Pure.

    .live/g00007.PLAN/            what every mount of generation 7 shows
        checkpoint, model.ckpt-120.index, ...
        .tfsup/links/NAME/PLACE/  NAME is not here any more but in PLACE: a checkpoint that was taken
        .tfsup/links/DIR%2FNAME/PLACE/      the same of a file in a subdirectory
        .tfsup/parts/ID           a file that is being written; it gets its name when it is closed
        .tfsup/verified/STORED/NAME/    a node has read this file of the base and found it whole

A link is an empty directory: one call of the NameNode, no block, no quota of bytes.

Below `.tfsup/places/PLACE/` a mount shows what is in a place, to be read alone. In the store there is no such
directory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from recovery.formats.paths import STAGING, stored_path, stored_ref
from supervisor.contract.checkpoint import CheckpointRef

MOUNTED = "mounted"
"""`checkpoint.mode` of jobs whose directory is a mount."""

LIVE = ".live"
HIDDEN = ".tfsup"
SIGN = ".tfsup-mounted"
"""A file that every mount shows while its store answers, and that no listing shows."""

PLACES = f"{HIDDEN}/places"
"""The directory in which a mount shows the files of a place, whatever the program has under these names
now."""

MAX_LINK_BYTES = 255
"""Longest name of a link in bytes, the limit of HDFS and of disks."""

_LIVE_NAME = re.compile(r"g(\d{5,8})\.[A-Za-z0-9-]+", re.ASCII)


def live_path(generation: int, plan_id: str) -> str:
    """The directory that a generation of a plan writes to, relative to the store's root."""
    return f"{LIVE}/g{generation:05d}.{plan_id}"


def live_generation(name: str) -> int | None:
    """The generation of a directory under `.live`; None for a foreign name."""
    match = _LIVE_NAME.fullmatch(name)
    return int(match[1]) if match else None


def links_path(live: str) -> str:
    """The directory of a live directory's links."""
    return f"{live}/{HIDDEN}/links"


def link_name(path: str) -> str | None:
    """The name of the link for a path below a live directory; None for a path that is too long."""
    name = path.replace("%", "%25").replace("/", "%2F")
    return name if path and len(name.encode(errors="surrogateescape")) <= MAX_LINK_BYTES else None


def linked_path(name: str) -> str:
    """The path that a link's name stands for."""
    return name.replace("%2F", "/").replace("%25", "%")


def parts_path(live: str) -> str:
    """The directory in which files are written before they get their name."""
    return f"{live}/{HIDDEN}/parts"


def verified_path(live: str, stored: str, name: str) -> str:
    """A path that exists once a node has verified a file of the base for this generation."""
    return f"{live}/{HIDDEN}/verified/{stored}/{name}"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """The place of a checkpoint's files: first `.staging/STAGED`, then STORED, a name in the store's root.

    `staged` is empty for a checkpoint that was committed before.
    """

    stored: str
    staged: str = ""

    @property
    def name(self) -> str:
        """Its spelling in a link."""
        return f"{self.staged}+{self.stored}"

    @property
    def staging(self) -> str:
        """The directory in which it is prepared, relative to the store's root."""
        return f"{STAGING}/{self.staged}"

    @property
    def directories(self) -> tuple[str, ...]:
        """The directories to look in, in this order: the files may move from the second to the third
        meanwhile.
        """
        return (self.stored, self.staging, self.stored) if self.staged else (self.stored,)

    @property
    def ref(self) -> CheckpointRef | None:
        """The checkpoint in it; None for a directory with a name of its own."""
        return stored_ref(self.stored)

    @property
    def unmoved(self) -> str:
        """The part of its name that stays the same when it leaves its staging directory."""
        return self.staged or self.stored

    def of(self, ref: CheckpointRef) -> Place:
        """The same staging directory, with the name that this checkpoint gets in the store's root."""
        return Place(stored_path(ref, self.staged.rpartition(".")[2]), self.staged)


def staging_place(ref: CheckpointRef, staging_id: str) -> Place:
    """A new place; `ref` may turn out to be another one when the files have been read."""
    name = stored_path(ref, staging_id)
    return Place(name, name)


def place_shown(name: str) -> tuple[Place | None, str] | None:
    """(the place, the path in it) that a path below a live directory leads to by way of `PLACES`.

    None for any other path; no place for the directories above one. A place that is not a checkpoint is not
    shown, as a program may choose any path.
    """
    if name in {HIDDEN, PLACES}:
        return None, ""
    parts = name.split("/", 3)
    if not name.startswith(f"{PLACES}/"):
        return None
    place = parse_place(parts[2])
    own = place is not None and place.ref is not None and (not place.staged or stored_ref(place.staged))
    return (place, parts[3] if len(parts) > 3 else "") if own else None


def parse_place(name: str) -> Place | None:
    """The place in a link's name; None for a foreign name."""
    staged, plus, stored = name.partition("+")
    return Place(stored, staged) if plus and stored and "/" not in name else None
