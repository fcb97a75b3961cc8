"""Runs decisions: one transaction each, under the leader token. A stale one is refused, and that is fine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum

from recovery.collect import delete_checkpoint
from supervisor.adapters.failpoints import effect
from supervisor.contract import keys
from supervisor.contract.boundaries import (
    CheckpointStore,
    Clock,
    Coordination,
    Delete,
    Get,
    ModifiedAt,
    Op,
    Sink,
)
from supervisor.contract.desired import LeaderToken
from supervisor.contract.errors import (
    CoordinationFull,
    CoordinationUnreachable,
    Fenced,
    TfSupervisorError,
    Unreachable,
)
from supervisor.contract.incident import Event
from supervisor.contract.promise import Taking
from supervisor.control.incidents import KEPT_EVENTS
from supervisor.control.plan import MAX_FIELD, Action, DeleteFiles, put, short


class Applied(Enum):
    """What became of an action. UNKNOWN: etcd did not answer, so it may have happened."""

    DONE = "done"
    STALE = "stale"
    UNKNOWN = "unknown"


class Applier:
    """One leader's hands, for as long as it holds `token`."""

    def __init__(
        self,
        token: LeaderToken,
        coordination: Coordination,
        open_store: Callable[[str], CheckpointStore],
        clock: Clock,
        sink: Sink,
        first_event: int,
        may_take: Callable[[Taking], Awaitable[bool]] | None = None,
    ) -> None:
        self._token = token
        self._coordination = coordination
        self._open_store = open_store
        self._clock = clock
        self._sink = sink
        self._next_event = first_event
        self._may_take = may_take
        self._deleting: set[str] = set()
        self.revision = 0
        """The newest revision that one of our transactions made: decide again only once the mirror has it."""

    async def run(self, action: Action) -> Applied:
        """Run one action. Raises Fenced when another supervisor leads."""
        taking, may_take = action.taking, self._may_take
        if taking is not None and may_take is not None and not await may_take(taking):
            return Applied.STALE
        ops = [*action.ops, *self.event(action)]
        compares = [self._token.compare(), *action.compares]
        try:
            with effect(f"leader.{action.kind}", CoordinationUnreachable):
                result = await self._coordination.txn(compares, ops, [Get(self._token.key)])
        except (Unreachable, CoordinationFull) as error:
            self._sink.warning("etcd did not answer; looking again before anything else", what=action.kind)
            self._sink.debug("unanswered", error=str(error))
            return Applied.UNKNOWN
        if result.succeeded:
            self.revision = max(self.revision, result.revision)
            if action.text:
                self._sink.info(
                    action.text,
                    what=action.kind,
                    job=action.job,
                    leader_token=self._token.create_revision,
                    **action.fields,
                )
            return Applied.DONE
        holder = result.reads[0]
        if not holder or holder[0].create_revision != self._token.create_revision:
            raise Fenced(f"leader token {self._token.create_revision} is no longer in force")
        self._sink.debug("the picture had changed", what=action.kind, job=action.job)
        return Applied.STALE

    def is_deleting(self, key: str) -> bool:
        """Whether the files of this record are being deleted now."""
        return key in self._deleting

    async def delete_files(self, decision: DeleteFiles) -> None:
        """Delete a collected checkpoint, files first. Safe to repeat."""
        self._deleting.add(decision.key)
        try:
            await delete_checkpoint(self._open_store(decision.uri), decision.record)
            with effect("leader.forget_checkpoint", CoordinationUnreachable):
                await self._coordination.txn(
                    [self._token.compare(), ModifiedAt(decision.key, decision.mod_revision)],
                    [Delete(decision.key)],
                )
        except TfSupervisorError as error:
            self._sink.warning(
                "a collected checkpoint could not be deleted; it is tried again",
                job=decision.job,
                path=decision.record.path,
                error=str(error),
            )
            await asyncio.sleep(1)
        finally:
            self._deleting.discard(decision.key)

    def event(self, action: Action) -> tuple[Op, ...]:
        """What tells operators of an action, for its transaction; nothing for one without a text."""
        if not action.text:
            return ()
        serial = self._next_event
        self._next_event += 1
        fields = {name: short(value, MAX_FIELD) for name, value in action.fields.items()}
        event = Event(self._clock.wall_ms(), action.kind, action.job, short(action.text), fields)
        return (put(keys.event(serial), event), Delete(keys.event(max(0, serial - KEPT_EVENTS))))
