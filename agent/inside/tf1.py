"""TF1's workers ask only every 30 s whether their cluster is ready; under a launcher they ask more often."""

from __future__ import annotations

import importlib.abc
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader

_MODULE = "tensorflow.python.training.session_manager"
_PATIENCE_S = 30
_POLL_S = 0.1


def shorten_poll() -> None:
    """Ten times a second: now, if TensorFlow is loaded, else as soon as the program has imported it."""
    loaded = sys.modules.get(_MODULE)
    if loaded is not None:
        _shorten(loaded)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _shorten(module: types.ModuleType) -> None:
    init = getattr(getattr(module, "SessionManager", None), "__init__", None)
    if isinstance(init, types.FunctionType) and init.__defaults__ is not None:
        init.__defaults__ = tuple(_POLL_S if each == _PATIENCE_S else each for each in init.__defaults__)


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find that one module, and has it changed when it is run; then it is gone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        found = (each.find_spec(fullname, path, target) for each in sys.meta_path)
        spec = next((each for each in found if each is not None), None)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        """Run the module under the loader that it would have had, then shorten the poll."""
        module.__loader__ = SourceFileLoader(self.name, self.path)
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__
        super().exec_module(module)
        _shorten(module)
