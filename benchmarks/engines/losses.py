"""A worker, the parameter server or a node is lost: when does the job train again, by itself or resubmitted?

The stopwatch is the program's own step log, for every tool the same.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

from benchmarks.support.figures import figures, row
from benchmarks.support.quiet import Quiet
from benchmarks.support.subjects import IN_FLIGHT_NS, until
from examples.demo.steplog import StepLog
from examples.demo.watch import TRAINERS, PromiseBroken

WORKER, PS, NODE = "worker", "ps", "node"
LOST = (WORKER, PS, NODE)
VICTIM = {WORKER: "worker:1", PS: "ps:0", NODE: "worker:1"}
"""A lost node is the one that runs this task, whatever else it runs."""
INTERRUPTED = "interrupted: the figures are of what was measured until now"
READY_S = 240.0
HEALED_S = 180.0
SETTLE_S = 6.0


class Tool(Protocol):
    """A job in the hands of a tool."""

    step_log: StepLog

    def settled(self) -> bool:
        """Whether nothing is being recovered, as far as the tool knows."""

    def ended(self) -> bool:
        """Whether the tool has given the job up."""

    def pid_of(self, task: str) -> int:
        """The process of a task now."""

    def tasks_with(self, task: str) -> Sequence[str]:
        """All tasks on the node of this one."""

    async def lose_node(self, task: str) -> int:
        """SIGKILL all of the node that runs this task. Returns when, on CLOCK_MONOTONIC."""

    async def node_back(self) -> None:
        """The node that was lost is there again."""

    def resubmit(self) -> bool:
        """End what is left of the job and submit it anew, as its user would; False where that is no use."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One loss.

    `ms` is to the first new step of the lost trainers, or of any where it was the parameter server; `all_ms`
    until every trainer has stepped again. `by_itself` is false where the job was resubmitted; both times then
    begin at that moment, as if a user had known at once.
    """

    ms: float
    all_ms: float
    by_itself: bool
    lost: tuple[str, ...]


@dataclass(slots=True)
class Losses:
    """The measured times, by the kind of the loss."""

    of: dict[str, list[Loss]] = field(default_factory=dict)
    never_by_itself: dict[str, float] = field(default_factory=dict)
    """Seconds that were waited in vain for a tool to do something itself."""

    def median_ms(self, what: str) -> float | None:
        """To the first step, whether by itself or by a user who knows at once."""
        found = figures([each.ms for each in self.of.get(what, ())])
        return None if found is None else found.p50

    def report(self) -> dict[str, object]:
        """For JSON."""
        return {
            what: {
                "first_step_ms": row([each.ms for each in found]),
                "all_step_ms": row([each.all_ms for each in found]),
                "by_itself": all(each.by_itself for each in found),
                "not_by_itself_within_s": self.never_by_itself.get(what),
                "tasks_lost": sorted({" ".join(each.lost) for each in found}),
            }
            for what, found in self.of.items()
        }


@dataclass(slots=True)
class Watcher:
    """Makes losses and times them. It stops when `until_s` (time.monotonic) has passed."""

    tool: Tool
    name: str
    losses: Losses
    quiet: Quiet
    patience_s: float
    until_s: float

    async def lose(self, plan: Mapping[str, int]) -> None:
        """Lose each thing so many times, in turn. Raises PromiseBroken when the job does not train again."""
        turns = [what for turn in range(max(plan.values())) for what, many in plan.items() if turn < many]
        for what in turns:
            if time.monotonic() > self.until_s:
                say(f"{self.name}: no time for more")
                return
            loss = await self._one(what)
            self.losses.of.setdefault(what, []).append(loss)
            how = "" if loss.by_itself else " after it was submitted again"
            say(f"{self.name}, {what} lost: first step {loss.ms:.0f} ms{how}, all {loss.all_ms:.0f} ms")

    async def _one(self, what: str) -> Loss:
        tool, log, task = self.tool, self.tool.step_log, VICTIM[what]
        await under_load(tool)
        await self.quiet.wait()
        log.read()
        before = log.processes()
        lost = tuple(tool.tasks_with(task)) if what == NODE else (task,)
        if what == NODE:
            began_ns = await tool.lose_node(task)
        else:
            pid, began_ns = tool.pid_of(task), time.monotonic_ns()
            os.kill(pid, signal.SIGKILL)
        by_itself = what not in self.losses.never_by_itself
        if by_itself:
            by_itself = await self._healed(lost, began_ns, before, self.patience_s)
            if not by_itself:
                waited_s = round((time.monotonic_ns() - began_ns) / 1e9, 1)
                say(f"{self.name}, {what} lost: nothing within {waited_s:g} s")
                self.losses.never_by_itself[what] = waited_s
        if not by_itself:
            began_ns = time.monotonic_ns()
            if not tool.resubmit():
                raise PromiseBroken(f"the job does not train again after the loss of {what}")
            if not await self._healed(lost, began_ns, before, HEALED_S):
                raise PromiseBroken(f"not seen within {HEALED_S:g} s: steps after the loss of {what}")
        # A process that still steps may be one that the tool is about to replace.
        healed_ns = time.monotonic_ns()
        await until(log, lambda: all_step(log, healed_ns), f"all step after the loss of {what}", HEALED_S)
        times = times_of(log, lost, began_ns, before)
        if what == NODE:
            await tool.node_back()
        assert times is not None
        return Loss(*times, by_itself, lost)

    async def _healed(
        self, lost: Collection[str], began_ns: int, before: frozenset[int], within_s: float
    ) -> bool:
        log = self.tool.step_log
        try:
            await until(
                log,
                lambda: self.tool.ended() or times_of(log, lost, began_ns, before),
                "steps",
                within_s,
            )
        except PromiseBroken:
            return False
        return not self.tool.ended()


async def under_load(tool: Tool) -> None:
    """Wait until every trainer steps, and SETTLE_S more, in which a save and spare launchers get ready."""
    log = tool.step_log

    def trains(since_ns: int) -> bool:
        if tool.ended():
            raise PromiseBroken("the job has ended")
        return tool.settled() and all_step(log, since_ns)

    since_ns = time.monotonic_ns()
    await until(log, lambda: trains(since_ns), "every trainer steps", READY_S)
    settled_ns = time.monotonic_ns() + round(SETTLE_S * 1e9)
    await until(log, lambda: trains(settled_ns), f"every trainer steps {SETTLE_S:g} s later", READY_S)


def all_step(log: StepLog, since_ns: int) -> bool:
    """Whether every trainer has made a step since then."""
    return all(log.first_after(since_ns, trainer) is not None for trainer in TRAINERS)


def times_of(
    log: StepLog, lost: Collection[str], began_ns: int, before: Collection[int]
) -> tuple[float, float] | None:
    """To the first step and until all have stepped, in ms; None before that.

    A trainer that is lost, or has a new process, steps again with the first step of a new one. Any other may
    still write a step that was under way.
    """
    found: dict[str, float] = {}
    for trainer in TRAINERS:
        step = log.first_after(began_ns, trainer, not_of=before)
        if step is None and trainer not in lost:
            step = log.first_after(began_ns + IN_FLIGHT_NS, trainer)
        if step is None:
            return None
        found[trainer] = (step.ns - began_ns) / 1e6
    own = [found[trainer] for trainer in TRAINERS if trainer in lost]
    return max(own) if own else min(found.values()), max(found.values())


def times_faster(ours: Losses, theirs: Losses) -> dict[str, float | None]:
    """By the medians to the first step."""
    faster: dict[str, float | None] = {}
    for what in LOST:
        own, other = ours.median_ms(what), theirs.median_ms(what)
        faster[what] = None if not own or other is None else round(other / own, 1)
    return faster


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def rows(losses: Losses) -> list[dict[str, object]]:
    """Every single loss, for JSON."""
    return [{"what": what, **asdict(each)} for what, found in losses.of.items() for each in found]
