"""Changes to modules of a program: made at once where a module is loaded, else as soon as it has been run."""

from __future__ import annotations

import functools
import importlib.abc
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import Callable, List, Optional, Tuple, cast

Change = Callable[[types.ModuleType], None]


def as_if(ours: Callable[..., object], theirs: types.FunctionType) -> Callable[..., object]:
    """`ours`, which stands for `theirs`, looks like it.

    Keras and TensorFlow drop frames of their own files from a traceback: ours are dropped with them.
    """
    functools.update_wrapper(ours, theirs)
    function = cast(types.FunctionType, ours)
    function.__code__ = function.__code__.replace(
        co_filename=theirs.__code__.co_filename, co_firstlineno=theirs.__code__.co_firstlineno
    )
    return ours


def put(owner: type, name: str, ours: Callable[..., object], theirs: types.FunctionType) -> None:
    """`ours` in the place of `theirs`, a method of the class `owner`."""
    setattr(owner, name, as_if(ours, theirs))


def method(
    module: types.ModuleType, name: str, method: str
) -> Tuple[Optional[type], Optional[types.FunctionType]]:
    """A class of the module and a function of it; None where it is not what it is known as."""
    found = vars(module).get(name)
    function = vars(found).get(method) if isinstance(found, type) else None
    known = isinstance(found, type) and isinstance(function, types.FunctionType)
    return (found, function) if known else (None, None)


def apply(changes: dict[str, Change]) -> None:
    """Make each change to the module of its name, once.

    A change does nothing in a module that it does not recognise.
    """
    missing = {}
    for name, change in changes.items():
        loaded = sys.modules.get(name)
        if loaded is None:
            missing[name] = change
        else:
            change(loaded)
    if missing:
        sys.meta_path.insert(0, _Finder(missing))


class _Finder(importlib.abc.MetaPathFinder):
    """Delegates to the other finders, and changes each of these modules after its first run; then it removes
    itself.
    """

    def __init__(self, missing: dict[str, Change]) -> None:
        self._missing = missing

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        change = self._missing.pop(fullname, None)
        if change is None:
            return None
        others = [each for each in sys.meta_path if each is not self and hasattr(each, "find_spec")]
        if not self._missing:
            sys.meta_path.remove(self)
        found = (each.find_spec(fullname, path, target) for each in others)
        spec = next((each for each in found if each is not None), None)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        if spec is not None and type(spec.loader) is _Loader:
            # Another finder may have been asked for a change of the same module before.
            spec.loader.changes.append(change)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self.changes: List[Change] = []

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the module under its own loader, then change it."""
        module.__loader__ = SourceFileLoader(self.name, self.path)
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__
        super().exec_module(module)
        for change in self.changes:
            change(module)
