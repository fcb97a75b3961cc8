"""Two jobs that share the GPUs of four nodes, while tasks, agents, nodes, leaders and GPUs fail.

Two promises more: a GPU is in one task at a time, or in those that agreed to share it, by the environments
that the processes were started with. Both jobs train again when all is healed and the operator has lifted the
quarantines.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine

from chaos.sim.cluster.programs import Temper
from chaos.sim.cluster.world import Layout, World
from chaos.sim.promises.checkers import Promises
from chaos.sim.run import Result, play, scratch
from chaos.sim.story import READY_S, SETTLE_S, Toothless
from chaos.sim.swarm import Length
from chaos.sim.trouble.schedule import GPU_KINDS, KINDS, Fault, apply, heal_all, schedule
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.job.spec import (
    CheckpointSpec,
    JobSpec,
    Packing,
    Resources,
    RestartPolicy,
    RoleSpec,
    Strategy,
)
from supervisor.contract.views.jobs import SubmitRequest
from supervisor.contract.views.nodes import CordonRequest, UncordonRequest
from supervisor.control.decide.snapshot import Snapshot
from supervisor.control.services.jobs import JobService

JOBS = ("digits", "letters")
NODES = 4
GPUS = 2
TABLE = {
    **{kind: weight for kind, weight in KINDS.items() if not kind.startswith("operator")},
    **GPU_KINDS,
    "operator_restart": 3,
    "operator_drain": 3,
    "operator_uncordon": 2,
}


def run_gpus(seed: int, script: tuple[Fault, ...] = (), length: Length = Length.FULL) -> Result:
    """Run one seed, with the schedule that it makes or the given one."""
    with scratch(seed) as root:
        world = World(seed, root, Layout(nodes=NODES, gpus=GPUS))
        promises = Promises(world)
        return play(world, promises, TwoJobs(world, promises, script, length).tell())


class TwoJobs:
    """The course of a run."""

    def __init__(self, world: World, promises: Promises, script: tuple[Fault, ...], length: Length) -> None:
        self._world = world
        self._promises = promises
        self._script = script
        self._length = length
        self._rng = random.Random(f"gpus {world.seed}")

    async def tell(self) -> None:
        """Perform the run; returns early at the first broken promise."""
        world = self._world
        world.start_all()
        await self._until("the GPUs of all nodes", self._all_told)
        for name in JOBS:
            await self._submit(self._spec(name))
        world.say("== both jobs are healthy; faults begin")
        began_s, length_s = world.loop.time(), self._rng.uniform(*self._length.span_s)
        drawn = schedule(self._rng, length_s, TABLE, most=self._length.most_faults)
        for fault in self._script or drawn:
            await asyncio.sleep(max(0.0, began_s + fault.at_s - world.loop.time()))
            if world.violations:
                return
            self._do(fault)
        await asyncio.sleep(max(0.0, began_s + length_s - world.loop.time()))
        heal_all(world)
        world.say("== everything is healed")
        await self._settle()

    async def _submit(self, spec: JobSpec) -> None:
        await self._ask(lambda service: service.submissions.submit(SubmitRequest(spec)))
        await self._until(f"{spec.name} to be healthy", lambda: self._promises.healthy(spec.name))

    def _spec(self, name: str) -> JobSpec:
        """One trains on whole GPUs; two tasks of the other share one where they meet, in some runs."""
        rng, first = self._rng, name == JOBS[0]
        gpus, share = (rng.choice((1, 2)), 1) if first else (1, rng.choice((1, 2)))
        needs = Resources(gpus=gpus, gpu_share=share)
        self._world.tempers[name] = Temper(saves_every=rng.choice((8, 15)), last_step=10**9)
        return JobSpec(
            name=name,
            strategy=rng.choice((Strategy.ASYNC, Strategy.SYNC)),
            roles=(
                RoleSpec("chief", 1, ("python", "train.py")),
                RoleSpec("ps", 1, ("python", "train.py")),
                RoleSpec("worker", 2, ("python", "train.py"), resources=needs),
            ),
            checkpoint=CheckpointSpec(f"file:///checkpoints/{name}", keep=3),
            workdir="/work",
            preload=("tensorflow",),
            restart=RestartPolicy(
                max_restarts=1_000, max_in_window=1_000, backoff_ms=200, backoff_max_ms=500
            ),
            packing=rng.choice((Packing.SPREAD, Packing.PACK)),
        )

    def _all_told(self) -> bool:
        snap = self._snapshot()
        return snap is not None and sum(node.gpus is not None for node in snap.nodes.values()) == NODES

    def _snapshot(self) -> Snapshot | None:
        seat = self._world.leader()
        return seat.control.job_service.snapshot() if seat is not None and seat.control is not None else None

    def _do(self, fault: Fault) -> None:
        if fault.kind.startswith("operator"):
            self._world.say(f"** {fault.kind}")
            self._world.loop.begin(None, self._operate(fault))
        else:
            apply(self._world, fault)

    async def _operate(self, fault: Fault) -> None:
        node = list(self._world.nodes)[fault.pick % NODES]
        match fault.kind:
            case "operator_restart":
                await self._ask(lambda service: service.restart(JOBS[fault.pick % 2]))
            case "operator_drain":
                await self._ask(lambda service: service.nodes.cordon(CordonRequest(node, drain=True)))
            case _:
                await self._uncordon(node)

    async def _ask(self, what: Callable[[JobService], Coroutine[object, object, object]]) -> None:
        """An operator's request; it may well fail, and then the operator is told."""
        seat = self._world.leader()
        if seat is None or seat.control is None:
            return
        try:
            answer = await self._world.call(seat, what(seat.control.job_service))
        except (TfSupervisorError, TimeoutError) as error:
            self._world.say(f"operator: {error!r}")
        else:
            self._world.say(f"operator: {answer}")

    async def _settle(self) -> None:
        """Both jobs train again, once the operator gives back what was taken out of service."""
        world = self._world
        healed_s = world.loop.time()
        why = "?"
        while why and world.loop.time() < healed_s + SETTLE_S and not world.violations:
            await asyncio.sleep(0.25)
            await self._give_back()
            why = "; ".join(filter(None, (self._promises.unsettled(name, healed_s) for name in JOBS)))
        if why and not world.violations:
            world.violate("liveness", f"{SETTLE_S:g} s after the last fault healed: {why}")
        for name in JOBS:
            self._promises.at_the_end(name)

    async def _give_back(self) -> None:
        snap = self._snapshot()
        if snap is None:
            return
        for held in snap.quarantines.values():
            if not held.value.lifted:
                await self._uncordon(held.value.node, held.value.uuid)
                return
        for node in snap.nodes.values():
            if node.cordon is not None and not node.cordon.value.incarnation:
                await self._uncordon(node.node)
                return

    async def _uncordon(self, node: str, gpu: str = "") -> None:
        await self._ask(lambda service: service.nodes.uncordon(UncordonRequest(node, gpu)))

    async def _until(self, what: str, done: Callable[[], bool]) -> None:
        end_s = self._world.loop.time() + READY_S
        while not done():
            if self._world.loop.time() > end_s:
                raise Toothless(f"waited {READY_S:g} s for {what}")
            if self._world.violations:
                raise Toothless("a promise was broken before the first fault")
            await asyncio.sleep(0.05)
