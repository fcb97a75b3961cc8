"""The import of the job's heavy modules in the launcher, and the undoing of the launcher's own settings in
each child.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Optional

from . import latched, pages, patches, peers, saves, steering, tf1

# One thread for OpenBLAS and the like: the launcher must be single-threaded when it forks.
THREADS_VARIABLE = "OMP_NUM_THREADS"
_MOST_VERSION = 64
_MORE_S = 10.0
# glibc's mallopt. Once one is set, glibc leaves the thresholds where they are: at the most that it goes to.
_MALLOPT = ((-2, 8 << 20), (-1, 64 << 20), (-3, 32 << 20))
"""M_TOP_PAD, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD."""
_OWN_MALLOC = re.compile(r"MALLOC_\w+|GLIBC_TUNABLES|LD_PRELOAD")
_THREAD_LIBRARY = re.compile(r"/\S*(?:openblas|libgomp|libomp|libiomp5)\S*\.so\S*$", re.MULTILINE)
_THREAD_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
    "omp_set_num_threads",
)


@dataclass(frozen=True)
class Preloaded:
    """The result of `preload`. `error` names the module that failed, with its error.

    `thread_setters` are functions of the loaded numerical libraries that take a number of threads; `threads`
    is the number that they were given. `imports`: what else the import depended on.
    """

    error: str | None = None
    thread_setters: tuple[Callable[[int], object], ...] = ()
    threads: int = 0
    imports: latched.Imports = field(default_factory=latched.Imports)


class ImportHangs(BaseException):
    """The imports take too long. What catches the errors of a module does not catch this one."""


@contextmanager
def within(limit_ms: int) -> Iterator[None]:
    """Bound the imports in the block; 0: without a bound.

    After `limit_ms` they are interrupted. If they hang where Python cannot interrupt them, this process ends
    _MORE_S later, with its stacks on stderr.
    """

    def interrupt(_number: int, frame: Optional[FrameType]) -> None:
        at = traceback.extract_stack(frame)[-1]
        where = f"{at.filename}:{at.lineno} in {at.name}"
        raise ImportHangs(f"not imported after {limit_ms / 1000:g} s (limits.startup), at {where}")

    if not limit_ms:
        yield
        return
    faulthandler.dump_traceback_later(limit_ms / 1000 + _MORE_S, exit=True)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit_ms / 1000)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        faulthandler.cancel_dump_traceback_later()


def preload(modules: tuple[str, ...], job_env: dict[str, str]) -> Preloaded:
    """Import `modules`, and prepare the interpreter for forks."""
    patches.apply(
        {
            **tf1.changes(saves.is_kept, saves.note_session),
            **saves.changes(),
            **steering.changes(saves.cadence, saves.is_kept),
            **peers.changes(),
        }
    )
    environ = dict(os.environ)
    if "LC_CTYPE" not in job_env:
        environ.pop("LC_CTYPE", None)  # Python sets it at its start where there is no locale
    with latched.noting() as (read, sought):
        for name in modules:
            try:
                importlib.import_module(name)
            except BaseException as error:
                return Preloaded(f"{name}: {type(error).__name__}: {error}")
    setters, threads = _thread_setters(), _wanted_threads(job_env)
    _set_threads(setters, threads)
    gc.collect()
    # The collector would otherwise touch, and so copy, every inherited page in each child.
    gc.freeze()
    pages.merge()
    return Preloaded(None, setters, threads, latched.imports(environ, read, sought))


def tensorflow_version() -> str:
    """The version of the imported TensorFlow; empty without one."""
    version = getattr(sys.modules.get("tensorflow"), "__version__", "")
    return version[:_MOST_VERSION] if isinstance(version, str) and version.isprintable() else ""


def launcher_environment(job_env: dict[str, str]) -> dict[str, str]:
    """The environment that the launcher itself runs in."""
    return {THREADS_VARIABLE: "1", **job_env}


def restore(job_env: dict[str, str], attempt_env: dict[str, str], preloaded: Preloaded) -> None:
    """In the child: restore environment and numerical libraries to the state of a fresh start of the
    program.
    """
    if THREADS_VARIABLE not in job_env:
        os.environ.pop(THREADS_VARIABLE, None)
    os.environ.update(attempt_env)
    threads = _wanted_threads(os.environ)
    if threads != preloaded.threads:
        _set_threads(preloaded.thread_setters, threads)
    if not any(map(_OWN_MALLOC.fullmatch, os.environ)):
        _take_memory_in_bulk()


def _take_memory_in_bulk() -> None:
    """Let each of malloc's arenas reserve 8 MiB of addresses at a time; memory is still allocated when it is
    touched.

    By default the arena of a thread grows page by page, with a system call for each: TensorFlow's gRPC server
    makes some 8000 of them when it starts. Without glibc this does nothing.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for parameter, value in _MALLOPT:
            libc.mallopt(parameter, value)


def _wanted_threads(environment: Mapping[str, str]) -> int:
    """The number of threads, counted as by OpenBLAS: at most one for each processor."""
    wanted = environment.get("OPENBLAS_NUM_THREADS") or environment.get(THREADS_VARIABLE) or ""
    processors = len(os.sched_getaffinity(0))
    return min(int(wanted), processors) if wanted.isdigit() and int(wanted) else processors


def _set_threads(setters: tuple[Callable[[int], object], ...], threads: int) -> None:
    """Set the libraries' number of threads, without starting the threads yet.

    OpenBLAS starts them at once, and each spins for some hundredths of a second, which a starting task needs
    for itself. At a fork it ends them, keeps the number, and starts them at their first use.
    """
    for set_threads in setters:
        set_threads(threads)
    if setters:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)


def _thread_setters() -> tuple[Callable[[int], object], ...]:
    """One function for each loaded library that took the launcher's single thread at its import."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = sorted(set(_THREAD_LIBRARY.findall(file.read())))
    found: list[Callable[[int], object]] = []
    for path in paths:
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue  # a file that was replaced since it was loaded
        names = [name for name in _THREAD_SETTERS if hasattr(library, name)]
        if names:
            found.append(library[names[0]])
    return tuple(found)
