"""The agent's state file on a simulated machine's disk, which may be full or go back in time."""

from __future__ import annotations

import asyncio
import random

from agent.core.saved.record import AgentRecord, Saved
from chaos.sim.cluster.loop import PROCESS
from chaos.sim.cluster.machine import Machine
from supervisor.contract.errors import Refused


class SimStateFile:
    """`StateFile`: it survives the agent and the machine's boot."""

    def __init__(self, machine: Machine, rng: random.Random) -> None:
        self._machine = machine
        self._rng = rng

    def read(self) -> AgentRecord | None:
        """The record that the last process left; None without one."""
        return self._machine.state_file

    def saved(self) -> Saved | None:
        """The number of the last save, kept apart from the disk until a reboot; None without one."""
        return self._machine.saved

    async def save(self, record: AgentRecord) -> None:
        """Replace the record: a crash leaves the old one or the new one."""
        process = PROCESS.get()
        if process is not None and not process.alive:
            # It was killed in the middle of a step that went on to here.
            await asyncio.Event().wait()
        if self._machine.disk_full:
            raise Refused("no space left on device")
        await asyncio.sleep(self._rng.uniform(0.0001, 0.001))
        await asyncio.to_thread(self._write, record)
        await asyncio.sleep(self._rng.uniform(0.0, 0.0005))
        self._machine.saved = Saved(record.incarnation, record.serial, record.origin)

    def _write(self, record: AgentRecord) -> None:
        self._machine.state_file = record
        self._machine.records.append(record)
