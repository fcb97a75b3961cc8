"""Fence devices: programs of Debian's `fence-agents`, or others that are called as those are.

A program reads lines `NAME=VALUE` from its standard input, `action=off` or `action=status` among them. `off`
ends with code 0 when the machine is off; `status` ends with code 2 when it is off, and with 0 when it is on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.adapters.operator_command import run
from supervisor.contract.boundaries import PowerSwitch
from supervisor.contract.errors import Refused

STATUS_ON, STATUS_OFF = 0, 2
LONGEST_S = 300.0
"""Its caller has less time for it."""
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


async def _run(device: FenceDevice, node: str, action: str) -> int:
    lines = [f"{name}={value}" for name, value in {**device.options_of(node), "action": action}.items()]
    try:
        # On standard input: the arguments of a process can be read by everybody on this machine.
        secret = await asyncio.to_thread(_text_of, device.options_file)
    except (OSError, ValueError) as error:
        raise Refused(f"it cannot be run: {error}") from error
    ended = await run(device.command, LONGEST_S, "\n".join((*lines, secret)).encode() + b"\n")
    return ended.code


def _text_of(path: str) -> str:
    return Path(path).read_text(encoding="utf-8") if path else ""
