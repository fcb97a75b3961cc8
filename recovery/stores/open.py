"""From a job's checkpoint URI to its store."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path
from urllib.parse import unquote, urlsplit

from recovery.stores.local import LocalStore
from supervisor.contract.boundaries import CheckpointStore
from supervisor.contract.errors import UserError


def open_store(uri: str, executor: Executor | None = None) -> CheckpointStore:
    """The store at `file:///abs/dir` or `/abs/dir`; touches nothing. Raises UserError for any other URI."""
    return LocalStore(local_root(uri), executor)


def local_root(uri: str) -> Path:
    """The directory that a checkpoint URI names, normalised, so that equal places give equal paths."""
    if uri.startswith("/"):
        path = uri
    else:
        split = urlsplit(uri)
        if split.scheme == "hdfs":
            raise UserError(f"checkpoint.uri {uri!r}: this release has the local store only; use file:///DIR")
        if split.scheme != "file" or split.netloc not in {"", "localhost"} or split.query or split.fragment:
            raise UserError(f"checkpoint.uri {uri!r} is not understood; use file:///DIR or an absolute path")
        path = unquote(split.path)
    parts = path.split("/")
    if not path.startswith("/") or ".." in parts or "\0" in path:
        raise UserError(f"checkpoint.uri {uri!r} must name an absolute directory, without '..'")
    root = Path("/", *(part for part in parts if part not in {"", "."}))
    if root == Path("/"):
        raise UserError(
            f"checkpoint.uri {uri!r} names the root of the file system; use a directory of its own"
        )
    return root
