"""The check of `checkpoint.adopt`: paths of a program that may become its job's checkpoint directory."""

from __future__ import annotations

import posixpath

from supervisor.contract.errors import UserError

MOST_CHARACTERS = 300
_ROOTS = ("home", "media", "mnt", "opt", "root", "srv", "tmp", "var", "var/tmp")
"""Directories that cannot be adopted themselves; paths below them can."""

_SYSTEM = (
    "bin",
    "boot",
    "dev",
    "etc",
    "lib",
    "lib32",
    "lib64",
    "proc",
    "run",
    "sbin",
    "sys",
    "usr",
    "var/run",
)


def holds_program(path: str, workdir: str) -> str:
    """Why a path cannot be adopted by a program that runs in `workdir`; empty if it can."""
    normal, here = posixpath.normpath(path).rstrip("/"), posixpath.normpath(workdir)
    if normal.startswith("/") and f"{here}/".startswith(f"{normal}/"):
        return (
            f"{path!r} holds the program itself, which could not be found there any more; "
            "let it save to {checkpoint_dir}, and write its other files to {output_dir}"
        )
    return ""


def check_adopted(path: str) -> str:
    """The path without superfluous parts, absolute or relative to the working directory.

    Raises UserError for a path that must not be replaced.
    """
    if not path or not path.isprintable() or len(path) > MOST_CHARACTERS:
        raise UserError(f"must be a path of at most {MOST_CHARACTERS} printable characters")
    if "{" in path or "$" in path or path.startswith("~"):
        raise UserError(f"{path!r} must be a plain path: nothing in it is filled in")
    if ".." in path.split("/"):
        raise UserError(f"{path!r} must not contain '..'")
    normal = posixpath.normpath(path)
    below = normal.lstrip("/")
    if normal in ("/", "//", "."):
        raise UserError(f"{path!r} must name a directory of the program's own, such as /tmp/my_working_dir")
    absolute = normal.startswith("/")
    if absolute and (
        below in _ROOTS or any(below == each or below.startswith(f"{each}/") for each in _SYSTEM)
    ):
        raise UserError(f"{path!r} belongs to the system; have the program save below /tmp, for example")
    return f"/{below}" if absolute else normal
