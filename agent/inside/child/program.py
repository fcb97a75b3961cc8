"""Running a Python command in an interpreter that is already warm, as `python prog.py` would have run it."""

from __future__ import annotations

import atexit
import importlib.machinery
import io
import os
import re
import runpy
import shutil
import signal
import sys
import threading
import types
import zipfile
from collections.abc import Callable
from dataclasses import dataclass

from . import raised

_OUR_PACKAGE = __name__.partition(".")[0]
_PYTHON = re.compile(r"python(\d*(?:\.\d+)?)")
# Read by the interpreter or the dynamic linker before the first line of Python runs.
_LATCHED = re.compile(r"PYTHON(?!UNBUFFERED$|DONTWRITEBYTECODE$).*|LD_PRELOAD|LD_LIBRARY_PATH|LD_AUDIT")


@dataclass(frozen=True)
class Program:
    """A program to run warm: a script (`module` False) or a module, and its arguments.

    `command` is the whole command line; `target` the script as written, or the module's name.
    """

    command: tuple[str, ...]
    target: str
    arguments: tuple[str, ...]
    module: bool
    unbuffered: bool
    no_bytecode: bool


def is_python(argv: tuple[str, ...]) -> bool:
    """Whether the command runs a Python interpreter."""
    return bool(argv) and _PYTHON.fullmatch(os.path.basename(argv[0])) is not None


def warm_program(argv: tuple[str, ...], cwd: str, env: dict[str, str]) -> Program | None:
    """The program, if a fork of this interpreter can run `argv`; None if only exec behaves the same.

    `env` holds the variables that differ from this interpreter's own. Unusual cases (another interpreter, an
    option that changes it, a missing script, a directory or an archive) are left to exec, so that Python
    itself gives its own message.
    """
    if not is_python(argv) or not is_this_interpreter(argv[0], env):
        return None
    if any(_LATCHED.fullmatch(name) and os.environ.get(name) != value for name, value in env.items()):
        return None
    flags = set()
    rest = list(argv[1:])
    while rest and rest[0] in ("-u", "-B"):
        flags.add(rest.pop(0))
    module = len(rest) >= 2 and rest[0] == "-m"
    if module:
        rest.pop(0)
    if not rest or rest[0].startswith("-"):
        return None
    target = rest.pop(0)
    if not module and not _is_script(os.path.join(cwd, target)):
        return None
    return Program(argv, target, tuple(rest), module, "-u" in flags, "-B" in flags)


def cold_command(argv: tuple[str, ...], env: dict[str, str]) -> tuple[str, ...]:
    """The command line to exec: a bare `python` is the interpreter that the agent chose for this job."""
    if is_python(argv) and "/" not in argv[0] and is_this_interpreter(argv[0], env):
        return (sys.executable, *argv[1:])
    return argv


def is_this_interpreter(command: str, env: dict[str, str]) -> bool:
    """Whether the command, a path or a name in PATH, is the interpreter that runs this."""
    version = (_PYTHON.fullmatch(os.path.basename(command)) or [""])[1]
    if not f"{sys.version_info[0]}.{sys.version_info[1]}".startswith(version):
        return False
    if "/" not in command:
        found = shutil.which(command, path=env.get("PATH", os.environ.get("PATH")))
        # A shim (pyenv and the like) is not an interpreter: it finds the one that the agent chose for us.
        if found is None or _is_shell_script(found):
            return True
        command = found
    try:
        same_place = os.path.samefile(os.path.dirname(command), os.path.dirname(sys.executable))
        return same_place or (sys.prefix == sys.base_prefix and os.path.samefile(command, sys.executable))
    except OSError:
        return False


def is_its_file(path: str) -> bool:
    """Whether this file is the interpreter that runs this: beside it may lie one of another version."""
    try:
        return is_this_interpreter(path, {}) and os.path.samefile(path, sys.executable)
    except OSError:
        return False


def _is_shell_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _is_script(path: str) -> bool:
    return (
        os.path.isfile(path) and os.access(path, os.R_OK) and not path.endswith(".pyc") and not _is_zip(path)
    )


def _is_zip(path: str) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except OSError:
        return False


def run(program: Program, attempt_dir: str = "", masked: Callable[[str], str] = str) -> None:
    """Run the program in this process, which then ends with the exit code that Python would have given.

    `attempt_dir`: where an exception that ends its main thread is noted; empty: it is not. `masked`: hides
    secrets in its message.
    """
    code, pid = 1, os.getpid()
    try:
        _prepare(program)
        if program.module:
            # The very function behind `python -m`.
            _private(runpy, "_run_module_as_main")(program.target)
        else:
            _run_script(program)
        code = 0
    except SystemExit as request:
        code = _exit_code(request)
        if code and attempt_dir and os.getpid() == pid:
            raised.note(request, attempt_dir, masked)
    except BaseException as error:
        _cut_frames(error)
        if attempt_dir and os.getpid() == pid:
            raised.note(error, attempt_dir, masked)
        _report(error)
        if isinstance(error, KeyboardInterrupt):
            code = -signal.SIGINT
    _finish(code)


def _forget_module(name: str) -> None:
    """Remove a module of ours, and those in it, from `sys.modules`. Functions keep their namespaces.

    A walk over all of `sys.modules` would write to the reference count of each name, and so copy its page.
    """
    module = sys.modules.pop(name, None)
    if hasattr(module, "__path__"):
        for child in list(vars(module)):
            _forget_module(f"{name}.{child}")


def _prepare(program: Program) -> None:
    _forget_module(_OUR_PACKAGE)
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    sys.argv = ["-m" if program.module else program.target, *program.arguments]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = list(program.command)
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(
            0, os.getcwd() if program.module else os.path.dirname(os.path.realpath(program.target))
        )
    if program.no_bytecode or os.environ.get("PYTHONDONTWRITEBYTECODE"):
        sys.dont_write_bytecode = True
    unbuffered = program.unbuffered or bool(os.environ.get("PYTHONUNBUFFERED"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Line by line, unlike Python into a pipe: the agent reads the steps from the output.
            stream.reconfigure(line_buffering=True, write_through=unbuffered)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # The global generator was seeded before the fork: every attempt would draw the same numbers.
        numpy.random.seed()


def _run_script(program: Program) -> None:
    path = program.target
    if sys.version_info >= (3, 9):
        # As it stands there, but for one "./": Python does not resolve "..".
        relative = path[2:] if path[:2] == "./" else path
        path = os.path.join(os.getcwd(), relative)
    main = sys.modules["__main__"]
    main.__file__ = path
    main.__dict__["__cached__"] = None
    vars(main)["__annotations__"] = {}
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _exit_code(request: SystemExit) -> int:
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code & 0xFF
    sys.stdout.flush()
    print(request.code, file=sys.stderr)
    return 1


def _cut_frames(error: BaseException) -> None:
    """Drop the frames of this file from the traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace


def _report(error: BaseException) -> None:
    """Print the traceback as Python would."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit:
        pass  # a hook may end the program; what it was told is an error all the same
    except BaseException as hook_error:
        sys.__excepthook__(type(hook_error), hook_error, hook_error.__traceback__)


def _finish(code: int) -> None:
    """End as the interpreter does, without tearing TensorFlow down: 0.03 s instead of 1.3 s and more."""
    try:
        _private(threading, "_shutdown")()
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    _private(atexit, "_run_exitfuncs")()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError) as error:
            print(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}", file=sys.stderr)
            code = code or 120
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _private(module: types.ModuleType, name: str) -> Callable[..., object]:
    """A function that the interpreter calls itself, and that has no public name."""
    function: Callable[..., object] = module.__dict__[name]
    return function
