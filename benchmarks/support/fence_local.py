"""The power switch of an embedded cluster's machines, called as the programs of `fence-agents` are.

`directory=` names the state directory of the machine's agent. `off` kills all that works in it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.demo import kernel

WORKS, FAILED, OFF = 0, 1, 2
LONGEST_S = 5.0


def main() -> int:
    """Read the options, act, and return the exit code."""
    options = dict(line.rstrip("\n").split("=", 1) for line in sys.stdin if "=" in line)
    directory = Path(options["directory"])
    if options["action"] == "status":
        return WORKS if kernel.using(directory) else OFF
    deadline = time.monotonic() + LONGEST_S
    while alive := kernel.using(directory):
        for ref in alive:
            with suppress(ProcessLookupError):
                os.kill(ref.pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return FAILED
        time.sleep(0.01)
    return WORKS


if __name__ == "__main__":
    sys.exit(main())
