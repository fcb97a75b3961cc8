"""Looks after etcd: compacts it, defragments what is quickly done, ends the alarm NOSPACE, tells operators.

A compaction compares no leader token. It needs none: it changes no value, and a revision that two leaders in
a row forget is old enough for both. An etcd that is full grants no lease, so that a supervisor may be unable
to lead. Then each of them does what makes room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from supervisor.contract import keys
from supervisor.contract.boundaries import Clock, Coordination, Logger
from supervisor.contract.containment import contained, told
from supervisor.contract.desired import LeaderRecord
from supervisor.contract.errors import Compacted, Refused, TfSupervisorError, Unreachable
from supervisor.contract.etcd_member import EtcdMaintenance, EtcdMember
from supervisor.control.decide import etcd_space
from supervisor.control.decide.etcd_space import Care, SpaceSettings
from supervisor.control.decide.plan import Action

MOST_EVENTS = 20


class EtcdCare:
    """One supervisor's care. `lines` is what operators must know of etcd now, `members` what it saw last.

    Args:
        maintenance: etcd's members.
        coordination: the etcd of the cluster.
        settings: what is configured.
        leads: whether this supervisor leads now.
        leader: the leader that it knows of.
        tell: writes an event, while this supervisor leads.
    """

    def __init__(
        self,
        maintenance: EtcdMaintenance,
        coordination: Coordination,
        settings: SpaceSettings,
        *,
        leads: Callable[[], bool],
        leader: Callable[[], LeaderRecord | None],
        tell: Callable[[Action], Awaitable[None]],
        clock: Clock,
        sink: Logger,
    ) -> None:
        self._maintenance = maintenance
        self._coordination = coordination
        self._settings = settings
        self._leads = leads
        self._leader = leader
        self._tell = tell
        self._clock = clock
        self._sink = sink
        self._past = etcd_space.begin(clock.now_ms())
        self._events: list[Action] = []
        self._said = ""
        self.lines: tuple[str, ...] = ()
        self.members: Sequence[EtcdMember] = ()

    async def run(self) -> NoReturn:
        """Look now and then, until cancelled. An unexpected error ends one look."""

        def failed(error: Exception) -> None:
            self._sink.error("an unexpected error while etcd was looked after", error=told(error))

        while True:
            with contained(failed):
                await self.look()
            await asyncio.sleep(etcd_space.LOOK_MS / 1000)

    async def look(self) -> None:
        """Look once, and do what is due."""
        members = self.members = await self._maintenance.members()
        self._say_refused(members)
        leads = self._leads()
        acts = leads or (self._leader() is None and any(each.full for each in members))
        now_ms = self._clock.now_ms()
        self._past, care = etcd_space.look(self._past, members, self._settings, now_ms, acts=acts)
        self.lines = care.lines
        if acts:
            self._events = [*self._events, *care.events][-MOST_EVENTS:]
            await self._act(care)
        if leads:
            await self._write_events()
        elif self._leader() is not None:
            self._events.clear()

    async def _act(self, care: Care) -> None:
        if care.compact:
            await self._compact(care.compact)
        if care.check:
            await self._check(care.check)
        if care.defragment is not None:
            await self._defragment(care.defragment)
        if care.disarm:
            try:
                await self._maintenance.disarm()
                self._past = replace(self._past, may_disarm=True)
                self._sink.info("etcd's alarm NOSPACE is ended; it comes back if there is no room")
            except TfSupervisorError as error:
                self._past = replace(self._past, may_disarm=not isinstance(error, Refused))
                self._sink.warning("the alarm NOSPACE of etcd cannot be ended", reason=str(error))

    async def _compact(self, revision: int) -> None:
        try:
            await self._maintenance.compact(revision)
            self._past = replace(self._past, may_compact=True, endless=False)
            self._sink.debug("etcd is compacted", revision=revision)
        except Refused as error:
            if self._past.may_compact:
                text = "etcd does not let this supervisor compact it; its own periodic compaction must do so"
                self._sink.info(text, reason=str(error))
            self._past = replace(self._past, may_compact=False)
        except Unreachable as error:
            self._past = replace(self._past, compacted=0)
            self._sink.warning("etcd cannot be compacted now; trying again", reason=str(error))

    async def _check(self, revision: int) -> None:
        """Whether etcd has forgotten this old revision, or would keep all."""
        try:
            await self._coordination.get_at(keys.LEADER, revision)
            self._past = replace(self._past, endless=True)
        except Compacted:
            self._past = replace(self._past, endless=False)
        except TfSupervisorError as error:
            self._sink.debug("cannot see whether etcd's history is compacted", reason=str(error))

    async def _defragment(self, member: EtcdMember) -> None:
        began_ms = self._clock.now_ms()
        try:
            await self._maintenance.defragment(member.endpoint)
        except TfSupervisorError as error:
            text = "a member of etcd is not defragmented; `supervisorctl etcd defrag` does it"
            self._sink.warning(text, member=member.endpoint, reason=str(error))
            return
        finally:
            took_ms = self._clock.now_ms() - began_ms
            if took_ms > etcd_space.SLOW_MS:
                self._past = replace(self._past, slow=self._past.slow | {member.member_id})
        text = f"etcd's member {member.endpoint} is defragmented: its database had grown to "
        text += f"{member.file_bytes >> 20} MiB, and held {member.used_bytes >> 20} MiB ({took_ms} ms)"
        self._sink.info(text)
        fields = {"member": member.endpoint, "took_ms": str(took_ms)}
        self._events.append(Action("etcd_defragmented", "", text, (), (), fields))

    async def _write_events(self) -> None:
        """Write what operators must know. An etcd that is full takes it when it has room."""
        while self._events:
            try:
                await self._tell(self._events[0])
            except TfSupervisorError as error:
                self._sink.warning("an event about etcd cannot be written yet", reason=str(error))
                return
            del self._events[0]

    def _say_refused(self, members: Sequence[EtcdMember]) -> None:
        why = next((each.problem for each in members if each.refused), "")
        if why and why != self._said:
            text = "etcd does not show its size to this supervisor: nobody is told when it fills"
            self._sink.warning(text, reason=why, see="docs/etcd-care.md")
        self._said = why
