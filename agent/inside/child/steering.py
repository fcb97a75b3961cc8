"""Savers of TensorFlow and tf_keras that save by themselves are asked to save, too, when it pays (`cadence`).

They save no less often than by themselves. What is not recognised is left alone.
"""

from __future__ import annotations

import functools
import time
import types
from typing import Callable, Dict, Optional, Protocol

from .cadence import Cadence
from .patches import Change, put

Current = Callable[[], Optional[Cadence]]
"""The cadence of this process; None before its program begins."""


class _Own(Protocol):
    """What a hook asks of its timer."""

    def should_trigger_for_step(self, step: int) -> bool: ...

    def update_last_triggered_step(self, step: int) -> object: ...

    def last_triggered_step(self) -> Optional[int]: ...


_ASKED_FOR = ("should_trigger_for_step", "update_last_triggered_step", "last_triggered_step")


def changes(current: Current) -> Dict[str, Change]:
    """What makes the savers ask, by module."""
    return {
        "tensorflow.python.training.basic_session_run_hooks": functools.partial(_change_hook, current),
        "tensorflow.python.checkpoint.checkpoint_management": functools.partial(_change_manager, current),
        "tf_keras.src.callbacks": functools.partial(_change_backup, current),
    }


class _Timer:
    """The timer of a CheckpointSaverHook, which triggers also when a save is due."""

    def __init__(self, own: _Own, cadence: Cadence) -> None:
        self._own = own
        self._cadence = cadence
        self._asked = False
        every_s = getattr(own, "_every_secs", None)
        cadence.steer(1000 * every_s if isinstance(every_s, (int, float)) else 0)

    def __getattr__(self, name: str) -> object:
        return getattr(self._own, name)

    def should_trigger_for_step(self, step: int) -> bool:
        """The hook asks twice: with a step that may be passed by now, then with the real one."""
        if self._own.should_trigger_for_step(step):
            return True
        self._asked = self._asked or self._cadence.due()
        return self._asked and step != self._own.last_triggered_step()

    def update_last_triggered_step(self, step: int) -> object:
        """It saves now. A timer that counts steps shows here how long they take."""
        self._asked = False
        found = self._own.update_last_triggered_step(step)
        every = getattr(self._own, "_every_steps", None)
        seconds, steps = found if isinstance(found, tuple) and len(found) == 2 else (None, None)
        if every and seconds and steps:
            self._cadence.steer(1000 * seconds * every / steps)
        return found


def _change_hook(current: Current, module: types.ModuleType) -> None:
    hook, init = _method(module, "CheckpointSaverHook", "__init__")
    if hook is None or init is None:
        return

    def steered(self: object, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)
        cadence = current()
        if cadence is not None and cadence.steers:
            _steer(self, cadence)

    put(hook, "__init__", steered, init)


def _steer(hook: object, cadence: Cadence) -> None:
    timer, save = getattr(hook, "_timer", None), getattr(hook, "_save", None)
    known = callable(save) and all(callable(getattr(timer, name, None)) for name in _ASKED_FOR)
    if timer is None or save is None or not known:
        cadence.leave("the CheckpointSaverHook of this TensorFlow is not known")
        return

    def measured(*args: object, **kwargs: object) -> object:
        began_s = time.monotonic()
        try:
            return save(*args, **kwargs)
        finally:
            # With its listeners and its summary.
            cadence.widen(began_s, time.monotonic())

    vars(hook)["_timer"] = _Timer(timer, cadence)
    vars(hook)["_save"] = functools.wraps(save)(measured)


def _change_manager(current: Current, module: types.ModuleType) -> None:
    """A manager with an interval saves when it has passed, and is asked each time whether it has."""
    manager, save = _method(module, "CheckpointManager", "save")
    if manager is None or save is None:
        return

    def steered(self: object, *args: object, **kwargs: object) -> object:
        has_interval = getattr(self, "_checkpoint_interval", None) is not None
        if has_interval and len(args) < 2 and kwargs.get("check_interval", True) and _is_due(current):
            kwargs["check_interval"] = False
        return save(self, *args, **kwargs)

    put(manager, "save", steered, save)


def _change_backup(current: Current, module: types.ModuleType) -> None:
    """One that counts batches. What one of epochs saved in the middle would be restored as an epoch's end."""
    callback, ended = _method(module, "BackupAndRestore", "on_train_batch_end")
    if callback is None or ended is None:
        return

    def steered(self: object, *args: object, **kwargs: object) -> object:
        every, counted = getattr(self, "save_freq", None), getattr(self, "_batches_count", None)
        if type(every) is int and type(counted) is int and 0 <= counted < every and _is_due(current):
            vars(self)["_batches_count"] = every - 1
        return ended(self, *args, **kwargs)

    put(callback, "on_train_batch_end", steered, ended)


def _is_due(current: Current) -> bool:
    cadence = current()
    if cadence is None or not cadence.steers:
        return False
    if not cadence.is_steered:
        cadence.steer(0)
    return cadence.due()


def _method(
    module: types.ModuleType, name: str, method: str
) -> tuple[type | None, types.FunctionType | None]:
    """A class of the module and a function of it; None where it is not what it is known as."""
    found = vars(module).get(name)
    function = vars(found).get(method) if isinstance(found, type) else None
    known = isinstance(found, type) and isinstance(function, types.FunctionType)
    return (found, function) if known else (None, None)
