"""The paths that a checkpoint store accepts. Pure. All stores use it, so that they refuse the same paths."""

from __future__ import annotations

import re

from supervisor.contract.checkpoint import CheckpointRef
from supervisor.contract.errors import UserError

PART_PREFIX = ".part-"
"""Names of files that are still being written; never listed, never accepted from a caller."""

OUTPUTS_PREFIX = "outputs-"
"""Before a task's name in that of its output directory, which lies beside the generations' directories."""

MARKER = ".tfsup-store"
"""A file in the root of each prepared store. Its absence shows an empty mount point."""

_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def split_path(path: str) -> tuple[str, ...]:
    """The parts of a relative path below the root, at least one; raises UserError for any other path."""
    parts = tuple(path.split("/"))
    try:
        size = len(path.encode())
        longest = max(len(part.encode()) for part in parts)
    except UnicodeEncodeError as error:
        raise UserError(f"store path {path!r} is not valid Unicode") from error
    if size > _MAX_PATH_BYTES or longest > _MAX_NAME_BYTES:
        raise UserError(
            f"store path {path[:80]!r}... is too long: "
            f"at most {_MAX_NAME_BYTES} bytes a name, {_MAX_PATH_BYTES} in all"
        )
    if any(part in {"", ".", ".."} for part in parts):
        raise UserError(f"store path {path!r} must be relative, without empty parts, '.' or '..'")
    if _CONTROL.search(path):
        raise UserError(f"store path {path!r} has a control character")
    if any(part == MARKER or part.startswith(PART_PREFIX) for part in parts):
        raise UserError(f"store path {path!r} uses a name that the store keeps for itself")
    return parts


def split_directory(path: str) -> tuple[str, ...]:
    """Like `split_path`, but the empty path is the root."""
    return split_path(path) if path else ()


STAGING = ".staging"
TRASH = ".trash"
_STORED = re.compile(r"g(\d{5,8})-s(\d{10,12})\.[A-Za-z0-9-]+", re.ASCII)


def stored_path(ref: CheckpointRef, staging_id: str) -> str:
    """The directory of a complete checkpoint. By the id a repeated commit gets a directory of its own."""
    return f"g{ref.generation:05d}-s{ref.step:010d}.{staging_id}"


def stored_ref(name: str) -> CheckpointRef | None:
    """The checkpoint in a directory of the root or of `.staging`, by its name; None for a foreign name."""
    match = _STORED.fullmatch(name)
    return CheckpointRef(int(match[1]), int(match[2])) if match else None


def staging_path(ref: CheckpointRef, staging_id: str) -> str:
    """The directory that a commit writes to.

    By the generation in its name it is seen to be over, without a clock.
    """
    return f"{STAGING}/{stored_path(ref, staging_id)}"
