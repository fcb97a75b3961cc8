"""A command beside a task, in the task's container, as its user and within its limits.

`python -m agent.runtimes.docker_exec SOCKET CONTAINER PID START_TICKS`: the first line of standard input is
{"cwd": ..., "env": {...}}, the second the command, which goes to its guard as it is. The end of the input
shows that the caller is gone, and ends the command. PID is the attempt's in its container. The exit code is
the command's; 126 if docker refuses.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from typing import cast

from docker import APIClient, errors
from docker.utils.socket import frames_iter

from agent.runtimes.docker_node import INSIDE_AT

CALL_S = 10
CANNOT_RUN = 126
_STDERR = 2


def main(arguments: list[str]) -> int:
    """Run the command and pass its output on; returns its exit code."""
    path, container, pid, ticks = arguments
    around, command = json.loads(sys.stdin.buffer.readline()), sys.stdin.buffer.readline()
    try:
        client = APIClient(f"unix://{path}", timeout=CALL_S)
        python = client.inspect_container(container)["Path"]
        guard = [python, "-I", "-S", INSIDE_AT, "--beside", pid, ticks]
        ident = client.exec_create(
            container, guard, stdin=True, environment=around["env"], workdir=around["cwd"]
        )["Id"]
        stream = client.exec_start(ident, socket=True)
    except (errors.DockerException, OSError) as error:
        sys.stderr.write(f"docker cannot run the command: {error}\n")
        return CANNOT_RUN
    # The SDK wraps it, and has set its own deadline on it.
    raw = cast(socket.socket, getattr(stream, "_sock", stream))
    raw.settimeout(None)
    raw.sendall(command)
    threading.Thread(target=_end_with_the_caller, args=(raw,), daemon=True).start()
    for number, data in frames_iter(stream, tty=False):
        descriptor = sys.stderr if number == _STDERR else sys.stdout
        descriptor.buffer.write(data)
        descriptor.buffer.flush()
    return int(client.exec_inspect(ident)["ExitCode"])


def _end_with_the_caller(raw: socket.socket) -> None:
    while os.read(0, 1):
        pass
    raw.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # The thread still reads.
    os._exit(code)
