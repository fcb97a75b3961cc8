"""TF1's workers ask only every 30 s whether their cluster is ready; under a launcher they ask more often."""

from __future__ import annotations

import types

MODULE = "tensorflow.python.training.session_manager"
_PATIENCE_S = 30
_POLL_S = 0.1


def shorten_poll(module: types.ModuleType) -> None:
    """Ten times a second."""
    init = getattr(getattr(module, "SessionManager", None), "__init__", None)
    if isinstance(init, types.FunctionType) and init.__defaults__ is not None:
        init.__defaults__ = tuple(_POLL_S if each == _PATIENCE_S else each for each in init.__defaults__)
