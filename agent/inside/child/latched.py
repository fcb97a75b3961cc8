"""Variables and files that preloaded modules read at their import. A fork has what they held then; an exec
would read them anew.
"""

from __future__ import annotations

import importlib.abc
import os
import re
import site
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, Iterator, Mapping, Set, Tuple

# Read by Python at its start, by the C library, or by the C code of TensorFlow and of what it imports.
_LATCHED = re.compile(
    r"TF_(?!CONFIG$|NUM_INT(RA|ER)OP_THREADS$|FORCE_GPU_ALLOW_GROWTH$"
    r"|GRPC_REUSE_PORT$|GRPC_WORKER_CACHE_QUEUES$).*"
    r"|(OMP|OPENBLAS)_(?!NUM_THREADS$).*"
    r"|(XLA|KERAS|KMP|MKL|GOTO|GOMP|BLIS|NUMEXPR|MALLOC|GRPC|ABSL|HDF5|NPY|LC|PYENV)_.*"
    r"|HOME|LANG|LANGUAGE|TZ|GLIBC_TUNABLES"
)
_SET_ANEW = ("PATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""A fork finds programs by its own PATH, and the libraries are told its numbers of threads."""


@dataclass(frozen=True)
class Imports:
    """The state at the import. `environ`: all variables. `read`: the names of those that were read. `files`:
    those of `modules`, some of which were looked for and are not there.
    """

    environ: Mapping[str, str] = field(default_factory=dict)
    read: FrozenSet[str] = frozenset()
    modules: FrozenSet[str] = frozenset()
    files: Mapping[str, Tuple[int, int]] = field(default_factory=dict)

    def changed(self, env: Mapping[str, str]) -> Dict[str, str]:
        """The variables that are other ones in `env`; one that it lacks is empty."""
        names = {*env, *self.environ}
        return {name: env.get(name, "") for name in names if env.get(name) != self.environ.get(name)}

    def would_differ(self, env: Mapping[str, str]) -> bool:
        """Whether an import with these variables, now, could have another result."""
        if any(name in self.read or _LATCHED.fullmatch(name) for name in self.changed(env)):
            return True
        return _files(self.modules) != self.files


@contextmanager
def noting() -> Iterator[Tuple[Set[str], Set[str]]]:
    """Note the names of the variables that Python code reads, and of the modules that it looks for.

    Code that copies all lists the names, and then reads each once: that is not noted.
    """
    read: Set[str] = set()
    copied: Set[object] = set()
    environ = os.environ
    usual: Any = type(environ)

    def get(self: object, name: object) -> object:
        if name in copied:
            copied.discard(name)
        elif isinstance(name, str):
            read.add(name)
        return usual.__getitem__(self, name)

    def names(self: object) -> Iterator[object]:
        for name in usual.__iter__(self):
            copied.add(name)
            yield name

    object.__setattr__(
        environ, "__class__", type(usual.__name__, (usual,), {"__getitem__": get, "__iter__": names})
    )
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield read, finder.sought
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        object.__setattr__(environ, "__class__", usual)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing, but notes the modules that are looked for."""

    def __init__(self) -> None:
        self.sought: Set[str] = set()

    def find_spec(self, fullname: str, *_: object) -> None:
        self.sought.add(fullname.partition(".")[0])


def imports(environ: Mapping[str, str], read: Set[str], sought: Set[str]) -> Imports:
    """The state after the import: `environ` as it was before; the others as they were noted."""
    modules = frozenset(name.partition(".")[0] for name in sys.modules) | sought
    return Imports(environ, frozenset(read.difference(_SET_ANEW)), modules, _files(modules))


def _files(modules: FrozenSet[str]) -> Dict[str, Tuple[int, int]]:
    """The files and directories of these modules, and the files that name more places to look in.

    A package that is installed over another one has a new directory.
    """
    found = {}
    for place in sys.path:
        try:
            entries = [
                each
                for each in os.scandir(place)
                if each.name.endswith(".pth") or each.name.partition(".")[0] in modules
            ]
        except OSError:
            continue  # there may be no such place
        for entry in entries:
            try:
                status = entry.stat()
            except OSError:
                continue  # a link to nowhere
            found[entry.path] = (status.st_ino, status.st_mtime_ns)
    own = getattr(site, "USER_SITE", None)
    if getattr(site, "ENABLE_USER_SITE", False) and own and os.path.isdir(own):
        found[own] = (0, 0)  # Python looks there if it was there when it started
    return found
