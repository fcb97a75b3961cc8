"""TF1's sessions under a launcher: how often they look for their cluster, and whether they survive a loss.

A session that is made again as a server was lost goes on from a checkpoint. TensorFlow takes each failure to
find one for "there is none", and would begin from scratch. Here the program fails then.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
from typing import Callable, Optional

from .patches import Change, method, put

MODULE = "tensorflow.python.training.session_manager"
MONITORED = "tensorflow.python.training.monitored_session"
_PATIENCE_S = 30
_POLL_S = 0.1
_CLUSTER = "grpc"
"""The beginning of the master of a session that others share."""
_NOTHING_FOUND = "a session that is made again found no checkpoint; the program does not begin from scratch"
_losses = threading.local()
"""`lasts` while TensorFlow makes a session again, as a server or worker was lost."""


def changes(is_kept: Callable[[str], bool], tell: Callable[..., object]) -> dict[str, Change]:
    """The changes to TF1's modules, by module.

    `is_kept`: whether checkpoints of a directory are the job's. `tell` is told of each session of the
    cluster whether it `survives` the loss of a parameter server, and of one that is made `again`.
    """
    return {MODULE: _change_manager, MONITORED: functools.partial(_change_sessions, is_kept, tell)}


def is_recovery() -> bool:
    """Whether TensorFlow makes a session again after a loss. A program may also make one on purpose."""
    return getattr(_losses, "lasts", False)


def _change_manager(module: types.ModuleType) -> None:
    shorten_poll(module)
    begin_once(module)


def shorten_poll(module: types.ModuleType) -> None:
    """Make workers, which ask every 30 s by default whether all is ready, ask ten times a second."""
    init = getattr(getattr(module, "SessionManager", None), "__init__", None)
    if isinstance(init, types.FunctionType) and init.__defaults__ is not None:
        init.__defaults__ = tuple(_POLL_S if each == _PATIENCE_S else each for each in init.__defaults__)


def begin_once(module: types.ModuleType) -> None:
    """Make a session of a cluster that is made again initialise nothing: it restores, or it fails."""
    manager, prepare = method(module, "SessionManager", "prepare_session")
    if manager is None or prepare is None:
        return
    theirs, parameters = prepare, inspect.signature(prepare)
    if not {"master", "init_op", "init_fn"} <= parameters.parameters.keys():
        return

    def preparing(self: object, *args: object, **kwargs: object) -> object:
        bound = parameters.bind(self, *args, **kwargs)
        if not is_recovery() or not str(bound.arguments["master"]).startswith(_CLUSTER):
            return theirs(*bound.args, **bound.kwargs)
        bound.arguments.update(init_op=None, init_fn=None)
        try:
            return theirs(*bound.args, **bound.kwargs)
        except RuntimeError:
            print(f"tf-supervisor: {_NOTHING_FOUND}", file=sys.stderr, flush=True)
            raise

    put(manager, "prepare_session", preparing, prepare)


def _begins_once() -> bool:
    known = sys.modules.get(MODULE)
    _, prepare = method(known, "SessionManager", "prepare_session") if known is not None else (None, None)
    return hasattr(prepare, "__wrapped__")


def _change_sessions(
    is_kept: Callable[[str], bool], tell: Callable[..., object], module: types.ModuleType
) -> None:
    recoverable, init = method(module, "_RecoverableSession", "__init__")
    chief, worker = vars(module).get("ChiefSessionCreator"), vars(module).get("WorkerSessionCreator")
    _, create = method(module, "_RecoverableSession", "_create_session")
    if recoverable is None or init is None or create is None:
        return
    creates = create

    def creating(self: object) -> object:
        _losses.lasts = again = "_sess" in vars(self)
        try:
            session = creates(self)
        finally:
            _losses.lasts = False
        if again:
            tell(again=True)
        return session

    put(recoverable, "_create_session", creating, create)
    if not isinstance(chief, type) or not isinstance(worker, type):
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
    return kind is worker or (kind is chief and restores and _begins_once())
