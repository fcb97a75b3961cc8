"""Savers of TensorFlow and tf_keras that save by themselves are asked to save, too, when it pays (`cadence`).

They save no less often than by themselves. Left alone is what is not recognised, what saves outside
`$CHECKPOINT_DIR`, and what keeps every checkpoint.
"""

from __future__ import annotations

import functools
import os
import time
import types
import weakref
from typing import Callable, Dict, MutableMapping, Optional, Protocol, SupportsIndex

from .cadence import Cadence, harmless
from .patches import Change, method, put

Current = Callable[[], Optional[Cadence]]
"""The cadence of this process; None before its program begins."""
IsKept = Callable[[str], bool]
"""Whether what is saved in a directory is a checkpoint of the job."""

OUTSIDE = "it saves outside $CHECKPOINT_DIR"
KEEPS_ALL = "its saver keeps every checkpoint"
UNSEEN = "its saver was asked, and no save was seen"
_UNKNOWN_HOOK = "the CheckpointSaverHook of this TensorFlow is not known"


class _Own(Protocol):
    """The part of a timer that a hook uses."""

    def should_trigger_for_step(self, step: int) -> bool: ...

    def update_last_triggered_step(self, step: int) -> object: ...

    def last_triggered_step(self) -> Optional[int]: ...


_ASKED_FOR = ("should_trigger_for_step", "update_last_triggered_step", "last_triggered_step")


def changes(current: Current, is_kept: IsKept) -> Dict[str, Change]:
    """The changes that make savers ask, by module."""
    return {
        "tensorflow.python.training.basic_session_run_hooks": functools.partial(
            _change_hook, current, is_kept
        ),
        "tensorflow.python.checkpoint.checkpoint_management": functools.partial(
            _change_manager, current, is_kept
        ),
        "tf_keras.src.callbacks": functools.partial(_change_backup, current, is_kept),
    }


class _Asker:
    """Whether one saver is to save now. `objection`: why it is left alone; empty: it is not.

    It is looked for at the first question, as a hook may find its saver late.
    """

    def __init__(self, cadence: Cadence, objection: Callable[[], str]) -> None:
        self.asked_step: Optional[int] = None
        self.cadence = cadence
        self._objection = objection
        self._is_asked: Optional[bool] = None
        self._own_ms = 0.0
        self._asked_s = 0.0

    def due(self) -> bool:
        cadence = self.cadence
        if not cadence.steers:
            return False
        if self._is_asked is None:
            self._is_asked = False  # also where the next line fails
            why = self._objection()
            self._is_asked = not why
            if why:
                cadence.leave(why)
        if not self._is_asked:
            return False
        if not cadence.is_steered:
            cadence.steer(self._own_ms)
        if not cadence.due():
            return False
        if self._asked_s and not cadence.saved_since(self._asked_s):
            self._is_asked = False
            cadence.stop(UNSEEN)
            return False
        self._asked_s = time.monotonic()
        return True

    def forget(self) -> None:
        """The saver had nothing to save when it was asked."""
        self._asked_s = 0.0

    def own(self, own_ms: float) -> None:
        """The saver saves every `own_ms` by itself."""
        self._own_ms = own_ms
        if self._is_asked:
            self.cadence.steer(own_ms)


class _Timer:
    """The timer of a CheckpointSaverHook, which triggers also when a save is due.

    Its own steps stay as they are where it counts steps; where it counts seconds, they begin anew.
    """

    def __init__(self, own: _Own, asker: _Asker) -> None:
        self._own = own
        self._asker = asker
        self._asked = False
        self._asked_step: Optional[int] = None
        self._between: Optional[int] = None
        self._last: Optional[tuple[int, float]] = None
        every_s = getattr(own, "_every_secs", None)
        asker.own(1000 * every_s if isinstance(every_s, (int, float)) else 0)

    def __getattr__(self, name: str) -> object:
        if name.startswith(("_own", "__")):
            raise AttributeError(name)  # a copy that has no attributes yet
        return getattr(self._own, name)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        """A copy is one of the hook's own timer."""
        return self._own.__reduce_ex__(protocol)

    def should_trigger_for_step(self, step: int) -> bool:
        """The hook asks twice: with a step that may be passed by now, then with the real one."""
        if step == self.last_triggered_step():
            return False
        if self._own.should_trigger_for_step(step):
            return True
        self._asked = self._asked or harmless(self._asker.cadence, self._asker.due)
        self._asked_step = step if self._asked else None
        return self._asked

    def update_last_triggered_step(self, step: int) -> object:
        """It saves now."""
        harmless(self._asker.cadence, lambda: self._learn(step))
        between = step == self._asked_step and bool(getattr(self._own, "_every_steps", None))
        self._asked, self._asked_step = False, None
        if between and not self._own.should_trigger_for_step(step):
            self._between = step
            return None, None
        self._between = None
        return self._own.update_last_triggered_step(step)

    def last_triggered_step(self) -> Optional[int]:
        return self._own.last_triggered_step() if self._between is None else self._between

    def _learn(self, step: int) -> None:
        """How long the steps take that the own timer counts."""
        every, before = getattr(self._own, "_every_steps", None), self._last
        self._last = step, time.monotonic()
        if every and before is not None and step > before[0]:
            self._asker.own(1000 * (self._last[1] - before[1]) * every / (step - before[0]))


