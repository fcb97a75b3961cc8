"""Commands that are run where another process is."""

from __future__ import annotations

import os
import subprocess

SYSTEM_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_COMMAND_S = 30.0


def entering(pid: int, *spaces: str) -> list[str]:
    """The words before a command that run it in namespaces (net, mount, ...) of process `pid`."""
    return ["nsenter", "--target", str(pid), *(f"--{space}" for space in spaces), "--"]


def run_in(pid: int, space: str, *argv: str, said: str = "") -> str:
    """Run a command there; what it printed. `space` is net or mount.

    Raises:
        AssertionError: it failed; the text is what it said.
    """
    # Tools of mounts look at /proc/self, which is the one of its namespace of pids.
    spaces = (space, "pid") if space == "mount" else (space,)
    done = subprocess.run(
        [*entering(pid, *spaces), *argv],
        input=said,
        capture_output=True,
        text=True,
        timeout=_COMMAND_S,
        check=False,
        env=os.environ | {"PATH": SYSTEM_PATH},
    )
    assert done.returncode == 0, f"{' '.join(argv)}: {said}{done.stdout}{done.stderr}"
    return done.stdout


def ip_in(pid: int, *lines: str) -> None:
    """Run several commands of `ip` in the network of process `pid`."""
    run_in(pid, "net", "ip", "-batch", "-", said="\n".join(lines) + "\n")
