"""The shim `python` in the PATH of a wrapper's attempt, and the socket to which it hands over.

A wrapper is a command that is no Python program itself, such as `sh -c "... python train.py"`.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from dataclasses import dataclass

from .. import shim
from ..child import program
from ..failpoints import effect

_DIRECTORY = "bin"
_MOST_FIRST_LINE = 127
"""Bytes of a first line that every kernel reads."""


@dataclass(frozen=True)
class Offer:
    """`path`: the wrapper's PATH. `listener`: the socket that its `python` connects to."""

    path: str
    listener: socket.socket


def offer(state_dir: str, env: dict[str, str]) -> Offer | None:
    """Make both; None where no name in PATH is this interpreter, or the files cannot be written."""
    first_line = f"#!{sys.executable} -IS\n".encode()
    names = [name for name in _names() if _is_ours(name, env.get("PATH", ""))]
    if not names or len(first_line) > _MOST_FIRST_LINE or re.search(rb"\s", first_line[:-5]):
        return None
    directory = os.path.join(os.path.abspath(state_dir), _DIRECTORY)
    if os.pathsep in directory:
        return None
    try:
        with effect("launcher.shim"):
            os.makedirs(directory, mode=0o700, exist_ok=True)
            with open(shim.__file__, "rb") as file:
                text = first_line + file.read()
            for name in names:
                _replace(os.path.join(directory, name), text)
        return Offer(f"{directory}{os.pathsep}{env['PATH']}", _listen(directory))
    except OSError:
        return None  # a full disk: the wrapper starts Python as it always has


def without(state_dir: str, path: str) -> str:
    """A PATH without our directory."""
    directory = os.path.join(os.path.abspath(state_dir), _DIRECTORY)
    return os.pathsep.join(each for each in path.split(os.pathsep) if each != directory)


def _names() -> tuple[str, ...]:
    return "python", f"python{sys.version_info[0]}", f"python{sys.version_info[0]}.{sys.version_info[1]}"


def _is_ours(name: str, path: str) -> bool:
    found = shutil.which(name, path=path)
    return found is not None and program.is_its_file(found)


def _replace(path: str, text: bytes) -> None:
    fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o700)
    with os.fdopen(fd, "wb") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def _listen(directory: str) -> socket.socket:
    beside = os.open(os.path.dirname(directory), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        # A Unix address has room for 107 bytes; through a descriptor of the directory any path is short.
        name = f"/proc/self/fd/{beside}/{shim.SOCKET}"
        if os.path.lexists(name):
            os.unlink(name)
        listener.bind(name)
        os.chmod(name, 0o600)
        listener.listen()
    except OSError:
        listener.close()
        raise
    finally:
        os.close(beside)
    return listener
