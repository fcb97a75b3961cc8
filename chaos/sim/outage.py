"""Etcd gone for long while supervisors promise (rule 11), with trouble of every other kind around it.

A calm run has nothing but outages: no task may end in it, and steps go on while etcd is away. In the others
what is promised besides is what always is: no two generations take effect, whoever has promised what.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

from chaos.sim.cluster.programs import Temper
from chaos.sim.cluster.seat import Seat
from chaos.sim.cluster.world import Layout, World
from chaos.sim.promises.checkers import Promises
from chaos.sim.run import Result, play, scratch
from chaos.sim.story import READY_S, SETTLE_S, Toothless
from chaos.sim.swarm import Length
from chaos.sim.trouble.schedule import KINDS, Fault, apply, heal_all, schedule
from supervisor.contract.errors import TfSupervisorError
from supervisor.contract.job.spec import CheckpointSpec, JobSpec, RestartPolicy, RoleSpec, Strategy
from supervisor.contract.views.jobs import SubmitRequest

JOB = "digits"
CALM = 4
"""Every so many-th seed is a calm one."""
PROMISE_S = (12.0, 20.0, 40.0)
STEPPED_S = 4.0
LATE_S = 1.0
OWN_KINDS: dict[str, int] = {
    "outage_down": 12,
    "outage_freeze": 8,
    "sup_kill": 4,
    "sup_down": 4,
    "sup_freeze": 3,
    "sup_reboot": 3,
    "sup_disk": 3,
    "sup_cut": 4,
    "sup_late": 3,
}
TABLE = {
    **{kind: weight for kind, weight in KINDS.items() if not kind.startswith(("supervisor", "operator"))},
    **OWN_KINDS,
    "operator_restart": 4,
}


def run_outage(seed: int, script: tuple[Fault, ...] = (), length: Length = Length.FULL) -> Result:
    """Run one seed, with the schedule that it makes or the given one."""
    with scratch(seed) as root:
        promise_s = random.Random(f"vows {seed}").choice(PROMISE_S)
        world = World(seed, root, Layout(supervisors=3, nodes=4, promise_s=promise_s))
        promises = Promises(world)
        result = play(world, promises, Outage(world, promises, script, length).tell())
        return replace(result, facts={**result.facts, "promises given": world.vows.count})


class Outage:
    """The course of a run."""

    def __init__(self, world: World, promises: Promises, script: tuple[Fault, ...], length: Length) -> None:
        self._world = world
        self._promises = promises
        self._length = length
        self._rng = random.Random(f"outage {world.seed}")
        self._calm = not script and world.seed % CALM == 0
        self._script = script or (self._outages() if self._calm else self._trouble())

    def _outages(self) -> tuple[Fault, ...]:
        rng = self._rng
        kinds = [rng.choice(("outage_down", "outage_freeze")) for _ in range(rng.choice((1, 1, 2)))]
        at_s, faults = 0.5, []
        for kind in kinds:
            for_s = rng.choice((rng.uniform(5.0, 15.0), rng.uniform(20.0, 60.0)))
            faults.append(Fault(at_s, kind, 0, for_s))
            at_s += for_s + rng.uniform(2.0, 6.0)
        return tuple(faults)

    def _trouble(self) -> tuple[Fault, ...]:
        """Around one outage, or more."""
        rng = self._rng
        first = Fault(rng.uniform(0.5, 4.0), "outage_down", rng.randrange(1000), rng.uniform(4.0, 25.0))
        rest = schedule(rng, rng.uniform(10.0, 35.0), TABLE, most=self._length.most_faults)
        return tuple(sorted((first, *rest), key=lambda fault: fault.at_s))

    async def tell(self) -> None:
        """Perform the run; returns early at the first broken promise."""
        world = self._world
        world.start_all()
        await self._until("all nodes", self._cluster_up)
        await self._ask_leader(JOB)
        await self._until("the job to be healthy", lambda: self._promises.healthy(JOB))
        world.say(f"== the job is healthy; V is {world.vows.promise_s:g} s; faults begin")
        began_s = world.loop.time()
        for fault in self._script:
            await asyncio.sleep(max(0.0, began_s + fault.at_s - world.loop.time()))
            if world.violations:
                return
            self._do(fault)
        end_s = max(fault.at_s + (fault.for_s if self._calm else 2.0) for fault in self._script)
        if self._calm:
            await self._watch_calm(began_s + end_s)
        await asyncio.sleep(max(0.0, began_s + end_s - world.loop.time()))
        heal_all(world)
        world.weather.cut_from_supervisors.clear()
        world.say("== everything is healed")
        await self._settle()

    def _spec(self) -> JobSpec:
        rng = self._rng
        self._world.tempers[JOB] = Temper(saves_every=rng.choice((8, 15)), last_step=10**9)
        roles = [
            RoleSpec("chief", 1, ("python", "train.py")),
            RoleSpec("ps", 1, ("python", "train.py")),
            RoleSpec("worker", rng.choice((1, 2)), ("python", "train.py")),
        ]
        return JobSpec(
            name=JOB,
            strategy=rng.choice((Strategy.ASYNC, Strategy.SYNC)),
            roles=tuple(roles),
            checkpoint=CheckpointSpec("file:///checkpoints/digits", keep=3),
            workdir="/work",
            preload=("tensorflow",),
            restart=RestartPolicy(
                max_restarts=1_000, max_in_window=1_000, backoff_ms=200, backoff_max_ms=500
            ),
        )

    async def _watch_calm(self, until_s: float) -> None:
        """Check while only etcd is gone: every task lives and steps, all the time."""
        world = self._world
        while world.loop.time() < until_s and not world.violations:
            await asyncio.sleep(0.5)
            for program in world.training.programs:
                if program.row.gone or program.row.doomed:
                    world.violate("training goes on without etcd", f"{program.attempt} has ended")
                stepped_s = program.steps[-1][0] if program.steps else 0.0
                if program.trains and world.loop.time() - stepped_s > STEPPED_S:
                    world.violate("training goes on without etcd", f"{program.attempt} does not step")

    def _do(self, fault: Fault) -> None:
        group = fault.kind.split("_")[0]
        if fault.kind == "operator_restart":
            self._world.say(f"** {fault.kind}")
            self._world.loop.begin(None, self._ask_leader(""))
        elif group == "outage":
            self._world.say(f"** {fault.kind} for {fault.for_s:.2f} s")
            self._lose_etcd(fault)
        elif group == "sup":
            seat = self._world.supervisors[fault.pick % len(self._world.supervisors)]
            self._world.say(f"** {fault.kind} {seat.name} for {fault.for_s:.2f} s")
            self._hurt(fault, seat)
        else:
            apply(self._world, fault)

    def _lose_etcd(self, fault: Fault) -> None:
        etcd = self._world.etcd
        if not etcd.answering:
            return
        if fault.kind == "outage_down":
            etcd.down()
            self._later(fault, lambda: None if etcd.answering else etcd.up())
        else:
            etcd.freeze()
            self._later(fault, lambda: None if etcd.answering else etcd.thaw())

    def _hurt(self, fault: Fault, seat: Seat) -> None:
        world = self._world
        match fault.kind:
            case "sup_freeze":
                process = seat.process
                if process is not None and process.alive:
                    world.freeze(seat)
                    self._later(fault, lambda: world.thaw(seat) if seat.process is process else None)
            case "sup_cut":
                world.cut(seat, etcd=False)
                self._later(fault, lambda: world.heal(seat))
            case "sup_late":
                # The answers of all: each promise is older when it arrives.
                world.weather.word_lag_s = LATE_S
                self._later(fault, lambda: setattr(world.weather, "word_lag_s", 0.0))
            case "sup_kill":
                world.kill(seat)
            case _:
                seat.kept = False
                world.kill(seat)
                if fault.kind == "sup_disk":
                    world.vows.disks[seat.name].word = None
                elif fault.kind == "sup_reboot":
                    world.vows.reboot(seat)
                self._later(fault, lambda: self._bring_back(seat))

    def _bring_back(self, seat: Seat) -> None:
        seat.kept = True
        if not seat.running:
            self._world.restart_soon(seat)

    def _later(self, fault: Fault, undo: Callable[[], None]) -> None:
        self._world.loop.post(None, fault.for_s, undo)

    async def _ask_leader(self, submit: str) -> None:
        """Submit the job, or (empty) restart it; that may well fail, and then the operator is told."""
        world, seat = self._world, self._world.leader()
        if seat is None or seat.control is None:
            return
        service = seat.control.job_service
        work = service.submissions.submit(SubmitRequest(self._spec())) if submit else service.restart(JOB)
        try:
            world.say(f"operator: {await world.call(seat, work)}")
        except (TfSupervisorError, TimeoutError) as error:
            world.say(f"operator: {error!r}")

    def _cluster_up(self) -> bool:
        seat = self._world.leader()
        snap = seat.control.job_service.snapshot() if seat is not None and seat.control is not None else None
        return snap is not None and len(snap.nodes) == len(self._world.nodes)

    async def _settle(self) -> None:
        """Wait until the job is healthy again; promises to nodes that are lost, or were forgotten, must end
        first.
        """
        world = self._world
        healed_s, why = world.loop.time(), "?"
        most_s = SETTLE_S + world.vows.promise_s + world.timing.d_ms / 1000
        while why and world.loop.time() < healed_s + most_s and not world.violations:
            await asyncio.sleep(0.25)
            why = self._promises.unsettled(JOB, healed_s)
        if why and not world.violations:
            world.violate("liveness", f"{most_s:g} s after the last fault healed: {why}")
        if self._calm and not world.violations and self._promises.facts().get("flips", 0) > 1:
            world.violate("training goes on without etcd", "the job was restarted")
        self._promises.at_the_end(JOB)

    async def _until(self, what: str, done: Callable[[], bool]) -> None:
        end_s = self._world.loop.time() + READY_S
        while not done():
            if self._world.loop.time() > end_s:
                raise Toothless(f"waited {READY_S:g} s for {what}")
            if self._world.violations:
                raise Toothless("a promise was broken before the first fault")
            await asyncio.sleep(0.05)
