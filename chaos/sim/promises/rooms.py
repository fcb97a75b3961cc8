"""The promise about room: no node is overcommitted, at any instant.

A machine is charged for the resources that its processes were started with, and for prepared tasks. Of each
job only the generation with the largest share counts: the next one takes over the resources of the present
one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chaos.sim.cluster.etcd import Effect
from chaos.sim.cluster.machine import Machine
from chaos.sim.cluster.programs import Program
from chaos.sim.promises.evidence import Evidence
from supervisor.contract import keys

PROMISE = "no node is overcommitted"
_SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a machine that a generation of a job asks for."""

    cpus: float = 0.0
    memory_bytes: int = 0


class Rooms:
    """Looks whenever a plan is made and a program starts."""

    def __init__(self, seen: Evidence) -> None:
        self._seen = seen
        self._world = seen.world
        self._picture = seen.picture

    def on_program(self, what: str, program: Program) -> None:
        """Something happened to a program."""
        if what == "started":
            self._check(program.machine)

    def on_effect(self, effect: Effect) -> None:
        """A write has taken effect, and is in the picture."""
        if any(key.startswith("plans/") for key in effect.puts):
            for seat in self._world.nodes.values():
                assert seat.machine is not None
                self._check(seat.machine)

    def _check(self, machine: Machine) -> None:
        generations: dict[tuple[str, int], Share] = {}
        for job, uuid, generation, role in (*self._running(machine), *self._prepared(machine)):
            before, asked = generations.get((uuid, generation), Share()), self._asked(job, role)
            generations[uuid, generation] = Share(
                before.cpus + asked.cpus, before.memory_bytes + asked.memory_bytes
            )
        jobs: dict[str, Share] = {}
        for (uuid, _), share in generations.items():
            most = jobs.get(uuid, Share())
            jobs[uuid] = Share(max(most.cpus, share.cpus), max(most.memory_bytes, share.memory_bytes))
        cpus, memory_bytes = (
            sum(each.cpus for each in jobs.values()),
            sum(each.memory_bytes for each in jobs.values()),
        )
        offer = self._world.resources
        if cpus > offer.cpus + _SLACK or memory_bytes > offer.memory_bytes:
            self._seen.broken(PROMISE, f"{machine.name} at {self._world.loop.time():.3f} s: {jobs}")
        if len([each for each in jobs.values() if each.cpus]) > 1 and cpus >= offer.cpus:
            self._seen.count("nodes filled by several jobs")

    def _running(self, machine: Machine) -> Iterator[tuple[str, str, int, str]]:
        """Job, its UUID, generation and role. Nobody who leads knows what runs from before a loss of etcd."""
        for program in self._world.training.alive():
            if program.machine is machine and program.started_s >= self._seen.lost_s:
                task = program.attempt.task
                yield task.job, program.job_uuid, program.attempt.generation, task.role

    def _prepared(self, machine: Machine) -> Iterator[tuple[str, str, int, str]]:
        """The same of the plans that are made and not in force yet, where a node's name is one machine's."""
        if any(twin.name == machine.name for twin in self._world.twins):
            return
        for switch in self._picture.switches():
            for plan in self._picture.plans(switch.job):
                if plan.generation > switch.generation and not switch.phase.ended:
                    for place in plan.placements:
                        if place.node == machine.name:
                            yield switch.job, switch.job_uuid, plan.generation, place.role

    def _asked(self, job: str, role: str) -> Share:
        spec = self._picture.spec(job) if self._picture.has(keys.job_record(job)) else None
        for each in spec.roles if spec is not None else ():
            if each.name == role:
                return Share(each.resources.cpus, each.resources.memory_bytes)
        return Share()
