"""Files with secrets that a configuration names: this user can read them, and nobody else."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.adapters.files.yaml_file import Document, Where


def check_private(document: Document, where: Where, file: str) -> None:
    """Report a file that is missing, that this user cannot read, or that others can read."""
    try:
        mode = Path(file).stat().st_mode
    except OSError as error:
        document.problem(where, f"{file}: {error.strerror}")
        return
    if not os.access(file, os.R_OK):
        document.problem(where, f"{file} cannot be read by this user")
    elif mode & 0o077:
        document.problem(where, f"others on this machine can read {file}; run: chmod 600 {file}")
