"""The polling of TF1's workers for their cluster: every 30 s by default, more often under a launcher."""

from __future__ import annotations

import types

MODULE = "tensorflow.python.training.session_manager"
_PATIENCE_S = 30
_POLL_S = 0.1


def shorten_poll(module: types.ModuleType) -> None:
    """Make them poll ten times a second."""
    init = getattr(getattr(module, "SessionManager", None), "__init__", None)
    if isinstance(init, types.FunctionType) and init.__defaults__ is not None:
        init.__defaults__ = tuple(_POLL_S if each == _PATIENCE_S else each for each in init.__defaults__)
