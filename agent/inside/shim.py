"""The `python` that a wrapper finds first in its PATH: it has a warm interpreter run the program.

`launcher/wrapper.py` copies this file, with the job's interpreter and `-IS` in the first line. It gives its
open descriptors to the attempt's main process (`processes/zygote.py`), which reads the rest in /proc. Until
it has answered `GO` it may still become the real Python, and does so on every failure. From then on it stands
for the program: it passes signals on, and ends as the program ends.

Only what loads in a moment is imported, as a wrapper may start Python many times: `signal` and `socket` bring
classes with them, which take longer than all the rest.
"""

from __future__ import annotations

import _signal as signal
import _socket as socket
import os
import resource
import sys

READY, GO = b"ready", b"go"
SOCKET = "zygote"
"""The name of the socket, beside the directory of this file."""

_MOST_DESCRIPTORS = 250
_PATIENCE_S = 5.0
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS)
_NOT_FORWARDED = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, *_FAULTS}
_SIGKILL = 9


def main() -> None:
    """Hand over, or become the real Python; never returns."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A wrapper may have made a link to this file.
    directory, name = os.path.split(os.path.realpath(sys.argv[0]))
    try:
        conn = _hand_over(directory)
    except (OSError, ValueError):
        conn = None
    if conn is None:
        _become_real(directory, name)
    else:
        _end_as(_last_word(conn))


def _hand_over(directory: str) -> socket.socket | None:
    """The connection to the process that runs the program; None if the real Python is to run it."""
    fds = [int(each) for each in os.listdir("/proc/self/fd")]
    fds = [fd for fd in fds if _is_open(fd)]
    if len(fds) > _MOST_DESCRIPTORS:
        return None
    conn = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    conn.settimeout(_PATIENCE_S)
    # A Unix address has room for 107 bytes; through a descriptor of the directory any path is short.
    beside = os.open(os.path.dirname(directory), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    conn.connect(f"/proc/self/fd/{beside}/{SOCKET}")
    os.close(beside)
    rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
    conn.sendmsg([" ".join(map(str, fds)).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    if conn.recv(len(READY)) != READY:
        return None
    every = set(signal.valid_signals()) - _NOT_FORWARDED
    before = {number: signal.getsignal(number) for number in every}
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, every)
    try:
        for number in every:
            signal.signal(number, lambda number, _: _forward(conn, number))
        conn.send(GO)
    except OSError:
        for number in every:
            signal.signal(number, before[number])
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise
    conn.settimeout(None)
    for fd in fds:
        os.close(fd)
    return conn


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False  # the listing's own
    return True


def _forward(conn: socket.socket, number: int) -> None:
    try:
        conn.send(bytes((number,)))
    except OSError:
        pass  # the program has ended


def _last_word(conn: socket.socket) -> int:
    """The exit code of the program; after signal N it is -N."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        said = conn.recv(16)
    except OSError:
        said = b""
    return int(said) if said else -_SIGKILL


def _end_as(code: int) -> None:
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own
        if code != -_SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def _become_real(directory: str, name: str) -> None:
    """Run the Python that would have been found without this one.

    A wrapper that runs this by the path that it found wants the job's Python, whatever its PATH is now.
    """
    places = os.environ.get("PATH", "").split(os.pathsep)
    found = [os.path.realpath(each) for each in places if os.access(os.path.join(each, name), os.X_OK)]
    places = [each for each in places if os.path.realpath(each) != directory]
    if "PATH" in os.environ:
        os.environ["PATH"] = os.pathsep.join(places)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if found[:1] != [directory] or found == [directory]:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    error: OSError = FileNotFoundError(2, "not found")
    for each in places:
        try:
            os.execv(os.path.join(each, name), [name, *sys.argv[1:]])
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as failure:
            error = failure
    os.write(2, f"{name}: {error.strerror}\n".encode())
    os._exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
