"""The leader's state and its fenced writes: all that services of operators' requests know of the leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from supervisor.adapters.caller import CALLER
from supervisor.adapters.failpoints import effect
from supervisor.contract.boundaries import Clock, Compare, Coordination, Op
from supervisor.contract.errors import Conflict, CoordinationUnreachable, Unreachable, nothing_named
from supervisor.control.decide.plan import Action
from supervisor.control.decide.snapshot import JobState, Snapshot

SEEN_MS = 5_000
SEEN_LOOK_S = 0.02


class LeaderContext:
    """Each method raises Unreachable while this supervisor does not lead.

    Args:
        snapshot: the present one; None while this supervisor does not lead.
        event: the operations that add the event of an action.
    """

    def __init__(
        self,
        coordination: Coordination,
        clock: Clock,
        snapshot: Callable[[], Snapshot | None],
        event: Callable[[Action], tuple[Op, ...]] = lambda _action: (),
    ) -> None:
        self._coordination = coordination
        self._clock = clock
        self._snapshot = snapshot
        self._event = event

    def leading(self) -> Snapshot:
        """The present snapshot."""
        snap = self._snapshot()
        if snap is None:
            raise Unreachable("this supervisor does not lead")
        return snap

    def job(self, name: str) -> JobState:
        """One job. Raises NotFound, and Conflict for one that is set aside."""
        snap = self.leading()
        check_not_aside(snap, name)
        picture = snap.jobs.get(name)
        if picture is None:
            raise nothing_named("job", name, snap.jobs)
        return picture

    async def ask(self, job: str, text: str, compares: list[Compare], ops: list[Op]) -> None:
        """Write what was asked of a job, with an event that tells of it. Raises as `run` does."""
        await self.run(Action("asked", job, text, tuple(compares), tuple(ops)))

    async def run(self, action: Action) -> None:
        """One transaction under the leader token, with the event that tells of it.

        Raises Conflict when a compare fails.
        """
        token = self.leading().token
        action = _by_caller(action)
        ops = [*action.ops, *self._event(action)]
        with effect(f"service.{action.kind}", CoordinationUnreachable):
            result = await self._coordination.txn([token.compare(), *action.compares], ops)
        if not result.succeeded:
            node = action.fields.get("node", "")
            what = f"job {action.job}" if action.job else f"node {node}" if node else "the cluster's pause"
            raise Conflict(f"{what} changed at the same moment; see `supervisorctl status`, then try again")
        await self._seen(result.revision)

    async def _seen(self, revision: int) -> None:
        """Wait, for a while, until this leader's own snapshot has what was written: the next to ask finds it.

        The snapshot follows etcd by a watch, which on a loaded machine is late.
        """
        until_ms = self._clock.now_ms() + SEEN_MS
        while self._clock.now_ms() < until_ms:
            snap = self._snapshot()
            if snap is None or snap.revision >= revision:
                return
            await asyncio.sleep(SEEN_LOOK_S)


def _by_caller(action: Action) -> Action:
    """The same, and its event names who asked for it."""
    caller = CALLER.get()
    if caller is None:
        return action
    return replace(action, text=f"{action.text} (by {caller})", fields={**action.fields, "by": str(caller)})


def check_not_aside(snap: Snapshot, name: str) -> None:
    """Raise Conflict if a job of this name is set aside."""
    if name in snap.aside:
        raise Conflict(f"job {name} is set aside: {snap.aside[name].why}")
