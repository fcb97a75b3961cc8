"""What one agent is told by its configuration, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.contract.observed import NodeResources
from supervisor.contract.timing import Timing


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """How the GPUs of a node are watched.

    Attributes:
        library: another `libnvidia-ml.so.1` than the loader would find.
        poll_ms: how often what has no events is looked at.
        patience_ms: NVML silent for so long: its GPUs are unknown.
        kernel_log: where XIDs are read beside; empty for nowhere.
    """

    library: str = ""
    poll_ms: int = 500
    patience_ms: int = 800
    kernel_log: str = "/dev/kmsg"


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """One agent's identity and limits.

    Attributes:
        host: the address that other tasks reach this node's tasks at.
        address: where the agent's own API (logs) listens, as others reach it.
        port_low, port_high: the range, inclusive, for its tasks' ports.
        lock_dir: the port locks that all agents of the machine share.
        spare_launchers: idle preloaded launchers to keep for each running job.
        nvml: the library that tasks of this machine's own Python ask for their GPUs; empty for the loader's.
        firewall: whether tasks start once the ports that they need are open to them, and no others.
    """

    node: str
    host: str
    address: str
    port_low: int
    port_high: int
    lock_dir: str
    timing: Timing
    resources: NodeResources
    spare_launchers: int = 1
    pid: int = 0
    release: str = ""
    directory: str = ""
    nvml: str = ""
    firewall: bool = False
