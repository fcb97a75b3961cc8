"""Rule 11: answers agents that etcd does not answer, and keeps this supervisor's promises on disk.

A decision of `promises` is in memory at once, so that no contrary decision is made while the disk is awaited.
It is on disk before an answer or a transaction goes out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from supervisor.contract.boundaries import Clock, Logger
from supervisor.contract.containment import Tell
from supervisor.contract.errors import Refused
from supervisor.contract.promise import PromiseAnswer, PromiseRequest, Taking, Word
from supervisor.control.decide.facts import promises
from supervisor.control.decide.snapshot import Snapshot

MAX_NODES = 10_000
MAX_LIVES = 64
"""Incarnations of one node whose releases are remembered."""


class WordFile(Protocol):
    """The file in which a supervisor's promises outlive it."""

    def boot_id(self) -> str:
        """Changes whenever the machine boots."""

    def read(self) -> Word | None:
        """The promises that an earlier process left; None without a readable file. Raises Refused."""

    async def save(self, word: Word) -> None:
        """Replace it; durable when this returns. Raises Refused."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of promises: who gives them, and for how long. 0 ms: no supervisor gives any.

    `supervisors`: all that may ever lead, this one among them.
    """

    promise_ms: int = 0
    supervisors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The functions of the daemon that its promiser calls.

    Attributes:
        etcd_answers: whether a linearizable read succeeds now.
        marked: whether a lost mark is known for a life of a node, or one that it acts for.
    """

    etcd_answers: Callable[[], Awaitable[bool]]
    marked: Callable[[str, str], bool]


class Promiser:
    """One supervisor's promises. Without a file, or with promises off and none left, it does nothing."""

    def __init__(
        self,
        supervisor: str,
        terms: Terms,
        d_ms: int,
        file: WordFile | None,
        clock: Clock,
        sink: Logger,
    ) -> None:
        self.terms = terms
        self._supervisor = supervisor
        self._file = file
        self._clock = clock
        self._sink = sink
        self._d_ms = d_ms
        self._word = Word("")
        self._changes = 0
        self._on_disk = 0
        self._saving = asyncio.Lock()
        self._released: dict[str, dict[str, int]] = {}
        """Node -> incarnation -> the number of its last released promise."""
        self._probe: asyncio.Task[bool] | None = None

    @property
    def word(self) -> Word:
        """This supervisor's promises and takings as of now."""
        return self._word

    def _change(self, word: Word) -> None:
        if word != self._word:
            self._word = word
            self._changes += 1

    def open(self) -> None:
        """Load the promises of an earlier process. Raises Refused."""
        if self._file is None:
            return
        found = self._file.read()
        if found is None and not self.terms.promise_ms:
            return
        silence_ms = self.terms.promise_ms + self._d_ms
        self._change(promises.begin(found, self._file.boot_id(), self._clock.now_ms(), silence_ms))
        left_ms = self.word.silent_until_ms - self._clock.now_ms()
        if left_ms > 0:
            why = "no file of promises was found" if found is None else "this machine has booted since"
            self._sink.warning(
                "this supervisor declares no node lost for a while", reason=why, for_ms=left_ms
            )

    @property
    def concerned(self) -> bool:
        """Whether there is anything to keep to."""
        return self.terms.promise_ms > 0 or bool(self.word.boot_id)

    @property
    def unsettled(self) -> bool:
        """Whether what etcd shows may end something."""
        return bool(self.word.takings or self.word.promises or self.word.blind)

    def first_of_all(self) -> None:
        """This supervisor has just written the cluster's first record: nobody was ever promised anything."""
        if self.word.boot_id:
            self._change(Word(self.word.boot_id))

    async def answer(self, request: PromiseRequest, around: Surroundings) -> PromiseAnswer:
        """Promise, once it is on disk, or say why not."""
        if self.terms.promise_ms and await self._etcd_answers(around):
            return promises.refusal(self._supervisor, request, "etcd answers this supervisor")
        now_ms, promise_ms = self._clock.now_ms(), self.terms.promise_ms
        released = self._released.get(request.node, {}).get(request.incarnation, 0)
        marked = around.marked(request.node, request.incarnation)
        before = self.word
        after, refused = promises.consider(
            before, request, now_ms, promise_ms, marked=marked, released=released
        )
        if refused:
            return promises.refusal(self._supervisor, request, refused)
        self._change(after)
        if not any(each.node == request.node for each in before.promises.values()):
            self._sink.warning(
                "etcd does not answer; promised a node to leave its tasks alone",
                node=request.node,
                incarnation=request.incarnation,
                for_ms=promise_ms,
            )
        try:
            await self._save()
        except Refused as error:
            return promises.refusal(self._supervisor, request, str(error))
        return PromiseAnswer(self._supervisor, request.serial, promise_ms)

    async def _etcd_answers(self, around: Surroundings) -> bool:
        """One look at a time, however many agents ask."""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.ensure_future(around.etcd_answers())
        return await asyncio.shield(self._probe)

    def released(self, node: str, incarnation: str, asked: int, released: int) -> None:
        """A beat of a node's life: up to which serial it has given up what it was promised."""
        if not asked:
            return
        lives = self._released.pop(node, {})
        lives[incarnation] = max(released, lives.pop(incarnation, 0))
        if len(lives) > MAX_LIVES:
            del lives[next(iter(lives))]
        self._released[node] = lives
        if len(self._released) > MAX_NODES:
            del self._released[next(iter(self._released))]
        mine = promises.life_of(node, incarnation)
        known = self.word.promises.get(mine)
        self._change(promises.release(self.word, node, incarnation, released))
        if known is not None and mine not in self.word.promises:
            self._sink.info("a node no longer needs its promise: etcd answers it", node=known.node)

    async def take(self, snap: Snapshot, taking: Taking) -> bool:
        """Note that tasks are about to be taken away; False: that has become impossible, look again."""
        if not self.concerned:
            return True
        word = promises.take(snap, self.word, taking, self._clock.now_ms())
        if word is None:
            return False
        self._change(word)
        try:
            await self._save()
        except Refused as error:
            self._sink.error(
                "cannot write the file of promises: tasks of lost nodes are not replaced yet",
                reason=str(error),
            )
            return False
        return True

    def settle(self, snap: Snapshot, tell: Tell, *, earlier_leads: bool) -> None:
        """Look at etcd for what is over.

        Args:
            snap: a snapshot under the token that is in force, whoever holds it.
            tell: is given a job and the unexpected error that was met about it.
            earlier_leads: it may be held by an earlier life of this supervisor, whose transactions count.
        """
        blind = self.word.blind and earlier_leads
        self._change(replace(promises.settle(snap, self.word, tell), blind=blind))

    def in_force(self) -> dict[str, int]:
        """The nodes that are promised to be left alone, each with the milliseconds that are left."""
        now_ms = self._clock.now_ms()
        left = {each.node: each.until_ms - now_ms for each in self.word.promises.values()}
        return {node: ms for node, ms in left.items() if ms > 0}

    def told(self) -> str:
        """The promises in force, in words; empty without any."""
        left = self.in_force()
        if not left:
            return ""
        nodes = "1 node is" if len(left) == 1 else f"{len(left)} nodes are"
        least_s = min(left.values()) // 1000
        return (
            f"etcd has not answered, and {nodes} promised to be left alone, for {least_s} s "
            "more if they do not ask again: their tasks run on"
        )

    async def _save(self) -> None:
        """Returns when the disk has the present word, or a later one. One write serves all who wait."""
        wanted = self._changes
        async with self._saving:
            if self._file is None or self._on_disk >= wanted:
                return
            changes = self._changes
            await self._file.save(self.word)
            self._on_disk = changes