def _change_hook(current: Current, is_kept: IsKept, module: types.ModuleType) -> None:
    hook, init = method(module, "CheckpointSaverHook", "__init__")
    _, save = method(module, "CheckpointSaverHook", "_save")
    if hook is None or init is None:
        return

    def steered(self: object, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)
        cadence = current()
        harmless(cadence, lambda: _steer(self, cadence, is_kept))

    put(hook, "__init__", steered, init)
    if save is None:
        return

    def measured(self: object, *args: object, **kwargs: object) -> object:
        began_s = time.monotonic()
        try:
            return save(self, *args, **kwargs)
        finally:
            cadence = current()
            if cadence is not None and cadence.steers:
                # With its listeners and its summary.
                ended_s = time.monotonic()
                harmless(cadence, lambda: cadence.widen(began_s, ended_s))

    put(hook, "_save", measured, save)


def _steer(hook: object, cadence: Optional[Cadence], is_kept: IsKept) -> None:
    if cadence is None or not cadence.steers:
        return
    timer, save = getattr(hook, "_timer", None), getattr(hook, "_save", None)
    path, saver = getattr(hook, "_save_path", None), getattr(hook, "_get_saver", None)
    known = callable(save) and all(callable(getattr(timer, name, None)) for name in _ASKED_FOR)
    if timer is None or path is None or saver is None or not known:
        cadence.leave(_UNKNOWN_HOOK)
        return

    def objection() -> str:
        if not is_kept(os.path.dirname(os.fsdecode(path))):
            return OUTSIDE
        return "" if _most_kept(saver()) else KEEPS_ALL

    vars(hook)["_timer"] = _Timer(timer, _Asker(cadence, objection))


def _most_kept(saver: object) -> object:
    """How many checkpoints a TF1 Saver keeps; 0: all of them, or that is not known."""
    return getattr(getattr(saver, "saver_def", None), "max_to_keep", 0)


class _Askers:
    """The askers of savers. Each is made when its saver may be asked for the first time."""

    def __init__(self, current: Current, objection: Callable[[object], str]) -> None:
        self._current = current
        self._objection = objection
        self._askers: MutableMapping[object, _Asker] = weakref.WeakKeyDictionary()

    def __getitem__(self, saver: object) -> _Asker:
        return self._askers[saver]

    def due(self, saver: object) -> bool:
        cadence = self._current()
        if cadence is None or not cadence.steers:
            return False
        if saver not in self._askers:
            objection = self._objection(saver)
            self._askers[saver] = _Asker(cadence, lambda: objection)
        return self._askers[saver].due()


def _change_manager(current: Current, is_kept: IsKept, module: types.ModuleType) -> None:
    """A manager with an interval saves when it has passed, and is asked each time whether it has."""
    manager, save = method(module, "CheckpointManager", "save")
    if manager is None or save is None:
        return

    def objection(manager: object) -> str:
        if not is_kept(os.path.dirname(os.fsdecode(vars(manager)["_checkpoint_prefix"]))):
            return OUTSIDE
        return "" if vars(manager)["_max_to_keep"] else KEEPS_ALL

    askers = _Askers(current, objection)

    def steered(self: object, *args: object, **kwargs: object) -> object:
        interval = getattr(self, "_checkpoint_interval", None)
        last = getattr(self, "_last_checkpoint_step", None)
        if interval is None or last is None or len(args) > 1 or not kwargs.get("check_interval", True):
            return save(self, *args, **kwargs)
        if not harmless(current(), lambda: askers.due(self)):
            return save(self, *args, **kwargs)
        asker, fields = askers[self], vars(self)
        if asker.asked_step is not None:
            # It saves nothing where it has saved this step.
            fields["_last_checkpoint_step"] = max(last, asker.asked_step)
        try:
            path = save(self, *args, **{**kwargs, "check_interval": False})
        finally:
            asker.asked_step = fields["_last_checkpoint_step"]
            if asker.asked_step < last + interval:
                # It still saves at its own steps.
                fields["_last_checkpoint_step"] = last
        if path is None:
            asker.forget()
        return path

    put(manager, "save", steered, save)


def _change_backup(current: Current, is_kept: IsKept, module: types.ModuleType) -> None:
    """Steer a BackupAndRestore that counts batches; a save of one by epochs would be restored as an epoch's
    end.
    """
    callback, ended = method(module, "BackupAndRestore", "on_train_batch_end")
    if callback is None or ended is None:
        return

    def objection(backup: object) -> str:
        return "" if is_kept(os.fsdecode(vars(backup)["backup_dir"])) else OUTSIDE

    askers = _Askers(current, objection)

    def steered(self: object, *args: object, **kwargs: object) -> object:
        every, counted = getattr(self, "save_freq", None), getattr(self, "_batches_count", None)
        if type(every) is not int or type(counted) is not int or not 0 <= counted < every - 1:
            return ended(self, *args, **kwargs)
        if not harmless(current(), lambda: askers.due(self)):
            return ended(self, *args, **kwargs)
        vars(self)["_batches_count"] = every - 1
        try:
            return ended(self, *args, **kwargs)
        finally:
            # It still saves after its own batches.
            vars(self)["_batches_count"] = counted + 1

    put(callback, "on_train_batch_end", steered, ended)
