"""The leftovers of hunts that were killed: copies of the tree, processes that run their code, files of seeds.

Directories are named after the process that made them, so that the next hunt knows which have no owner.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from agent.inside.processes import fence
from chaos.sim.run import SCRATCH, scratch_parent

TREES, LAUNCHERS = "tfsup-mutants", "tfsup-mutant"


def prefix_of(kind: str) -> str:
    """The prefix of the directory names of this process."""
    return f"{kind}-{os.getpid()}-"


def sweep() -> None:
    """Remove what is left of those that are gone."""
    temporary = Path(tempfile.gettempdir())
    for kind, parent in ((TREES, temporary), (LAUNCHERS, temporary), (SCRATCH, scratch_parent())):
        for entry in parent.glob(f"{kind}-*-*"):
            owner = entry.name.removeprefix(kind).split("-")[1]
            if owner.isdigit() and not Path("/proc", owner).exists():
                kill(entry)
                shutil.rmtree(entry, ignore_errors=True)


def kill(directory: Path) -> None:
    """Kill what runs code of this directory, and what was started by a launcher that has its name.

    A disabled fence leaves processes behind.
    """
    marker = f"{directory.name}#"
    for process in psutil.process_iter(["cmdline"]):
        # Others' environments are theirs, and some have ended by now.
        with suppress(psutil.Error):
            ours = any(str(directory) in word for word in process.info["cmdline"] or ())
            if ours or process.environ().get(fence.MARKER_VARIABLE, "").startswith(marker):
                process.kill()
