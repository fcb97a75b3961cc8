"""Which paths a checkpoint store accepts. Pure; shared by every store so that they refuse the same ones."""

from __future__ import annotations

from supervisor.contract.errors import UserError

PART_PREFIX = ".part-"
"""Names of files that are still being written; never listed, never accepted from a caller."""

MARKER = ".tfsup-store"
"""A file in the root that says: this is a prepared store, not an empty mount point."""

_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 1024
_FIRST_PRINTABLE = 0x20
_DELETE = 0x7F


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
    if any(ord(letter) < _FIRST_PRINTABLE or ord(letter) == _DELETE for letter in path):
        raise UserError(f"store path {path!r} has a control character")
    if any(part == MARKER or part.startswith(PART_PREFIX) for part in parts):
        raise UserError(f"store path {path!r} uses a name that the store keeps for itself")
    return parts


def split_directory(path: str) -> tuple[str, ...]:
    """Like `split_path`, but the empty path is the root."""
    return split_path(path) if path else ()
