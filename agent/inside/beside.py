"""An operator's command beside a running attempt: it ends with the attempt and with the caller.

It is run as `PYTHON -I -S agent/inside --beside PID START_TICKS` under the attempt's environment, so that its
marker is found in /proc. Standard input is a pipe. Its one line is the command, a JSON list of texts, so that
the command is in no process's command line. The end of the pipe means that the caller is gone.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import time

from .processes import fence, spawn

ATTEMPT_GONE = 125
_PAUSE_S = 0.005


def main(arguments: list[str]) -> None:
    """Run the command and end with its exit code; 128 + N after signal N, 125 if the attempt is gone."""
    pid, ticks = int(arguments[0]), int(arguments[1])
    # An agent of the release before gives the command as arguments.
    command = arguments[2:] or _command()
    spawn.become_subreaper()
    try:
        attempt = os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(ATTEMPT_GONE)
    found = fence.read_process(pid)
    if found is None or found.start_ticks != ticks:
        os._exit(ATTEMPT_GONE)
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, guard)
    code = _guard(attempt, os.pidfd_open(child))
    _kill_all()
    os._exit(code)


def _command() -> list[str]:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1 << 16)
        if not piece:
            os._exit(128 + signal.SIGKILL)  # the caller is gone
        line += piece
    command: list[str] = json.loads(line)
    return command


def _become(command: list[str], guard: int) -> None:
    os.setsid()
    spawn.die_with(guard)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]!r}: {error.strerror}\n".encode())
        os._exit(126 if isinstance(error, PermissionError) else 127)
    except ValueError as error:
        os.write(2, f"cannot run {command[0]!r}: {error}\n".encode())
        os._exit(127)


def _guard(attempt: int, child: int) -> int:
    """Wait for the first end: of the command, the attempt or the caller. Returns the exit code."""
    with selectors.DefaultSelector() as selector:
        for fd in (0, attempt, child):
            selector.register(fd, selectors.EVENT_READ)
        ready = {key.fd for key, _ in selector.select()}
    if child in ready:
        end = os.waitid(os.P_PIDFD, child, os.WEXITED | os.WNOWAIT)
        assert end is not None
        return end.si_status if end.si_code == os.CLD_EXITED else 128 + end.si_status
    return ATTEMPT_GONE if attempt in ready else 128 + signal.SIGKILL


def _kill_all() -> None:
    """Kill until no child is left: in a subreaper that proves that no descendant is left."""
    own = fence.read_process(os.getpid())
    assert own is not None
    while spawn.has_children():
        fence.sweep("", ((own.pid, own.start_ticks),), spare=(own.pid,))
        time.sleep(_PAUSE_S)
