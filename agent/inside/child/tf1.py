"""TF1's sessions under a launcher: how often they look for their cluster, and whether they survive a loss."""

from __future__ import annotations

import functools
import types
from typing import Callable, Optional

from .patches import Change, method, put

MODULE = "tensorflow.python.training.session_manager"
MONITORED = "tensorflow.python.training.monitored_session"
_PATIENCE_S = 30
_POLL_S = 0.1
_CLUSTER = "grpc"
"""The beginning of the master of a session that others share."""


def changes(is_kept: Callable[[str], bool], tell: Callable[..., object]) -> dict[str, Change]:
    """The changes to TF1's modules, by module.

    `is_kept`: whether checkpoints of a directory are the job's. `tell` is told of each session of the
    cluster whether it `survives` the loss of a parameter server.
    """
    return {MODULE: shorten_poll, MONITORED: functools.partial(_tell_of_sessions, is_kept, tell)}


def shorten_poll(module: types.ModuleType) -> None:
    """Make workers, which ask every 30 s by default whether all is ready, ask ten times a second."""
    init = getattr(getattr(module, "SessionManager", None), "__init__", None)
    if isinstance(init, types.FunctionType) and init.__defaults__ is not None:
        init.__defaults__ = tuple(_POLL_S if each == _PATIENCE_S else each for each in init.__defaults__)


def _tell_of_sessions(
    is_kept: Callable[[str], bool], tell: Callable[..., object], module: types.ModuleType
) -> None:
    recoverable, init = method(module, "_RecoverableSession", "__init__")
    chief, worker = vars(module).get("ChiefSessionCreator"), vars(module).get("WorkerSessionCreator")
    if recoverable is None or init is None or not isinstance(chief, type) or not isinstance(worker, type):
        return

    def told(self: object, creator: object) -> None:
        init(self, creator)
        try:
            survives = _survives(creator, chief, worker, is_kept)
            if survives is not None:
                tell(survives=survives)
        except (TypeError, ValueError, AttributeError, OSError):
            pass  # a session that nothing is known of stops no training

    put(recoverable, "__init__", told, init)


def _survives(creator: object, chief: type, worker: type, is_kept: Callable[[str], bool]) -> Optional[bool]:
    """Whether a session that is replaced finds the job's variables again; None of one without a cluster."""
    known = vars(vars(creator).get("_session_creator", creator))
    if not str(known.get("_master", _CLUSTER)).startswith(_CLUSTER):
        return None
    kind = type(vars(creator).get("_session_creator", creator))
    directory = known.get("_checkpoint_dir")
    restores = bool(directory) and is_kept(str(directory)) and not known.get("_checkpoint_filename_with_path")
    return kind is worker or (kind is chief and restores)
