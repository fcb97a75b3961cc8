"""The fence device of a cluster: the power switch of the machine that all nodes are on.

It is called as `fence-agents` are: lines `NAME=VALUE` on standard input. `machine` is the socket of the
machine's first process, `plug` a node, `action` off or status. It does not work where the node has a file
BROKEN. Standard library alone, for it runs without `site`.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from chaos.machine import kernel

BROKEN = "power_switch_broken"
PROGRAM = "fence_chaos"
DONE, FAILED, IS_OFF = 0, 1, 2
_REQUEST_S = 6.0


def script() -> str:
    """The executable."""
    work = f"import sys\n\nfrom {__name__} import main\n\nsys.exit(main(sys.stdin.read()))\n"
    return f"#!{sys.executable} -S\n{work}"


def main(options: str) -> int:
    """Do it; the exit code."""
    given = dict(line.partition("=")[::2] for line in options.splitlines() if line)
    machine, plug = Path(given["machine"]), given["plug"]
    if (machine.parent / "nodes" / plug / BROKEN).exists():
        return FAILED
    try:
        if given["action"] == "off":
            return FAILED if "error" in _ask(machine, "power_off", plug) else DONE
        return DONE if _ask(machine, "power", plug)["on"] else IS_OFF
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return FAILED


def _ask(machine: Path, verb: str, plug: str) -> dict[str, object]:
    with socket.socket(socket.AF_UNIX) as connection, kernel.short(machine) as path:
        connection.settimeout(_REQUEST_S)
        connection.connect(path)
        connection.sendall(json.dumps({"do": verb, "name": plug}).encode() + b"\n")
        with connection.makefile("rb") as stream:
            reply = json.loads(stream.readline())
    assert isinstance(reply, dict)
    return reply
