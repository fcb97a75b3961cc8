"""Switches machines of suspected nodes off, and writes the device's word into the lost mark (rule 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from supervisor.contract.boundaries import Compare, Logger, PowerSwitch
from supervisor.contract.errors import Fenced, Refused, Unreachable
from supervisor.control.decide.plan import Action, PowerOff, put
from supervisor.control.loop.apply import Applied, Applier

MOST_AT_ONCE = 8
TRIES = 60
TRY_AGAIN_S = 0.2

Mark = tuple[str, int]
"""A lost mark: its key, and the revision that created it."""


class PowerOffs:
    """A leader's use of the fence devices. Each lost mark gets one try. If it fails, D is waited for."""

    def __init__(self, devices: PowerSwitch, sink: Logger) -> None:
        self._devices = devices
        self._sink = sink
        self._asked: set[Mark] = set()
        self._running: dict[Mark, asyncio.Task[None]] = {}

    def look(self, applier: Applier, wanted: Sequence[PowerOff]) -> None:
        """Ask the devices of what is wanted now, and break off what is wanted no more.

        Raises an unexpected error that one of them has met.
        """
        now = {_mark_of(each) for each in wanted}
        for mark, task in list(self._running.items()):
            if task.done():
                del self._running[mark]
                if not task.cancelled():
                    task.result()
            elif mark not in now:
                task.cancel()
        for each in wanted:
            mark = _mark_of(each)
            if len(self._running) < MOST_AT_ONCE and mark not in self._asked and self._is_due(each):
                self._asked.add(mark)
                self._running[mark] = asyncio.create_task(self._switch_off(applier, each))

    def _is_due(self, wanted: PowerOff) -> bool:
        devices = self._devices
        old_enough = wanted.suspected_ms >= devices.after_ms and wanted.left_ms > 0
        return old_enough and bool(devices.device(wanted.node, wanted.labels))

    async def _switch_off(self, applier: Applier, wanted: PowerOff) -> None:
        """The end of this supervisor's leadership is no error."""
        node, device = wanted.node, self._devices.device(wanted.node, wanted.labels)
        try:
            await self._use(applier, wanted, device)
        except Fenced as error:
            text = "another supervisor leads; it decides about a node that was to be switched off"
            self._sink.warning(text, node=node, device=device, why=str(error))
        except asyncio.CancelledError:
            self._sink.warning("the request to a node's fence device is cancelled", node=node, device=device)
            raise

    async def _use(self, applier: Applier, wanted: PowerOff, device: str) -> None:
        node, reason = wanted.node, wanted.mark.value.reason
        # In etcd first, under the leader token and by the mark: a deposed leader switches nothing off.
        text = f"node {node} is switched off by {device}: it is suspected ({reason})"
        begun = await applier.run(_event(wanted, device, "power_off_begun", text, wanted.begins))
        if begun in (Applied.STALE, Applied.UNKNOWN):
            self._asked.discard(_mark_of(wanted))
        if begun is not Applied.DONE:
            return
        if why := await self._failure(wanted):
            text = f"node {node} could not be switched off by {device}: {why}; the leader waits for D"
            await applier.run(_event(wanted, device, "power_off_failed", text))
            return
        if await self._confirm(applier, wanted, device) is Applied.STALE:
            text = f"node {node} was switched off by {device}, but its lost mark had changed meanwhile"
            await applier.run(_event(wanted, device, "power_off_late", text))

    async def _failure(self, wanted: PowerOff) -> str:
        """Run the device. Returns why it has failed; empty if it has confirmed that the machine is off."""
        node, labels = wanted.node, wanted.labels
        try:
            async with asyncio.timeout(wanted.left_ms / 1000):
                await self._devices.switch_off(node, labels)
        except (Refused, Unreachable, TimeoutError) as error:
            return str(error) or "D was over before it ended"
        return ""

    async def _confirm(self, applier: Applier, wanted: PowerOff, device: str) -> Applied:
        mark = wanted.mark
        text = f"node {wanted.node} is off, as {device} confirms; its tasks are replaced now"
        # An agent that appealed just before it lost its power has not shown that its device lies.
        told = _event(wanted, device, "power_off_confirmed", text, wanted.counts)
        off = replace(told, ops=(put(mark.key, replace(mark.value, off=True)),))
        for _ in range(TRIES):
            applied = await applier.run(off)
            if applied is not Applied.UNKNOWN:
                return applied
            await asyncio.sleep(TRY_AGAIN_S)
        return Applied.UNKNOWN


def _mark_of(wanted: PowerOff) -> Mark:
    return wanted.mark.key, wanted.mark.create_revision


def _event(wanted: PowerOff, device: str, kind: str, text: str, compares: tuple[Compare, ...] = ()) -> Action:
    fields = {"node": wanted.node, "incarnation": wanted.mark.value.incarnation, "device": device}
    return Action(kind, "", text, compares, (), fields)
