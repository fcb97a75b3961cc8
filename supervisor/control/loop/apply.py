"""Runs the decisions of `reconcile`: one transaction each, under the leader token. A stale one is refused.

The requests of operators are written by `control.services.context`, shipped code by
`control.services.code_uploads`, under the same token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from enum import Enum

from recovery.retention.collect import delete_checkpoint
from supervisor.adapters.failpoints import effect
from supervisor.contract import keys
from supervisor.contract.boundaries import (
    CheckpointStore,
    Clock,
    Coordination,
    Delete,
    Get,
    Logger,
    ModifiedAt,
    Op,
    Put,
)
from supervisor.contract.containment import contained, told
from supervisor.contract.desired import LeaderToken
from supervisor.contract.errors import (
    CoordinationFull,
    CoordinationUnreachable,
    Fenced,
    InvariantBroken,
    TfSupervisorError,
    Unreachable,
)
from supervisor.contract.incident import Event
from supervisor.contract.promise import Taking
from supervisor.control.decide.jobs.incidents import KEPT_EVENTS
from supervisor.control.decide.jobs.prepare import PREPARE
from supervisor.control.decide.plan import MAX_FIELD, Action, DeleteFiles, put, short

CLAIMING_MS = 200
"""The time in which one look makes claims, one after the other; the rest waits for the next look."""

TELLS = 60
"""Attempts, a second apart, to make an event of a checkpoint that stays."""


class Applied(Enum):
    """The outcome of an action. UNKNOWN: etcd did not answer, so it may have happened. BROKEN: an unexpected
    error was met before it was sent, or in the answer.
    """

    DONE = "done"
    STALE = "stale"
    UNKNOWN = "unknown"
    BROKEN = "broken"


class Applier:
    """One leader's hands, for as long as it holds `token`."""

    def __init__(
        self,
        token: LeaderToken,
        coordination: Coordination,
        open_store: Callable[[str], CheckpointStore],
        clock: Clock,
        sink: Logger,
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
        self._left: set[str] = set()
        """Keys of collected checkpoints that met an unexpected error; this leader tries them no more."""
        self._claimed_at = 0
        self.broken: list[tuple[Action, Exception]] = []
        """Actions that met an unexpected error, for the one who asked for them to take."""
        self.revision = 0
        """The newest revision that one of our transactions made: decide again only once the mirror has it."""

    async def run_all(self, actions: Sequence[Action]) -> list[Applied]:
        """Run the actions of one look: in turn those that make claims, all others at once.

        Returns what became of those that were sent. Raises Fenced when another supervisor leads.
        """
        others = asyncio.gather(*(self.run(action) for action in actions if not _claims(action)))
        in_turn = self._run_in_turn([action for action in actions if _claims(action)])
        done, claimed = await asyncio.gather(others, in_turn)
        return [*done, *claimed]

    async def _run_in_turn(self, actions: Sequence[Action]) -> list[Applied]:
        """Each was decided on in the knowledge of those before it, so that it is sent only after them, and
        compares the claims as the last of them has left them.

        A stale plan in preparation has claimed nothing: those behind it count on less room than there is, and
        are sent. After any other that was not done none is sent: a task that did not move has left no room.
        """
        outcomes: list[Applied] = []
        until_ms = self._clock.now_ms() + CLAIMING_MS
        for action in actions:
            if outcomes and self._clock.now_ms() > until_ms:
                break
            made = Applied.DONE in outcomes
            outcomes.append(await self.run(_after(action, self._claimed_at) if made else action))
            if outcomes[-1] is not Applied.DONE and (outcomes[-1], action.kind) != (Applied.STALE, PREPARE):
                break
        return outcomes

    async def run(self, action: Action) -> Applied:
        """Run one action. Raises Fenced when another supervisor leads, and other errors of our tree."""

        def tell(error: Exception) -> None:
            if isinstance(error, TfSupervisorError) and not isinstance(error, InvariantBroken):
                raise error
            self.broken.append((action, error))

        with contained(tell):
            return await self._run(action)
        return Applied.BROKEN

    async def _run(self, action: Action) -> Applied:
        taking, may_take = action.taking, self._may_take
        if taking is not None and may_take is not None and not await may_take(taking):
            return Applied.STALE
        ops = [*action.ops, *self.event(action)]
        compares = [self._token.compare(), *action.compares]
        try:
            with effect(f"leader.{action.kind}", CoordinationUnreachable):
                result = await self._coordination.txn(compares, ops, [Get(self._token.key)])
        except (Unreachable, CoordinationFull) as error:
            why = "is full" if isinstance(error, CoordinationFull) else "did not answer"
            self._sink.warning(f"etcd {why}; looking again before anything else", what=action.kind)
            self._sink.debug("unanswered", error=str(error))
            return Applied.UNKNOWN
        if result.succeeded:
            self.revision = max(self.revision, result.revision)
            if _claims(action):
                self._claimed_at = result.revision
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
        self._sink.debug("an action was refused: a record had changed", what=action.kind, job=action.job)
        return Applied.STALE

    def is_deleting(self, key: str) -> bool:
        """Whether the files of this record are being deleted now, or are left alone after an error."""
        return key in self._deleting or key in self._left

    async def delete_files(self, decision: DeleteFiles) -> None:
        """Delete a collected checkpoint, files first. Safe to repeat.

        One that meets an unexpected error stays in its state, in which nothing starts from it. The next
        leader tries it once more. That another supervisor leads meanwhile is no error.
        """
        errors: list[Exception] = []
        self._deleting.add(decision.key)
        try:
            with contained(errors.append):
                await self._delete_files(decision)
            if errors:
                self._left.add(decision.key)
                with contained(errors.append):
                    await self._tell_of_deletion(decision, errors[0])
        finally:
            self._deleting.discard(decision.key)
        for error in errors[1:]:
            self._sink.warning(
                "cannot write the event about a checkpoint that stays in its store", error=told(error)
            )

    async def _tell_of_deletion(self, decision: DeleteFiles, error: Exception) -> None:
        text = (
            f"collected checkpoint {decision.record.ref} stays in the store: the supervisor met an error of "
            f"its own in its deletion ({told(error)})"
        )
        self._sink.error(text, job=decision.job)
        fields = {"checkpoint": str(decision.record.ref), "error": told(error)}
        action = Action("checkpoint_parked", decision.job, text, (), (), fields)
        for _ in range(TELLS):
            if await self._run(action) is not Applied.UNKNOWN:
                return
            await asyncio.sleep(1)

    async def _delete_files(self, decision: DeleteFiles) -> None:
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

    def event(self, action: Action) -> tuple[Op, ...]:
        """The operations that add an action's event to its transaction; empty for one without a text."""
        if not action.text:
            return ()
        serial = self._next_event
        self._next_event += 1
        fields = {name: short(value, MAX_FIELD) for name, value in action.fields.items()}
        event = Event(self._clock.wall_ms(), action.kind, action.job, short(action.text), fields)
        return (put(keys.event(serial), event), Delete(keys.event(max(0, serial - KEPT_EVENTS))))


def _claims(action: Action) -> bool:
    """Whether it rewrites the record of claims."""
    return any(isinstance(op, Put) and op.key == keys.CLAIMS for op in action.ops)


def _after(action: Action, revision: int) -> Action:
    """An action that compares the claims as a transaction of this revision has left them."""
    compares = [compare for compare in action.compares if compare.key != keys.CLAIMS]
    return replace(action, compares=(*compares, ModifiedAt(keys.CLAIMS, revision)))
