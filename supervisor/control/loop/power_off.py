"""Switches machines of suspected nodes off, and writes the device's word into the lost mark (rule 3)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from supervisor.contract.boundaries import Logger, PowerSwitch
from supervisor.contract.errors import Fenced, Refused
from supervisor.control.decide.plan import Action, PowerOff, put, unchanged
from supervisor.control.loop.apply import Applied, Applier

TRIES = 60
TRY_AGAIN_S = 0.2


class PowerOffs:
    """One leader's use of the fence devices. It tries each lost mark once: if that fails, D is waited for."""

    def __init__(self, devices: PowerSwitch, sink: Logger) -> None:
        self._devices = devices
        self._sink = sink
        self._tried: set[tuple[str, int]] = set()

    def is_due(self, wanted: PowerOff, disproved_wall_ms: int) -> bool:
        """Whether a device is to be asked now.

        `disproved_wall_ms`: when the node last turned out to be alive after its device had switched it off.
        """
        devices = self._devices
        return (
            wanted.suspected_ms >= devices.after_ms
            and _mark_of(wanted) not in self._tried
            and disproved_wall_ms <= devices.loaded_wall_ms
            and bool(devices.device(wanted.node, wanted.labels))
        )

    async def switch_off(self, applier: Applier, wanted: PowerOff) -> None:
        """Switch the machine off. The end of this supervisor's leadership is no error."""
        self._tried.add(_mark_of(wanted))
        try:
            await self._switch_off(applier, wanted)
        except Fenced as error:
            self._sink.warning(
                "a node was switched off; the next leader decides", node=wanted.node, why=str(error)
            )

    async def _switch_off(self, applier: Applier, wanted: PowerOff) -> None:
        node, device = wanted.node, self._devices.device(wanted.node, wanted.labels)
        # In etcd first, under the leader token and by the mark: a deposed leader switches nothing off.
        text = f"node {node} is switched off by {device}: it is suspected ({wanted.mark.value.reason})"
        told = await self._tell(applier, wanted, "power_off_begun", text)
        if told is not Applied.DONE:
            if told is not Applied.BROKEN:
                self._tried.discard(_mark_of(wanted))
            return
        try:
            await self._devices.switch_off(node, wanted.labels)
        except Refused as error:
            text = f"node {node} could not be switched off by {device}: {error}; D is waited for"
            await self._tell(applier, wanted, "power_off_failed", text)
            return
        mark = wanted.mark
        off = Action(
            kind="power_off_confirmed",
            job="",
            text=f"node {node} is off, as {device} confirms; its tasks are replaced now",
            # An agent that appealed just before it lost its power has not shown that its device lies.
            compares=(unchanged(mark), wanted.unappealed),
            ops=(put(mark.key, replace(mark.value, off=True)),),
            fields={"node": node, "incarnation": mark.value.incarnation, "device": device},
        )
        for _ in range(TRIES):
            if await applier.run(off) is not Applied.UNKNOWN:
                return
            await asyncio.sleep(TRY_AGAIN_S)

    async def _tell(self, applier: Applier, wanted: PowerOff, kind: str, text: str) -> Applied:
        """An event, if the mark is still what it was."""
        life = wanted.mark.value.incarnation
        fields = {"node": wanted.node, "incarnation": life}
        return await applier.run(Action(kind, "", text, (unchanged(wanted.mark),), (), fields))


def _mark_of(wanted: PowerOff) -> tuple[str, int]:
    return wanted.mark.key, wanted.mark.create_revision
