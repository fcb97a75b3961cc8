"""A chief of TensorFlow 1 that makes its session again restores only the variables that are lost.

TensorFlow restores all of them, so that every parameter server goes back to the checkpoint when one of them
was started again. Here the variables that are initialised keep their values. The first session of a process
restores all of them, as TensorFlow does, and so does one that the program makes again of its own; only these
may begin without a checkpoint (`tf1`). The program and its graph, which is final by then, stay as they are:
for each variable the graph has one operation that says whether it is initialised, and one that restores it.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Callable, Dict, Optional, Protocol, Sequence, Union, cast

from .patches import Change, method, put
from .tf1 import MODULE, is_recovery

VARIABLE = "TFSUP_PS_RECOVERY"
PARTIAL = "partial"
_RESTORES = ("Assign", "AssignVariableOp")
_ASKS = ("IsVariableInitialized", "VarIsInitializedOp")
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
    return {MODULE: keep_what_is_left}


def keep_what_is_left(module: types.ModuleType) -> None:
    """Change the class `SessionManager` of the module; nothing in one that is not known."""
    manager, restore = method(module, "SessionManager", "_restore_checkpoint")
    if manager is None or restore is None:
        _say("the SessionManager of this TensorFlow is not known: every variable will be restored")
        return
    restores = restore

    def restoring(
        self: object, master: object, saver: Optional[object] = None, *args: object, **kwargs: object
    ) -> object:
        if hasattr(saver, "saver_def") and is_recovery():
            saver = _Partial(cast(_Saver, saver))
        return restores(self, master, saver, *args, **kwargs)

    put(manager, "_restore_checkpoint", restoring, restore)


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
        # The values of a loaded SavedModel have been written to all servers by now.
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
