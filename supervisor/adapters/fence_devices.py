"""Fence devices: programs of Debian's `fence-agents`, or others that are called as those are.

A program reads lines `NAME=VALUE` from its standard input, `action=off` or `action=status` among them. `off`
ends with code 0 when the machine is off; `status` ends with code 2 when it is off, and with 0 when it is on.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import PowerSwitch
from supervisor.contract.errors import Refused

STATUS_ON, STATUS_OFF = 0, 2
SYSTEM_PATH = "/usr/sbin:/sbin"
"""The directories of `fence-agents`, which the PATH of users leaves out."""
NODE = "{node}"
"""In an option's value, replaced by the node's name."""


@dataclass(frozen=True, slots=True)
class FenceDevice:
    """One device.

    Attributes:
        command: the program and its arguments.
        options: of its standard input, by name.
        options_file: more of them, which only the supervisor can read; empty for none.
        nodes: those that it can switch off.
        labels: it can switch off every node that has all of them; none when `nodes` are given.
    """

    command: tuple[str, ...]
    options: Mapping[str, str]
    options_file: str
    nodes: frozenset[str]
    labels: Mapping[str, str]

    def serves(self, node: str, labels: Mapping[str, str]) -> bool:
        """Whether it can switch this node off."""
        if self.nodes:
            return node in self.nodes
        return all(labels.get(name) == value for name, value in self.labels.items())

    def options_of(self, node: str) -> dict[str, str]:
        """Its options for a node, without those of the file."""
        return {name: value.replace(NODE, node) for name, value in self.options.items()}


class FenceDevices(PowerSwitch):
    """All fence devices of a configuration. The first one that serves a node is its device."""

    def __init__(self, devices: Sequence[FenceDevice] = (), after_ms: int = 0) -> None:
        self.load(devices, after_ms)

    def load(self, devices: Sequence[FenceDevice], after_ms: int) -> None:
        """Use these devices from now on. A request in progress goes on with the old ones."""
        self._devices = tuple(devices)
        self.after_ms = after_ms

    def device(self, node: str, labels: Mapping[str, str]) -> str:
        """The name of the device's program; empty for none."""
        found = self._find(node, labels)
        return Path(found.command[0]).name if found is not None else ""

    async def switch_off(self, node: str, labels: Mapping[str, str]) -> None:
        """Run `off`, then `status`. Raises Refused unless both confirm that the machine is off."""
        device = self._find(node, labels)
        if device is None:
            raise Refused("no fence device is configured for this node any more")
        code = await _run(device, node, "off")
        if code != 0:
            raise Refused(f"`action=off` has ended with code {code}; {_BY_HAND}")
        code = await _run(device, node, "status")
        if code == STATUS_ON:
            raise Refused(
                "`action=off` has ended with code 0, but `action=status` says that the machine is on"
            )
        if code != STATUS_OFF:
            raise Refused(f"`action=status` has ended with code {code}; {_BY_HAND}")

    def _find(self, node: str, labels: Mapping[str, str]) -> FenceDevice | None:
        return next((each for each in self._devices if each.serves(node, labels)), None)


_BY_HAND = "run it by hand to see why"


def executable(command: str) -> str:
    """The path of a program. Raises Refused when there is none that may be executed."""
    found = shutil.which(command, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
    if found is None:
        what = "is not executable" if Path(command).exists() else "is not on this machine"
        raise Refused(f"{command} {what}; `apt install fence-agents` has the common devices")
    return found


async def _run(device: FenceDevice, node: str, action: str) -> int:
    lines = [f"{name}={value}" for name, value in {**device.options_of(node), "action": action}.items()]
    try:
        # On standard input: the arguments of a process can be read by everybody on this machine.
        secret = await asyncio.to_thread(_text_of, device.options_file)
        with effect("device.run"):
            process = await asyncio.create_subprocess_exec(
                executable(device.command[0]),
                *device.command[1:],
                stdin=asyncio.subprocess.PIPE,
                # Both may hold a password, and would be in the journal.
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
    except (OSError, ValueError) as error:
        raise Refused(f"it cannot be run: {error}") from error
    try:
        await process.communicate("\n".join((*lines, secret)).encode() + b"\n")
        return process.returncode if process.returncode is not None else -1
    finally:
        if process.returncode is None:
            # It may run as another user, or be gone.
            with suppress(OSError), effect("device.kill"):
                os.killpg(process.pid, signal.SIGKILL)


def _text_of(path: str) -> str:
    return Path(path).read_text(encoding="utf-8") if path else ""
