"""A supervisor's daemon whose loop does not run, so that a test takes its steps one by one."""

from __future__ import annotations

from dataclasses import dataclass, field

from recovery.stores.memory import MemoryCheckpointStore
from supervisor.adapters.etcd.memory import MemoryCoordination, MemoryStore
from supervisor.contract.timing import FAST
from supervisor.control.loop.daemon import ControlDaemon, ControlSettings
from tests.support.clocks import ManualClock
from tests.support.sinks import ListSink


@dataclass
class Supervisor:
    """A daemon whose loop does not run."""

    clock: ManualClock = field(default_factory=ManualClock)

    def daemon(self) -> ControlDaemon:
        return ControlDaemon(
            ControlSettings("s0", "c", "unix:/s0", 1, FAST),
            MemoryCoordination(MemoryStore()),
            lambda _uri: MemoryCheckpointStore(),
            self.clock,
            ListSink(),
            lambda: "id",
        )
