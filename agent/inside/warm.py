"""Importing the job's heavy modules once, and undoing in each child what was only meant for the launcher."""

from __future__ import annotations

import gc
import importlib
import os
import sys

# One thread for OpenBLAS and the like: the launcher must be single-threaded when it forks.
THREADS_VARIABLE = "OMP_NUM_THREADS"
_TF1_POLL = "tensorflow.python.training.session_manager"


def preload(modules: tuple[str, ...]) -> str | None:
    """Import `modules`; returns None, or which one failed and how."""
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:
            return f"{name}: {type(error).__name__}: {error}"
    _shorten_tf1_poll()
    gc.collect()
    # The collector would otherwise touch, and so copy, every inherited page in each child.
    gc.freeze()
    return None


def _shorten_tf1_poll() -> None:
    """Let a TF1 worker ask each second, not each 30 s, whether the cluster is ready."""
    manager = sys.modules.get(_TF1_POLL)
    if manager is None:
        return
    init = manager.SessionManager.__init__
    if init.__defaults__ is not None:
        init.__defaults__ = tuple(1 if value == 30 else value for value in init.__defaults__)


def launcher_environment(job_env: dict[str, str]) -> dict[str, str]:
    """The environment that the launcher itself runs in."""
    return {THREADS_VARIABLE: "1", **job_env}


def restore_environment(job_env: dict[str, str]) -> None:
    """In the child: the environment as the job has it."""
    if THREADS_VARIABLE not in job_env:
        os.environ.pop(THREADS_VARIABLE, None)
