"""The settings of one agent from its configuration, as plain values."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from supervisor.contract.observed import NodeResources
from supervisor.contract.timing import Timing


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """The settings of the watch over a node's GPUs.

    Attributes:
        library: the path of `libnvidia-ml.so.1`; empty: the loader's.
        only: indices and UUIDs of the GPUs that this agent may give to tasks; None: all.
        poll_ms: interval of looks at values without events.
        patience_ms: time of silence after which the GPUs are unknown.
        kernel_log: a second source of XIDs; empty for none.
    """

    library: str = ""
    poll_ms: int = 500
    patience_ms: int = 800
    kernel_log: str = "/dev/kmsg"
    only: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """One agent's identity and limits.

    Attributes:
        host: the address at which other tasks reach this node's tasks.
        address: the address at which others reach the agent's own API (logs).
        port_low, port_high: the range, inclusive, for its tasks' ports.
        lock_dir: the port locks that all agents of the machine share.
        spare_launchers: idle preloaded launchers to keep for each running job.
        nvml: the NVML library for tasks under this machine's own Python; empty for the loader's.
        firewall: whether a task waits for its start until exactly its ports are open to it.
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

    @property
    def apart_ms(self) -> int:
        """How much longer than others this agent waits before it watches etcd again.

        When a member of etcd fails, the watches of all agents break at the same moment. Half of a request's
        deadline spreads them, and is short beside D, after which silence counts as etcd lost (rule 3.4).
        """
        return zlib.crc32(self.node.encode()) % (self.timing.rpc_deadline_ms // 2)
