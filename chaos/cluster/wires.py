"""Links that are slow: long ones, by a program between two interfaces, and narrow ones, by the kernel."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import re
import socket
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from chaos.cluster.control import ask
from chaos.cluster.enter import ip_in, run_in
from chaos.cluster.program import REPOSITORY
from chaos.machine import kernel

BRIDGE = "bridge"
_SIOCETHTOOL = 0x8946
_OFFLOADS = (0x17, 0x1F, 0x24)
"""ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO."""
_BURST_BYTES = 2000
"""One frame goes at once, the next one waits."""
_CLOSED_PORT = 9


@dataclass(frozen=True, slots=True)
class Delay:
    """Each way, each packet takes `ms` longer, and up to `jitter_ms` more at random, which reorders them."""

    ms: float
    jitter_ms: float
    seed: int
    spared: tuple[str, ...]


def lengthen(machine: int, root: Path, name: str, link: str, delay: Delay) -> None:
    """Put a long wire between a node's link, on the machine's side, and the bridge."""
    near, far = _ends(name)
    ip_in(
        machine,
        f"link add {near} type veth peer name {far}",
        f"link set {link} nomaster",
        f"link set {near} up",
        f"link set {far} master {BRIDGE} up",
    )
    # What the wire reads must be whole frames with their checksums, not what hardware would still do to them.
    whole_frames(machine, far)
    argv = (sys.executable, "-S", "-m", "chaos.machine.wire", link, near)
    numbers = (str(delay.ms), str(delay.jitter_ms), str(delay.seed))
    log = str(root / f"wire-{name}.log")
    command = [*argv, *numbers, *delay.spared]
    ask(
        root / "machine.sock",
        do="start",
        name=f"wire-{name}",
        argv=command,
        env={},
        cwd=str(REPOSITORY),
        log=log,
    )


def shorten(machine: int, root: Path, name: str, link: str | None) -> None:
    """Take the wire out again; `link` is None when the node has lost it meanwhile."""
    ask(root / "machine.sock", do="kill", name=f"wire-{name}", signal=9, stay=True)
    near, _ = _ends(name)
    ip_in(machine, f"link delete {near}")
    if link is not None:
        ip_in(machine, f"link set {link} master {BRIDGE}")


def whole_frames(pid: int, interface: str) -> None:
    """Turn the interface's offloads off: its packets are whole frames with checksums."""
    with kernel.network_of(pid), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        for command in _OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(value))
            fcntl.ioctl(handle, _SIOCETHTOOL, request)


def narrow(pid: int, interface: str, bytes_s: int) -> None:
    """Limit the interface to `bytes_s` bytes a second, outwards; 0 lifts the limit."""
    if bytes_s == 0:
        run_in(pid, "net", "tc", "qdisc", "del", "dev", interface, "root")
        return
    bound = ("rate", f"{bytes_s}bps", "burst", str(_BURST_BYTES), "latency", "400ms")
    run_in(pid, "net", "tc", "qdisc", "replace", "dev", interface, "root", "tbf", *bound)


def held_up(pid: int, interface: str) -> int:
    """The number of packets that waited for `narrow`, or were lost to it, since it was set."""
    said = run_in(pid, "net", "tc", "-s", "qdisc", "show", "dev", interface)
    return sum(int(match[1]) for match in re.finditer(r"overlimits (\d+)", said))


def round_trip_ms(pid: int, address: str, timeout_s: float) -> float | None:
    """The time until `address` refuses a connection from the network of `pid`; None: it does not."""
    with kernel.network_of(pid):
        probe = socket.socket()
    with probe:
        probe.settimeout(timeout_s)
        begin = time.monotonic()
        try:
            code = probe.connect_ex((address, _CLOSED_PORT))
        except TimeoutError:
            return None
        return (time.monotonic() - begin) * 1000 if code == errno.ECONNREFUSED else None


def _ends(name: str) -> tuple[str, str]:
    return f"w{name}", f"b{name}"
