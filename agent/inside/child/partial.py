"""A chief of TensorFlow 1 that makes its session again restores only the variables that are lost.

TensorFlow restores all of them, so that every parameter server goes back to the checkpoint when one of them
was started again. Here the variables that are initialised keep their values. The first session of a process
restores all of them, as TensorFlow does, and so does one that the program makes again of its own; only these
may begin without a checkpoint. The program and
its graph, which is final by then, stay as they are: for each variable the graph has one operation that says
whether it is initialised, and one that restores it.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import types
from typing import Callable, Dict, Optional, Protocol, Sequence, Union, cast

from .patches import Change, method, put

MODULE = "tensorflow.python.training.session_manager"
SESSIONS = "tensorflow.python.training.monitored_session"
VARIABLE = "TFSUP_PS_RECOVERY"
PARTIAL = "partial"
_RESTORES = ("Assign", "AssignVariableOp")
_ASKS = ("IsVariableInitialized", "VarIsInitializedOp")
_PREPARED = "_tfsup_prepared"
_SAVERS = "tensorflow.python.training.saver"
_LOADED = "saved_model_initializers"


class _Tensor(Protocol):
    op: _Operation

    def consumers(self) -> Sequence[_Operation]: ...


class _Operation(Protocol):
    type: str
    inputs: Sequence[_Tensor]
    outputs: Sequence[_Tensor]
    control_inputs: Sequence[_Operation]


class _Graph(Protocol):
    def get_operation_by_name(self, name: str) -> _Operation: ...

    def get_collection(self, name: str) -> Sequence[object]: ...


class _Session(Protocol):
    graph: _Graph
    run: Callable[..., object]


class _SaverDef(Protocol):
    restore_op_name: str
    filename_tensor_name: str


class _Saver(Protocol):
    saver_def: Optional[_SaverDef]

    def restore(self, session: _Session, path: Union[str, bytes]) -> object: ...


def changes() -> Dict[str, Change]:
    """The changes that make the chief keep what is left, by module."""
    return {MODULE: keep_what_is_left, SESSIONS: notice_losses}


_losses = threading.local()
"""`lasts` while TensorFlow makes a session again, as a server or worker was lost."""


def notice_losses(module: types.ModuleType) -> None:
    """Change the class `_RecoverableSession` of the module; nothing in one that is not known.

    A program may also prepare another session of its own, to go back on purpose: that one restores all.
    """
    recoverable, create = method(module, "_RecoverableSession", "_create_session")
    if recoverable is None or create is None:
        _say("the sessions of this TensorFlow are not known: every variable will be restored")
        return
    creates = create

    def creating(self: object) -> object:
        _losses.lasts = "_sess" in vars(self)
        try:
            return creates(self)
        finally:
            _losses.lasts = False

    put(recoverable, "_create_session", creating, create)


def keep_what_is_left(module: types.ModuleType) -> None:
    """Change the class `SessionManager` of the module; nothing in one that is not known."""
    manager, prepare = method(module, "SessionManager", "prepare_session")
    _, restore = method(module, "SessionManager", "_restore_checkpoint")
    if manager is None or prepare is None or restore is None or not _takes(prepare, "init_op", "init_fn"):
        _say("the SessionManager of this TensorFlow is not known: every variable will be restored")
        return
    theirs, restores, parameters = prepare, restore, inspect.signature(prepare)

    def preparing(self: object, *args: object, **kwargs: object) -> object:
        bound = parameters.bind(self, *args, **kwargs)
        if _is_recovery(self):
            # Where no checkpoint is found, TensorFlow would begin from scratch, also what was not lost.
            bound.arguments.update(init_op=None, init_fn=None)
        session = theirs(*bound.args, **bound.kwargs)
        vars(self)[_PREPARED] = True
        return session

    def restoring(
        self: object, master: object, saver: Optional[object] = None, *args: object, **kwargs: object
    ) -> object:
        if hasattr(saver, "saver_def") and _is_recovery(self):
            saver = _Partial(cast(_Saver, saver))
        return restores(self, master, saver, *args, **kwargs)

    put(manager, "prepare_session", preparing, prepare)
    put(manager, "_restore_checkpoint", restoring, restore)


def _is_recovery(manager: object) -> bool:
    """Whether it makes a session again after a loss, and had made the one before."""
    return _PREPARED in vars(manager) and getattr(_losses, "lasts", False)


def _takes(function: types.FunctionType, *names: str) -> bool:
    return set(names) <= set(inspect.signature(function).parameters)


class _Partial:
    """A Saver of TensorFlow 1 that restores only what is not initialised."""

    def __init__(self, saver: _Saver) -> None:
        self._saver = saver

    def __getattr__(self, name: str) -> object:
        return getattr(self._saver, name)

    def restore(self, session: _Session, path: Union[str, bytes]) -> None:
        """Restore from the checkpoint with this prefix."""
        told = self._saver.saver_def if _is_known(self._saver) else None
        restores = _restores(session.graph, told.restore_op_name) if told is not None else {}
        asks = {variable: ask for variable in restores if (ask := _ask(variable)) is not None}
        # What a SavedModel was loaded with has been written to all servers by now.
        loaded = session.graph.get_collection(_LOADED)
        if told is None or not restores or len(asks) < len(restores) or loaded:
            _say("it is not known which variables are lost: all are restored")
            self._saver.restore(session, path)
            return
        known = cast("Dict[_Operation, bool]", session.run(asks))
        lost = [restores[variable] for variable, initialised in known.items() if not initialised]
        if lost:
            session.run(lost, {told.filename_tensor_name: path})
        name = os.path.basename(os.fsdecode(path))
        _say(f"restored {len(lost)} of {len(restores)} variables from {name}, and kept the others")


def _is_known(saver: object) -> bool:
    """Whether it restores as TensorFlow's Saver does, and in no way of its own."""
    owner = next((each for each in type(saver).__mro__ if "restore" in vars(each)), None)
    return owner is not None and owner.__module__ == _SAVERS


def _say(text: str) -> None:
    print(f"tf-supervisor: {text}", file=sys.stderr, flush=True)


def _restores(graph: _Graph, name: str) -> Dict[_Operation, _Operation]:
    """Variable -> the operation that restores it; empty where something else is restored as well."""
    found: Dict[_Operation, _Operation] = {}
    waiting, seen = [graph.get_operation_by_name(name)] if name else [], set()
    while waiting:
        each = waiting.pop()
        if each.type in _RESTORES:
            found[each.inputs[0].op] = each
        elif each.type != "NoOp":
            return {}
        elif each not in seen:
            seen.add(each)
            waiting.extend(each.control_inputs)
    return found


def _ask(variable: _Operation) -> Optional[_Tensor]:
    """The tensor that says whether it is initialised."""
    asks = (each for each in variable.outputs[0].consumers() if each.type in _ASKS)
    return next((each.outputs[0] for each in asks), None)
