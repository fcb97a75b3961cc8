"""The course of a run: the cluster comes up, a job is healthy, trouble, calm, and the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from chaos.sim.cluster.world import World
from chaos.sim.jobs import FIRST, LATE, SECOND, another_job, first_job
from chaos.sim.promises.checkers import Promises
from chaos.sim.swarm import Length, Shape
from chaos.sim.traits import Draft
from chaos.sim.trouble.aimed import Aim
from chaos.sim.trouble.fault import FATAL, SCRIPTED, Fault
from chaos.sim.trouble.flaws import Flaw
from chaos.sim.trouble.operator import Operator
from chaos.sim.trouble.schedule import apply, heal_all, schedule

READY_S = 20.0
SETTLE_S = 45.0
RECALL_S = 45.0
UNREAD_S = 30.0
"""An evaluator whose output shows no steps uses its whole grace when training is over."""
PAUSED, MOST_PAUSES = 0.15, 3
"""The share of seeds without a script in which operators pause the cluster or a job, and how often."""
SHIPS = 0.5
"""The share of seeds whose job ships its program."""


class Toothless(Exception):
    """The run proves nothing: the job was never healthy before the faults."""


class Story:
    """Told once. `schedule`: all faults, whether or not they are left out; `traits`: those of its jobs."""

    def __init__(
        self,
        world: World,
        promises: Promises,
        shape: Shape,
        script: tuple[Fault, ...] | None = None,
        only: Sequence[int] | None = None,
        aim: Aim | None = None,
        flaw: Flaw | None = None,
        deletions: int = 0,
    ) -> None:
        self._world = world
        self._promises = promises
        self._rng = random.Random(f"story {world.seed}")
        self._only = only
        self.aim = aim
        self._flaw = flaw
        self.operator = Operator(world, promises, self._rng)
        kinds = {fault.kind for fault in script or ()}
        shape = replace(shape, watched=shape.watched or not kinds.isdisjoint(SCRIPTED))
        world.watched = shape.watched
        self._jobs = [first_job(self._rng, world.seed, shape, fatal=FATAL in kinds)]
        if shape.second:
            self._jobs.append(another_job(self._rng, world.seed, shape, SECOND))
        late = another_job(random.Random(f"late {world.seed}"), world.seed, shape, LATE)
        self.operator.late, world.tempers[LATE] = late.spec, late.temper
        self.traits = tuple(trait for draft in self._jobs for trait in draft.traits)
        self._length_s = shape.pace * self._rng.uniform(*shape.length.span_s)
        most = shape.length.most_faults
        drawn = schedule(self._rng, self._length_s, shape.table, pace=shape.pace, most=most)
        self.schedule = drawn if script is None else script
        if deletions:
            rng = random.Random(f"deletions {world.seed}")
            more = [
                Fault(rng.uniform(0, self._length_s), "operator_delete", rng.randrange(1000), 0.0)
                for _ in range(deletions)
            ]
            self.schedule = tuple(sorted((*self.schedule, *more), key=lambda fault: fault.at_s))
        self.schedule = tuple(
            sorted((*self.schedule, *_pauses(world, script, self._length_s)), key=lambda fault: fault.at_s)
        )
        self._families = shape.families
        self._gpus, self._length = shape.gpus, shape.length
        unread_s = UNREAD_S if any(draft.temper.mute for draft in self._jobs) else 0.0
        self._settle_s = SETTLE_S * shape.pace + shape.promise_s + unread_s

    async def tell(self) -> None:
        """Perform the run; returns early at the first broken promise."""
        world = self._world
        if self._families:
            world.say(f"== families: {', '.join(self._families)}; profile {world.timing.profile}")
        world.start_all()
        await self._until("a leader and nodes", self._cluster_up)
        if random.Random(f"code {world.seed}").random() < SHIPS:
            first = self._jobs[0]
            shipped = replace(first.spec, code=await self.operator.ship(FIRST))
            self._jobs[0] = replace(first, spec=shipped)
        if self._length is Length.LONG:
            # No job comes for it: there is time for it to be removed.
            await self.operator.ship("nobody")
        for draft in self._jobs:
            await self._begin(draft)
        world.say("== healthy; faults begin")
        # Before, nobody asks again where a daemon dies.
        world.reached.clear()
        world.aim = self.aim
        world.flaw = self._flaw
        if self._flaw is not None:
            self._flaw.armed = True
        began_s = world.loop.time()
        for number, fault in enumerate(self.schedule, 1):
            if self._only is not None and number not in self._only:
                continue
            await self._wait_until(began_s + fault.at_s)
            if world.violations:
                return
            self._do(number, fault)
        await self._wait_until(began_s + self._length_s)
        if self._flaw is not None:
            self._flaw.armed = False
        heal_all(world)
        world.say("== everything is healed")
        await self._settle()

    async def _begin(self, draft: Draft) -> None:
        job = draft.spec.name
        if draft.traits:
            self._world.say(f"== {job}: {', '.join(draft.traits)}")
        self._world.tempers[job] = draft.temper
        await self.operator.submit(draft.spec)
        await self._until(f"{job} to be healthy", lambda: self._promises.healthy(job))

    def _cluster_up(self) -> bool:
        snap = self.operator.snapshot()
        if snap is None or len(snap.nodes) != len(self._world.nodes):
            return False
        return not self._gpus or all(node.gpus is not None for node in snap.nodes.values())

    def _do(self, number: int, fault: Fault) -> None:
        self._world.say(f"** fault {number}")
        if fault.kind.startswith("operator"):
            self._world.loop.begin(None, self.operator.act(fault))
        else:
            apply(self._world, fault)

    async def _settle(self) -> None:
        """Trouble is over: whatever it was, the cluster comes to where it has to be, and stays there."""
        world = self._world
        healed_s = world.loop.time()
        bound_s = self._settle_s
        if self._promises.lost_any:
            # A rebuild waits for what the lost etcd has vouched for, and every job begins again.
            bound_s += RECALL_S * world.pace + 2 * world.vows.promise_s
        why = "?"
        while why and world.loop.time() < healed_s + bound_s and not world.violations:
            await asyncio.sleep(0.25)
            await self.operator.repair()
            found = [self._promises.unsettled(job, healed_s) for job in self.operator.jobs]
            found.append("an import is under way" if self.operator.importing else "")
            found.append("lost jobs are being taken up" if self.operator.recalling else "")
            why = "; ".join(filter(None, found))
        if world.violations:
            return
        if why:
            world.violate("liveness", f"{bound_s:g} s after the last fault healed: {why}")
            return
        world.say(f"== settled {world.loop.time() - healed_s:.1f} s after the last fault")
        if self._rng.random() < 0.5:
            await self._stop_for_good()
        for job in self.operator.jobs:
            self._promises.at_the_end(job)

    async def _stop_for_good(self) -> None:
        world, promises = self._world, self._promises
        began_s = world.loop.time()
        bound_s = self._settle_s
        why = "?"
        while why and world.loop.time() < began_s + bound_s and not world.violations:
            for job in self.operator.jobs:
                if not promises.stopping(job):
                    await self.operator.stop(job)
            await asyncio.sleep(0.5)
            why = "; ".join(filter(None, (promises.left_behind(job) for job in self.operator.jobs)))
        if why:
            world.violate("nothing is left behind", f"{bound_s:g} s after the stop: {why}")
        else:
            world.say(f"== stopped, nothing is left behind after {world.loop.time() - began_s:.1f} s")

    async def _wait_until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self._world.loop.time()))

    async def _until(self, what: str, done: Callable[[], bool]) -> None:
        bound_s = READY_S * self._world.pace
        end_s = self._world.loop.time() + bound_s
        while not done():
            if self._world.loop.time() > end_s:
                raise Toothless(f"waited {bound_s:g} s for {what}")
            if self._world.violations:
                raise Toothless("a promise was broken before the first fault")
            await asyncio.sleep(0.05)


def _pauses(world: World, script: Sequence[Fault] | None, length_s: float) -> list[Fault]:
    """Pauses, each of which ends by itself, or when all is healed."""
    rng = random.Random(f"pauses {world.seed}")
    if script is not None or rng.random() >= PAUSED:
        return []
    found = []
    for _ in range(rng.randint(1, MOST_PAUSES)):
        at_s, pick = rng.uniform(0, length_s), rng.randrange(1000)
        found.append(Fault(at_s, "operator_pause", pick, 0.0))
        found.append(Fault(rng.uniform(at_s, length_s), "operator_go_on", pick, 0.0))
    return found
