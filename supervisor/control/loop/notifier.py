"""Tells a target of events: each at least once, in order, over changes of leader.

How far a target has been told is a record in etcd. The leader writes it after each message, and the next
leader goes on from there. A message that was sent and not noted is sent again, under the same id. Each target
has a notifier of its own, so that one that hangs holds up no other, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from supervisor.contract import codec, keys
from supervisor.contract.boundaries import Coordination, Logger
from supervisor.contract.containment import contained, told
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.incident import Event, Notified, Topic
from supervisor.control.decide import notifications
from supervisor.control.decide.plan import Action, put
from supervisor.control.decide.snapshot import Snapshot, Versioned

LOOK_S, LATER_S = 0.5, 5.0
"""Pauses between looks for new events, and after one that met an error."""
SEND_S = 15.0
"""The time for one try."""
TRIES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, *(60.0,) * 14)
"""The pauses between the tries of one message: a quarter of an hour in all."""
_NOTED = "notified"


class Messenger(Protocol):
    """A way to a target."""

    async def send(self, message: bytes, identity: str) -> None:
        """Deliver a message. Raises an error of our tree if the target has not taken it.

        No error contains a secret.
        """


@dataclass(frozen=True, slots=True)
class Target:
    """A target of notifications.

    Attributes:
        topics: what it is told of.
        named_only: of jobs, it is told only of those whose file names it.
    """

    name: str
    topics: frozenset[Topic]
    messenger: Messenger
    named_only: bool = False

    def wants(self, snap: Snapshot, event: Event) -> bool:
        """Whether it is to be told of an event."""
        if notifications.topic_of(event) not in self.topics:
            return False
        return not (event.job and self.named_only) or self.name in notifications.named(snap, event.job)


class Notifier:
    """Tells one target while this supervisor leads.

    Args:
        coordination: the etcd of the cluster.
        snapshot: the present snapshot; None while this supervisor does not lead.
        tell: writes records under the leader token, and the event that tells of them.
        tries_s: the pauses between the tries of one message, after which it is given up.
        look_s: the pause between two looks for new events.
    """

    def __init__(
        self,
        target: Target,
        coordination: Coordination,
        snapshot: Callable[[], Snapshot | None],
        tell: Callable[[Action], Awaitable[None]],
        sink: Logger,
        tries_s: Sequence[float] = TRIES_S,
        look_s: float = LOOK_S,
    ) -> None:
        self._target = target
        self._key = keys.notified(target.name)
        self._coordination = coordination
        self._snapshot = snapshot
        self._tell = tell
        self._sink = sink
        self._tries_s = tries_s
        self._look_s = look_s
        self._token = 0
        self._at = 0
        """The revision of the last event that was dealt with."""
        self._over = 0, ""
        """That of the last one that was sent, or given up and why; it may not be noted yet."""

    async def run(self) -> NoReturn:
        """Tell the target, until cancelled. An error ends one look."""
        while True:
            errors: list[Exception] = []
            with contained(errors.append):
                await self.look()
            for error in errors:
                why = str(error) if isinstance(error, TfSupervisorError) else told(error)
                self._sink.warning("a target is not told for now", target=self._target.name, reason=why)
            await asyncio.sleep(LATER_S if errors else self._look_s)

    async def look(self) -> None:
        """Tell what there is to tell."""
        snap = self._snapshot()
        if snap is None or snap.cluster is None:
            return
        if self._token != snap.token.create_revision:
            await self._begin(snap)
        for held in notifications.after(snap, self._at):
            if self._target.wants(snap, held.value) and not await self._deliver(snap, held):
                return
            self._at = held.mod_revision

    async def _begin(self, snap: Snapshot) -> None:
        """Read how far a former leader has come. A new target is told of what comes from now on."""
        found = await self._coordination.get(self._key)
        at = codec.decode(Notified, found.value).revision if found is not None else snap.revision
        if found is None:
            await self._note(at)
        self._token, self._at = snap.token.create_revision, at

    async def _deliver(self, snap: Snapshot, held: Versioned[Event]) -> bool:
        """Send one message, and note that. False if this supervisor leads no more."""
        assert snap.cluster is not None
        cluster = snap.cluster.value
        identity = notifications.identity(cluster.uuid, held)
        if self._over[0] != held.mod_revision:
            why = await self._try(notifications.message(cluster, held), identity)
            if why is None:
                return False
            self._over = held.mod_revision, why
        if why := self._over[1]:
            text = f"{self._target.name} was not told of event {identity} ({held.value.kind}): {why}"
            fields = {"target": self._target.name, "event": identity, "why": why}
            await self._note(held.mod_revision, notifications.FAILED, text, fields)
        else:
            await self._note(held.mod_revision)
        return True

    async def _note(
        self, revision: int, kind: str = _NOTED, text: str = "", fields: dict[str, str] | None = None
    ) -> None:
        noted = put(self._key, Notified(self._target.name, revision))
        await self._tell(Action(kind, "", text, (), (noted,), fields or {}))

    async def _try(self, message: bytes, identity: str) -> str | None:
        """Send until it is taken; empty then. Why it was given up; None if this supervisor leads no more."""
        why = ""
        for pause_s in (0.0, *self._tries_s):
            if why:
                self._sink.info("a target has not taken a message", target=self._target.name, reason=why)
            await asyncio.sleep(pause_s)
            snap = self._snapshot()
            if snap is None or snap.token.create_revision != self._token:
                return None
            try:
                async with asyncio.timeout(SEND_S):
                    await self._target.messenger.send(message, identity)
                return ""
            except TimeoutError:
                why = f"it has not answered in {SEND_S:g} s"
            except TfSupervisorError as error:
                why = str(error)
        return f"{why}, in {len(self._tries_s) + 1} tries"


class Notifiers:
    """A notifier for each target. Other targets may take the place of these at any time.

    Args:
        make: makes the notifier of a target.
    """

    def __init__(self, make: Callable[[Target], Notifier]) -> None:
        self._make = make
        self._targets: tuple[Target, ...] = ()
        self._changed = asyncio.Event()

    def load(self, targets: Sequence[Target]) -> None:
        """Replace the targets. One that is equal to a former one goes on: a try of it is not broken off.

        What another former one has not taken comes from its successor of the same name.
        """
        self._targets = tuple(targets)
        self._changed.set()

    async def run(self) -> NoReturn:
        """Tell all targets, until cancelled."""
        work: list[tuple[Target, asyncio.Task[NoReturn]]] = []
        try:
            while True:
                self._changed.clear()
                wanted = self._targets
                gone = [task for target, task in work if target not in wanted]
                work = [(target, task) for target, task in work if task not in gone]
                await _end(gone)
                known = [target for target, _ in work]
                work += [
                    (each, asyncio.create_task(self._make(each).run()))
                    for each in wanted
                    if each not in known
                ]
                await self._changed.wait()
        finally:
            await _end([task for _, task in work])


async def _end(tasks: Sequence[asyncio.Task[NoReturn]]) -> None:
    """End notifiers. Two of one target would send each message twice, so their ends are waited for."""
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
